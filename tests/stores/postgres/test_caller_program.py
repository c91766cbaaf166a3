"""The program of a caller's transaction: what it does after a failure, and its round trips.

The first part runs without a server: the generators of caller_transaction.py are driven by hand,
and errors are thrown into them that no server would raise on demand.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.stores.postgres.conftest import OpenCallers
from tests.support.caller_connections import MUST_NOT_RUN, Body, Caller

from oncekey import Terminal
from oncekey.core.commands import Claim, Claimed, Done, Finish, Lost, Release
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.record import State
from oncekey.stores.postgres import errors
from oncekey.stores.postgres.caller_connections.base import savepoint_sql
from oncekey.stores.postgres.caller_connections.psycopg import _SENT_AS_TEXT, _join_text
from oncekey.stores.postgres.caller_transaction import (
    OPEN_SAVEPOINTS_MAX,
    CallerProgram,
    Savepoint,
    SavepointAction,
    SavepointCommand,
    TransactionState,
)
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.queries import TEXT_MAX_BYTES, query_texts

CLAIM = Claim(b"i" * 16, b"o" * 16, b"\x01f", 30_000_000, 60_000_000, 0, True, "Łódź", "op", "k")
FENCE = 1_800_000_000_000_000
FINISH = Finish(CLAIM.id, CLAIM.owner, FENCE, State.SUCCEEDED, b"x")
WRITTEN = [("",)]


def no_record(open_savepoints: int = 0) -> list[tuple[str]]:
    """The reply to a claim of a key that has no record."""
    return [(f"[{FENCE}, {open_savepoints}, true, null, 0, null, null]",)]


class DriverError(Exception):
    """A driver's error."""

    def __init__(self, sqlstate: str = "") -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


@pytest.mark.parametrize("rows", [[], [(None,)], [("",)], [("[]",)]], ids=repr)
def test_claim_whose_row_is_missing_or_null_says_so(rows: list[tuple[Any, ...]]) -> None:
    actions = CallerProgram(Options().program(), may_leave=True).apply(CLAIM, TransactionState.OPEN)
    next(actions)
    with pytest.raises(StoreUnavailable, match="reply to join cannot be read"):
        actions.send(rows)


def running_program() -> CallerProgram:
    """A program that runs the key and whose body has returned."""
    store_program = Options().program()
    store_program.watch.renew()  # the settings were read just now
    program = CallerProgram(store_program, may_leave=True)
    actions = program.apply(CLAIM, TransactionState.OPEN)
    sent: Any = next(actions)
    assert names(sent) == ["join", "SET"]
    savepoint_sql(sent[1], has_ended=False)
    with pytest.raises(StopIteration) as stop:
        actions.send(no_record())
    assert isinstance(stop.value.value, Claimed)
    return program


def names(actions: Any) -> list[str]:
    return [one.action.name if isinstance(one, SavepointCommand) else one.name for one in actions]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, DriverError, ConfigurationError])
@pytest.mark.parametrize("rollback", [None, DriverError("25P02")], ids=["works", "fails"])
def test_i1_any_error_while_the_record_is_written_rolls_back_the_rows(
    error: type[BaseException], rollback: Exception | None
) -> None:
    actions = running_program().apply(FINISH, TransactionState.OPEN)
    assert names(next(actions)) == ["insert_record"]
    assert names(actions.throw(error())) == ["ROLLBACK", "unlock"]
    with pytest.raises(error):
        actions.throw(rollback) if rollback else actions.send(())


def test_finish_is_lost_if_another_owner_has_ended_the_key() -> None:
    program = running_program()
    actions = program.apply(FINISH, TransactionState.OPEN)
    next(actions)
    assert names(actions.send(())) == ["record"]  # nothing was written: this one says why
    assert names(actions.throw(DriverError(errors.KEY_ENDED))) == ["ROLLBACK", "unlock"]
    with pytest.raises(StopIteration) as stop:
        actions.send(())
    assert stop.value.value == Lost()


def test_finish_that_writes_nothing_at_first_rolls_back_if_the_claim_is_gone() -> None:
    actions = running_program().apply(FINISH, TransactionState.OPEN)
    next(actions)
    actions.send(())
    error = DriverError(errors.CLAIM_TRANSACTION_ENDED)
    assert names(actions.throw(error)) == ["ROLLBACK", "unlock"]
    with pytest.raises(DriverError):
        actions.send(())


def test_a_closed_program_yields_no_more_actions() -> None:
    actions = running_program().apply(FINISH, TransactionState.OPEN)
    next(actions)
    actions.close()


def test_release_hides_its_own_error_behind_the_bodys() -> None:
    release = Release(CLAIM.id, CLAIM.owner, FENCE)
    program = running_program()
    list(program.rollback_to_savepoint())
    actions = program.apply(release, TransactionState.OPEN)
    assert names(next(actions)) == ["unlock"]
    with pytest.raises(StopIteration):
        actions.throw(DriverError("25P02"))


@pytest.mark.parametrize("state", [TransactionState.IMPLICIT, TransactionState.AUTOCOMMIT])
def test_release_begins_no_new_transaction(state: TransactionState) -> None:
    program = running_program()
    list(program.rollback_to_savepoint())
    with pytest.raises(StopIteration) as stop:
        next(program.apply(Release(CLAIM.id, CLAIM.owner, FENCE), state))
    assert stop.value.value == Done()


def test_finish_without_a_transaction_is_refused() -> None:
    for state in (TransactionState.AUTOCOMMIT, TransactionState.IMPLICIT):
        with pytest.raises(ConfigurationError, match="is over"):
            next(running_program().apply(FINISH, state))


