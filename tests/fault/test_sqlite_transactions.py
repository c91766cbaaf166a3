"""Operations in the caller's own transaction: kill -9 at every statement, rollbacks, duplicates.

Whatever happens, what others see is both the rows and the finished key, or neither; and nothing
has to wait for a lease (I1, I10). No connection here waits for a lock unless a test says so, so
"at once" is checked by construction: whoever had to wait would be refused.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.fault import killed_sqlite_transaction
from tests.fault.killed_sqlite_transaction import (
    AIO,
    BLOCKING,
    INSERT,
    KINDS,
    ON_LOOP,
    ORDERS,
    Order,
    Shop,
    rows,
)

from oncekey import InFlight, OperationFailed, OutcomeUnknown, StoreUnavailable, Terminal

NEVER = Order((), error=AssertionError("this body must not run"))

every_kind = pytest.mark.parametrize("kind", KINDS)
Play = Callable[[Callable[[Shop], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture(params=KINDS)
def play(request: pytest.FixtureRequest, path: Path) -> Play:
    """Plays a scene in a shop of each kind."""

    def run(scene: Callable[[Shop], Coroutine[Any, Any, None]]) -> None:
        async def in_shop() -> None:
            async with Shop(request.param, path) as shop:
                await scene(shop)

        asyncio.run(in_shop())

    return run


# --- kill -9 ----------------------------------------------------------------------------------

# Between any two of these somebody dies, and between all the others that the driver adds.
BEGINNING = ["BEGIN IMMEDIATE", "INSERT INTO oncekey_records", "SAVEPOINT", "INSERT INTO orders"]
ENDING = ["RELEASE", "UPDATE oncekey_records", "COMMIT"]
COURSE = {
    "returns": [*BEGINNING, *ENDING],
    "refuses": [*BEGINNING, "ROLLBACK TO", *ENDING],
}


def landmarks(statements: list[str]) -> list[str]:
    """The statements of a run that change something, by their beginnings."""
    known = COURSE["refuses"]
    found = (next((name for name in known if sql.startswith(name)), "") for sql in statements)
    return [name for name in found if name]


@every_kind
@pytest.mark.parametrize("order", ORDERS)
def test_i1_kill_nine_before_every_statement_of_a_transaction(
    tmp_path: Path, kind: str, order: str
) -> None:
    done = subprocess.run(
        [sys.executable, killed_sqlite_transaction.__file__, tmp_path, kind, order],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    statements: list[str] = json.loads(done.stdout)
    assert landmarks(statements) == COURSE[order]
    assert statements[-1] == "COMMIT"

    async def check(number: int) -> None:
        committed = number == len(statements)
        finished = {"returns": "succeeded", "refuses": "failed"}[order]
        kept = ["tea"] if order == "returns" else []
        async with Shop(kind, tmp_path / f"{number}.db") as shop:
            assert await shop.state("k") == (finished if committed else None), statements[number:]
            assert rows(shop.path) == (kept if committed else [])
            # The retry is let in, or answered, right now.
            if committed and order == "refuses":
                with pytest.raises(OperationFailed, match="out of tea"):
                    await shop.inside("k", NEVER)
            else:
                result = await shop.inside("k", NEVER if committed else Order())
                assert (result.value, result.replayed) == ("done", committed)
                assert result.attempt == 1  # what was killed left no trace
            await shop.commit()
            assert rows(shop.path) == (kept if committed else ["tea"])
            assert shop.ran == (0 if committed else 1)

    async def check_all() -> None:
        for number in range(len(statements) + 1):
            await check(number)

    asyncio.run(check_all())


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, Terminal, KeyboardInterrupt])
def test_an_error_that_rolls_back_leaves_nothing(play: Play, error: type[BaseException]) -> None:
    async def scene(shop: Shop) -> None:
        with pytest.raises(error, match="mine"):
            await shop.inside("k", Order(error=error("mine")))
        await shop.rollback()
        assert (rows(shop.path), await shop.state("k")) == ([], None)
        result = await shop.inside("k")
        await shop.commit()
        assert (result.replayed, result.attempt, rows(shop.path)) == (False, 1, ["tea"])

    play(scene)


def test_an_error_caught_inside_frees_the_key_and_undoes_the_rows(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        with pytest.raises(ValueError, match="mine"):
            await shop.inside("k", Order(error=ValueError("mine")))
        await shop.execute("INSERT INTO orders VALUES ('the caller goes on')")
        await shop.commit()
        assert rows(shop.path) == ["the caller goes on"]
        assert not (await shop.inside("k")).replayed
        await shop.commit()
        assert rows(shop.path) == ["the caller goes on", "tea"]

    play(scene)


def test_a_terminal_caught_inside_is_kept_and_its_rows_are_not(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        with pytest.raises(Terminal):
            await shop.inside("k", Order(error=Terminal("out of tea")))
        await shop.execute("INSERT INTO orders VALUES ('refusal noted')")
        await shop.commit()
        assert await shop.state("k") == "failed"
        for ask in (shop.inside, shop.outside):
            with pytest.raises(OperationFailed, match="out of tea"):
                await ask("k", NEVER)
        await shop.rollback()
        assert rows(shop.path) == ["refusal noted"]

    play(scene)


@pytest.mark.parametrize("name", ["mine", "oncekey_body"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_bodys_own_savepoints(play: Play, name: str, fails: bool) -> None:
    statements = (
        INSERT,
        f"SAVEPOINT {name}",
        "INSERT INTO orders VALUES ('undone')",
        f"ROLLBACK TO {name}",
        "INSERT INTO orders VALUES ('milk')",
        f"RELEASE {name}",
    )

    async def scene(shop: Shop) -> None:
        await shop.execute("BEGIN IMMEDIATE")
        await shop.execute("SAVEPOINT outer")
        order = Order(statements, error=ValueError() if fails else None)
        if fails:
            with pytest.raises(ValueError):
                await shop.inside("k", order)
        else:
            await shop.inside("k", order)
        await shop.execute("RELEASE outer")
        await shop.commit()
        assert rows(shop.path) == ([] if fails else ["tea", "milk"])
        assert (await shop.inside("k")).replayed is not fails
        await shop.rollback()

    play(scene)


def test_rolling_back_to_a_savepoint_around_the_run_takes_the_key_along(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        await shop.execute("BEGIN IMMEDIATE")
        await shop.execute("SAVEPOINT around")
        await shop.inside("k")
        await shop.execute("ROLLBACK TO around")
        await shop.commit()
        assert (rows(shop.path), await shop.state("k")) == ([], None)
        assert not (await shop.inside("k")).replayed

    play(scene)


# --- the replay cache -------------------------------------------------------------------------


def test_the_cache_never_answers_with_what_was_rolled_back(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        await shop.inside("k", Order(value="rolled back"))
        assert (await shop.inside("k", NEVER)).value == "rolled back"  # inside it did happen
        await shop.rollback()
        fresh = await shop.outside("k", Order((), value="committed"))
        assert (fresh.value, fresh.replayed) == ("committed", False)
        again = await shop.inside("k", NEVER)
        assert (again.value, again.replayed) == ("committed", True)
        await shop.rollback()
        assert (await shop.outside("k", NEVER)).value == "committed"

    play(scene)


# --- duplicates -------------------------------------------------------------------------------


def test_a_duplicate_during_an_open_transaction_is_refused_and_then_replayed(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        async with Shop(shop.kind, shop.path) as other:
            await shop.inside("k")
            for ask in (other.inside, other.outside):
                with pytest.raises(StoreUnavailable) as refused:
                    await ask("k", NEVER)
                assert not refused.value.ambiguous
            await other.rollback()
            await shop.commit()
            for ask in (other.inside, other.outside):
                assert (await ask("k", NEVER)).value == "done"
            await other.rollback()
            assert (shop.ran, other.ran, rows(shop.path)) == (1, 0, ["tea"])

    play(scene)


@every_kind
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_duplicate_waits_for_the_lock_and_never_runs_twice(
    path: Path, kind: str, ending: str
) -> None:
    holds, asks = threading.Event(), threading.Event()

    async def hold() -> None:
        async with Shop(BLOCKING, path) as shop:
            await shop.inside("k")
            holds.set()
            assert asks.wait(60)
            await (shop.commit() if ending == "commit" else shop.rollback())

    first = threading.Thread(target=lambda: asyncio.run(hold()))

    async def wait_for_it() -> None:
        async with Shop(kind, path, busy_ms=20_000) as shop:
            first.start()
            assert holds.wait(60)
            await shop.trace(lambda sql: asks.set() if sql.startswith("BEGIN") else None)
            result = await shop.inside("k")
            await shop.commit()
            assert result.replayed is (ending == "commit")
            assert shop.ran == (0 if ending == "commit" else 1)

    try:
        asyncio.run(wait_for_it())
    finally:
        asks.set()
        first.join()
    assert rows(path) == ["tea"]


def test_a_run_of_the_same_key_inside_itself_is_refused(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        tx = shop.once.in_transaction(shop.db)

        def blocking(attempt: Any) -> Any:
            return tx.run("order", "k", blocking).value

        async def awaited(attempt: Any) -> Any:
            return (await tx.run("order", "k", awaited)).value

        with pytest.raises(InFlight):
            await shop.done(tx.run("order", "k", blocking if shop.kind == BLOCKING else awaited))
        await shop.commit()
        assert not (await shop.inside("k")).replayed

    play(scene)


# --- changing the mode ------------------------------------------------------------------------


def test_an_operation_that_becomes_transactional_knows_its_old_keys(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        await shop.outside("done")
        with pytest.raises(ValueError):
            await shop.outside("failed", Order((), error=ValueError("for good")))
        interruption = KeyboardInterrupt if shop.kind == BLOCKING else asyncio.CancelledError
        with pytest.raises(interruption):
            await shop.outside("unknown", Order((), error=interruption()))
        told = await shop.inside("done", NEVER)
        assert (told.value, told.replayed) == ("leased", True)
        with pytest.raises(OperationFailed, match="for good"):
            await shop.inside("failed", NEVER)
        with pytest.raises(OutcomeUnknown):
            await shop.inside("unknown", NEVER)
        await shop.commit()
        assert (shop.ran, rows(shop.path)) == (3, [])

    play(scene)


def test_an_operation_that_becomes_leased_knows_its_old_keys(play: Play) -> None:
    async def scene(shop: Shop) -> None:
        await shop.inside("done")
        with pytest.raises(Terminal):
            await shop.inside("failed", Order(error=Terminal("for good")))
        with pytest.raises(ValueError):
            await shop.inside("freed", Order(error=ValueError()))
        await shop.commit()
        told = await shop.outside("done", NEVER)
        assert (told.value, told.replayed) == ("done", True)
        with pytest.raises(OperationFailed, match="for good"):
            await shop.outside("failed", NEVER)
        assert (await shop.outside("freed")).value == "leased"
        assert (shop.ran, rows(shop.path)) == (4, ["tea"])

    play(scene)


def test_a_running_lease_keeps_a_transaction_out(path: Path) -> None:
    async def scene() -> None:
        async with Shop(ON_LOOP, path) as shop, Shop(AIO, path) as other:

            async def body(attempt: Any) -> str:
                with pytest.raises(InFlight):
                    await other.inside("k", NEVER)
                await other.rollback()
                return "leased"

            assert (await shop.once.run("order", "k", body)).value == "leased"
            assert (await other.inside("k", NEVER)).value == "leased"
            await other.rollback()

    asyncio.run(scene())


def test_cancelling_a_body_in_a_transaction_leaves_nothing(path: Path) -> None:
    async def scene(kind: str) -> None:
        async with Shop(kind, path) as shop:
            inserted = asyncio.Event()

            async def body(attempt: Any) -> None:
                await shop.execute(INSERT)
                inserted.set()
                await asyncio.Event().wait()

            task = asyncio.ensure_future(shop.once.in_transaction(shop.db).run("order", kind, body))
            await inserted.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await shop.commit()  # even then: the rows are undone, the key is free
            assert rows(path) == []
            assert not (await shop.inside(kind, Order(()))).replayed

    for kind in (ON_LOOP, AIO):
        asyncio.run(scene(kind))


def test_a_transaction_whose_commit_fails_leaves_nothing(path: Path) -> None:
    async def scene() -> None:
        async with Shop(BLOCKING, path) as shop:
            await shop.execute("PRAGMA foreign_keys = ON")
            await shop.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
            await shop.execute(
                "CREATE TABLE child (p REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)"
            )
            await shop.inside("k", Order((INSERT, "INSERT INTO child VALUES (7)")))
            with pytest.raises(sqlite3.IntegrityError):
                await shop.commit()
            await shop.rollback()
            assert (rows(path), await shop.state("k")) == ([], None)
            assert not (await shop.inside("k")).replayed

    asyncio.run(scene())
