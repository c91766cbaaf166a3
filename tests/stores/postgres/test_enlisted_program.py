"""Taking part as a program: what is done when something fails, and how many messages it takes.

Without a server first: the generators of caller_transaction.py are driven by hand, and errors are
thrown into them that no server would raise on demand.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.stores.postgres.conftest import Stage
from tests.support.caller_connections import NEVER, Order, Shop

from oncekey import Terminal
from oncekey.core.commands import Claim, Claimed, Done, Finish, Lost, Release
from oncekey.core.errors import ConfigurationError
from oncekey.core.record import State
from oncekey.stores.postgres import errors
from oncekey.stores.postgres.caller_transaction import (
    LEFT_OPEN_MAX,
    Mark,
    Participant,
    Save,
    Saving,
    Standing,
)
from oncekey.stores.postgres.callers.base import savepoint_text, texts_of
from oncekey.stores.postgres.callers.psycopg import _SENT_AS_TEXT
from oncekey.stores.postgres.options import Options

CLAIM = Claim(b"i" * 16, b"o" * 16, b"\x01f", 30_000_000, 60_000_000, 0, True, "Łódź", "op", "k")
FENCE = 1_800_000_000_000_000
FINISH = Finish(CLAIM.id, CLAIM.owner, FENCE, State.SUCCEEDED, b"x")
NOTHING_MET = (FENCE, 0, True, *[None] * 21)


class Said(Exception):
    """A driver's error."""

    def __init__(self, sqlstate: str = "") -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


def participant() -> Participant:
    """One that runs the key, its body being through."""
    mine = Participant(Options().program(), leaves=True)
    steps = mine.apply([CLAIM], Standing.OPEN)
    assert names(next(steps)) == ["enlist", "SET"]
    with pytest.raises(StopIteration) as stop:
        steps.send([NOTHING_MET])
    assert isinstance(stop.value.value[0], Claimed)
    return mine


def names(actions: Any) -> list[str]:
    return [action.how.name if isinstance(action, Saving) else action.name for action in actions]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, Said, ConfigurationError])
@pytest.mark.parametrize("again", [None, Said("25P02")], ids=["goes-back", "cannot-go-back"])
def test_i1_whatever_keeps_the_record_from_being_written_undoes_the_rows(
    error: type[BaseException], again: Exception | None
) -> None:
    steps = participant().apply([FINISH], Standing.OPEN)
    assert names(next(steps)) == ["record", "LEAVE"]
    assert names(steps.throw(error())) == ["BACK", "let_go"]
    with pytest.raises(error):
        steps.throw(again) if again else steps.send(())


def test_a_record_that_comes_too_late_is_told_so() -> None:
    mine = participant()
    steps = mine.apply([FINISH], Standing.OPEN)
    next(steps)
    assert names(steps.throw(Said(errors.TOO_LATE))) == ["BACK", "let_go"]
    with pytest.raises(StopIteration) as stop:
        steps.send(())
    assert stop.value.value == [Lost()]


def test_a_program_that_is_given_up_asks_for_nothing_more() -> None:
    steps = participant().apply([FINISH], Standing.OPEN)
    next(steps)
    steps.close()


def test_releasing_never_says_more_than_the_bodys_own_error() -> None:
    release = Release(CLAIM.id, CLAIM.owner, FENCE)
    mine = participant()
    list(mine.rollback_to_savepoint())
    steps = mine.apply([release], Standing.OPEN)
    assert names(next(steps)) == ["let_go"]
    with pytest.raises(StopIteration):
        steps.throw(Said("25P02"))


@pytest.mark.parametrize("standing", [Standing.READY, Standing.BARE])
def test_releasing_begins_no_new_transaction(standing: Standing) -> None:
    mine = participant()
    list(mine.rollback_to_savepoint())
    with pytest.raises(StopIteration) as stop:
        next(mine.apply([Release(CLAIM.id, CLAIM.owner, FENCE)], standing))
    assert stop.value.value == [Done()]


def test_finishing_in_no_transaction_is_refused() -> None:
    for standing in (Standing.BARE, Standing.READY):
        with pytest.raises(ConfigurationError, match="is over"):
            next(participant().apply([FINISH], standing))