def to_sql(action: SavepointAction, savepoint: Savepoint, *, has_ended: bool = False) -> str | None:
    return savepoint_sql(SavepointCommand(action, savepoint), has_ended=has_ended)


def test_savepoint_names_are_unique_while_set_and_reused_afterwards() -> None:
    savepoints = [Savepoint() for _ in range(3)]
    assert len({to_sql(SavepointAction.SET, savepoint) for savepoint in savepoints}) == 3
    name = savepoints[1].handle
    rollback = to_sql(SavepointAction.ROLLBACK, savepoints[1])
    assert rollback == f"ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}"
    assert to_sql(SavepointAction.ROLLBACK, savepoints[1]) is None  # it is gone
    again = Savepoint()
    to_sql(SavepointAction.SET, again)
    assert again.handle == name  # few names, so that drivers and servers cache few statements
    assert to_sql(SavepointAction.RELEASE, savepoints[0], has_ended=True) is None
    left = savepoints[2].handle
    assert savepoints[2].free_name() == left  # it stays open in the transaction, and costs nothing
    assert to_sql(SavepointAction.RELEASE, savepoints[2]) is None


def test_statements_sent_as_text_hold_nothing_a_caller_chose() -> None:
    """Texts may end up in logs; parameters do not."""
    texts = query_texts(Options().layout)
    for name in _SENT_AS_TEXT:
        assert {"text[]", "bytea[]"}.isdisjoint(texts[name].query.types)
    id, owner = b"\x00'\\\"%$1" + b"i" * 9, b"o" * 16
    sent = _join_text(Options().layout, None, True, id, owner, "01273b", "73", 0)
    assert sent == (
        "SELECT \"oncekey\".join_3(NULL, true, '00275c22252431696969696969696969', "
        "'6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f', '01273b', '73',\n    0, false)"
    )
    with pytest.raises(ValueError, match="non-hexadecimal"):
        texts["join"].inline((None, True, id, owner, "a caller's", "73", 0))


# --- round trips --------------------------------------------------------------------------------


class Counted:
    """Counts the messages to the server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, caller: Caller) -> None:
        self.count = 0
        if kind == "asyncpg":
            caller.db.add_query_logger(self.one)
            return
        waits = type(caller.db).wait

        def wait(*args: Any, **options: Any) -> Any:
            self.one()
            return waits(*args, **options)

        monkeypatch.setattr(type(caller.db), "wait", wait)

    def one(self, *_: Any) -> None:
        self.count += 1

    async def since(self, caller: Caller) -> int:
        if caller.is_async:
            await asyncio.sleep(0)  # asyncpg calls its loggers in the next loop iteration
        count, self.count = self.count, 0
        return count


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        # a run, a replay, a body that raises, a terminal error that is stored without its rows
        ("psycopg", (2, 2, 3, 4)),
        ("psycopg-async", (2, 2, 3, 4)),
        ("asyncpg", (3, 3, 4, 5)),
    ],
)
def test_round_trips_of_a_run_in_a_transaction(
    open_callers: OpenCallers,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    counts: tuple[int, ...],
) -> None:
    """Not counting those of the transaction and of the body."""

    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            counted = Counted(monkeypatch, kind, caller)
            await caller.run_inside("k", Body(()))
            seen = [await counted.since(caller)]
            await caller.run_inside("k", MUST_NOT_RUN)
            seen.append(await counted.since(caller))
            for key, error in (("k2", ValueError()), ("k3", Terminal())):
                with pytest.raises(type(error)):
                    await caller.run_inside(key, Body((), error=error))
                seen.append(await counted.since(caller))
            assert tuple(seen) == counts
        if kind == "asyncpg":
            caller.db.remove_query_logger(counted.one)

    open_callers.run_scenario(kind, scenario, {})


def test_finished_runs_leave_a_limited_number_of_savepoints_open() -> None:
    """The server counts them, because it knows which were rolled back."""
    for open_savepoints, is_left in (
        (0, True),
        (OPEN_SAVEPOINTS_MAX - 1, True),
        (OPEN_SAVEPOINTS_MAX, False),
    ):
        program = CallerProgram(Options().program(), may_leave=True)
        actions = program.apply(CLAIM, TransactionState.OPEN)
        sent: Any = next(actions)
        savepoint_sql(sent[1], has_ended=False)
        with pytest.raises(StopIteration):
            actions.send(no_record(open_savepoints))
        actions = program.apply(FINISH, TransactionState.OPEN)
        sent = next(actions)
        assert sent[0].params[2] is is_left
        if is_left:
            with pytest.raises(StopIteration):
                actions.send(WRITTEN)
        else:
            assert names(actions.send(WRITTEN)) == ["RELEASE"]


# --- parameters sent as text --------------------------------------------------------------------


def test_parameters_of_a_record_become_text_or_are_left_to_the_driver() -> None:
    text = query_texts(Options().layout)["insert_record"]
    record = [None, b"i" * 16, True, 0, 2, b"\x01f", b"o" * 16, FENCE, 1, False, FENCE, FENCE, 5, 0]
    rest = [b"", b"\x00\\", "note", 7]
    sent = text.as_text([*record, "scope %s", "op", "k'\\", *rest])
    assert sent is not None
    assert sent[:4] == [None, b"i".hex().encode() * 16, b"True", b"0"]
    assert sent[5] == rb"\x0166"
    assert sent[14:] == [b"scope %s", b"op", b"k'\\", rb"\x", rb"\x005c", b"note", b"7"]
    for other in ("\u0141\u00f3d\u017a", "nul\0"):
        assert text.as_text([*record, other, "op", "k", *rest]) is None
    long = [b"", b"x" * (TEXT_MAX_BYTES + 1), "note", 7]
    assert text.as_text([*record, "scope", "op", "k", *long]) is None