def test_a_savepoint_has_a_name_of_its_own_while_it_lasts() -> None:
    marks = [Mark() for _ in range(3)]
    set_ = [savepoint_text(Saving(Save.SET, mark), is_over=False) for mark in marks]
    assert len(set(set_)) == 3
    name = marks[1].made
    back = savepoint_text(Saving(Save.BACK, marks[1]), is_over=False)
    assert back == f"ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}"
    assert savepoint_text(Saving(Save.BACK, marks[1]), is_over=False) is None  # it is gone
    again = Mark()
    savepoint_text(Saving(Save.SET, again), is_over=False)
    assert again.made == name  # few names, used again and again
    assert savepoint_text(Saving(Save.DROP, marks[0]), is_over=True) is None
    assert savepoint_text(Saving(Save.LEAVE, marks[2]), is_over=False) is None


def test_nothing_a_caller_chose_is_ever_part_of_a_text() -> None:
    """Texts end up in logs; parameters do not."""
    texts = texts_of(Options().layout)
    for name in _SENT_AS_TEXT:
        assert {"text", "text[]", "bytea[]"}.isdisjoint(texts[name].kinds)
    params = (None, True, b"\x00'\\\"%$1" + b"i" * 9, b"o" * 16, b"\x01';--", b"s", 0, False)
    sent = texts["enlist"].inline(params)
    assert sent == (
        'SELECT * FROM "oncekey".enlist_1(NULL::bigint, true::boolean, '
        "'00275c22252431696969696969696969'::uuid, '6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f'::uuid, "
        "decode('01273b2d2d', 'hex')::bytea, decode('73', 'hex')::bytea,\n"
        "    0::integer, false::boolean)"
    )


# --- messages -----------------------------------------------------------------------------------


class Counted:
    """How many messages go to the server while something is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, shop: Shop) -> None:
        self.count = 0
        if kind == "asyncpg":
            shop.db.add_query_logger(self.one)
            return
        waits = type(shop.db).wait

        def wait(*args: Any, **options: Any) -> Any:
            self.one()
            return waits(*args, **options)

        monkeypatch.setattr(type(shop.db), "wait", wait)

    def one(self, *_: Any) -> None:
        self.count += 1

    async def since(self, shop: Shop) -> int:
        if shop.is_async:
            await asyncio.sleep(0)  # asyncpg tells its loggers a turn later
        count, self.count = self.count, 0
        return count


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        # runs, replays, raises, is kept while its rows are not
        ("psycopg", (2, 2, 3, 4)),
        ("psycopg-async", (2, 2, 3, 4)),
        ("asyncpg", (3, 3, 4, 5)),
    ],
)
def test_how_many_messages_it_takes(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    counts: tuple[int, ...],
) -> None:
    """Beyond the transaction's and the body's own."""

    async def scene(shop: Shop) -> None:
        async with shop.transaction():
            counted = Counted(monkeypatch, kind, shop)
            await shop.inside("k", Order(()))
            seen = [await counted.since(shop)]
            await shop.inside("k", NEVER)
            seen.append(await counted.since(shop))
            for key, error in (("k2", ValueError()), ("k3", Terminal())):
                with pytest.raises(type(error)):
                    await shop.inside(key, Order((), error=error))
                seen.append(await counted.since(shop))
            assert tuple(seen) == counts
        if kind == "asyncpg":
            shop.db.remove_query_logger(counted.one)

    stage.play(kind, scene, {})


def test_only_so_many_savepoints_are_left_open() -> None:
    """The server counts them, for it knows which were rolled back."""
    for left_open, ends in ((0, "LEAVE"), (LEFT_OPEN_MAX - 1, "LEAVE"), (LEFT_OPEN_MAX, "DROP")):
        mine = Participant(Options().program(), leaves=True)
        steps = mine.apply([CLAIM], Standing.OPEN)
        next(steps)
        with pytest.raises(StopIteration):
            steps.send([(FENCE, left_open, True, *[None] * 21)])
        assert names(next(mine.apply([FINISH], Standing.OPEN))) == ["record", ends]
