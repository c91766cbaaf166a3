"""Operations in the caller's own SQLite transaction: errors, rollbacks, duplicates, cancellation.

Other connections see both the rows and the finished key, or neither, and no retry waits for a lease
(I1, I10). Unless a test sets a timeout, no connection waits for a lock: a retry that had to wait
would be refused. So a retry that succeeds has succeeded at once.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.fault.killed_sqlite_transaction import (
    AIO,
    INSERT,
    KINDS,
    NEVER,
    ON_LOOP,
    SYNC,
    Order,
    Shop,
    rows,
)

from oncekey import InFlight, OperationFailed, OutcomeUnknown, StoreUnavailable, Terminal

every_kind = pytest.mark.parametrize("kind", KINDS)
RunInShop = Callable[[Callable[[Shop], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture(params=KINDS)
def run_in_shop(request: pytest.FixtureRequest, path: Path) -> RunInShop:
    """Return a function that runs a scenario in a shop of each kind."""

    def run(scenario: Callable[[Shop], Coroutine[Any, Any, None]]) -> None:
        async def in_shop() -> None:
            async with Shop(request.param, path) as shop:
                await scenario(shop)

        asyncio.run(in_shop())

    return run


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, Terminal, KeyboardInterrupt])
def test_an_operation_rolled_back_with_its_error_leaves_nothing(
    run_in_shop: RunInShop, error: type[BaseException]
) -> None:
    async def scenario(shop: Shop) -> None:
        with pytest.raises(error, match="mine"):
            await shop.inside("k", Order(error=error("mine")))
        await shop.rollback()
        assert (rows(shop.path), await shop.state("k")) == ([], None)
        result = await shop.inside("k")
        await shop.commit()
        assert (result.replayed, result.attempt, rows(shop.path)) == (False, 1, ["tea"])

    run_in_shop(scenario)


def test_an_error_caught_in_the_transaction_frees_the_key_and_undoes_the_rows(
    run_in_shop: RunInShop,
) -> None:
    async def scenario(shop: Shop) -> None:
        with pytest.raises(ValueError, match="mine"):
            await shop.inside("k", Order(error=ValueError("mine")))
        await shop.execute("INSERT INTO orders VALUES ('the caller goes on')")
        await shop.commit()
        assert rows(shop.path) == ["the caller goes on"]
        assert not (await shop.inside("k")).replayed
        await shop.commit()
        assert rows(shop.path) == ["the caller goes on", "tea"]

    run_in_shop(scenario)


def test_a_terminal_error_caught_in_the_transaction_is_stored_without_its_rows(
    run_in_shop: RunInShop,
) -> None:
    async def scenario(shop: Shop) -> None:
        with pytest.raises(Terminal):
            await shop.inside("k", Order(error=Terminal("out of tea")))
        await shop.execute("INSERT INTO orders VALUES ('refusal noted')")
        await shop.commit()
        assert await shop.state("k") == "failed"
        for run in (shop.inside, shop.outside):
            with pytest.raises(OperationFailed, match="out of tea"):
                await run("k", NEVER)
        await shop.rollback()
        assert rows(shop.path) == ["refusal noted"]

    run_in_shop(scenario)


@pytest.mark.parametrize("name", ["mine", "oncekey_body"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_body_may_use_savepoints_of_its_own(
    run_in_shop: RunInShop, name: str, fails: bool
) -> None:
    statements = (
        INSERT,
        f"SAVEPOINT {name}",
        "INSERT INTO orders VALUES ('undone')",
        f"ROLLBACK TO {name}",
        "INSERT INTO orders VALUES ('milk')",
        f"RELEASE {name}",
    )

    async def scenario(shop: Shop) -> None:
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

    run_in_shop(scenario)


def test_a_rollback_to_a_savepoint_around_the_run_rolls_back_the_key(
    run_in_shop: RunInShop,
) -> None:
    async def scenario(shop: Shop) -> None:
        await shop.execute("BEGIN IMMEDIATE")
        await shop.execute("SAVEPOINT around")
        await shop.inside("k")
        await shop.execute("ROLLBACK TO around")
        await shop.commit()
        assert (rows(shop.path), await shop.state("k")) == ([], None)
        assert not (await shop.inside("k")).replayed

    run_in_shop(scenario)


# --- the replay cache -------------------------------------------------------------------------


def test_the_cache_never_replays_a_result_that_was_rolled_back(run_in_shop: RunInShop) -> None:
    async def scenario(shop: Shop) -> None:
        await shop.inside("k", Order(value="rolled back"))
        assert (
            await shop.inside("k", NEVER)
        ).value == "rolled back"  # the transaction sees its own result
        await shop.rollback()
        fresh = await shop.outside("k", Order((), value="committed"))
        assert (fresh.value, fresh.replayed) == ("committed", False)
        again = await shop.inside("k", NEVER)
        assert (again.value, again.replayed) == ("committed", True)
        await shop.rollback()
        assert (await shop.outside("k", NEVER)).value == "committed"

    run_in_shop(scenario)


# --- duplicates -------------------------------------------------------------------------------


def test_a_duplicate_during_an_open_transaction_is_refused_and_then_replayed(
    run_in_shop: RunInShop,
) -> None:
    async def scenario(shop: Shop) -> None:
        async with Shop(shop.kind, shop.path) as other:
            await shop.inside("k")
            for run in (other.inside, other.outside):
                with pytest.raises(StoreUnavailable) as refused:
                    await run("k", NEVER)
                assert not refused.value.ambiguous
            await other.rollback()
            await shop.commit()
            for run in (other.inside, other.outside):
                assert (await run("k", NEVER)).value == "done"
            await other.rollback()
            assert (shop.ran, other.ran, rows(shop.path)) == (1, 0, ["tea"])

    run_in_shop(scenario)


@every_kind
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_duplicate_waits_for_the_lock_and_replays_or_runs(
    path: Path, kind: str, ending: str
) -> None:
    holds, waits = threading.Event(), threading.Event()

    async def hold() -> None:
        async with Shop(SYNC, path) as shop:
            await shop.inside("k")
            holds.set()
            assert waits.wait(60)
            await (shop.commit() if ending == "commit" else shop.rollback())

    first = threading.Thread(target=lambda: asyncio.run(hold()))

    async def run_duplicate() -> None:
        async with Shop(kind, path, busy_ms=20_000) as shop:
            first.start()
            assert holds.wait(60)
            await shop.trace(lambda sql: waits.set() if sql.startswith("BEGIN") else None)
            result = await shop.inside("k")
            await shop.commit()
            assert result.replayed is (ending == "commit")
            assert shop.ran == (0 if ending == "commit" else 1)

    try:
        asyncio.run(run_duplicate())
    finally:
        waits.set()
        first.join()
    assert rows(path) == ["tea"]


def test_a_run_of_the_same_key_inside_itself_is_refused(run_in_shop: RunInShop) -> None:
    async def scenario(shop: Shop) -> None:
        tx = shop.once.in_transaction(shop.db)

        def sync_body(attempt: Any) -> Any:
            return tx.run("order", "k", sync_body).value

        async def async_body(attempt: Any) -> Any:
            return (await tx.run("order", "k", async_body)).value

        with pytest.raises(InFlight):
            await shop.done(tx.run("order", "k", sync_body if shop.kind == SYNC else async_body))
        await shop.commit()
        assert not (await shop.inside("k")).replayed

    run_in_shop(scenario)


# --- from leases to transactions and back -----------------------------------------------------


def test_an_operation_moved_into_transactions_keeps_its_keys(run_in_shop: RunInShop) -> None:
    async def scenario(shop: Shop) -> None:
        await shop.outside("done")
        with pytest.raises(ValueError):
            await shop.outside("failed", Order((), error=ValueError("for good")))
        interruption = KeyboardInterrupt if shop.kind == SYNC else asyncio.CancelledError
        with pytest.raises(interruption):
            await shop.outside("unknown", Order((), error=interruption()))
        replay = await shop.inside("done", NEVER)
        assert (replay.value, replay.replayed) == ("leased", True)
        with pytest.raises(OperationFailed, match="for good"):
            await shop.inside("failed", NEVER)
        with pytest.raises(OutcomeUnknown):
            await shop.inside("unknown", NEVER)
        await shop.commit()
        assert (shop.ran, rows(shop.path)) == (3, [])

    run_in_shop(scenario)


def test_an_operation_moved_out_of_transactions_keeps_its_keys(run_in_shop: RunInShop) -> None:
    async def scenario(shop: Shop) -> None:
        await shop.inside("done")
        with pytest.raises(Terminal):
            await shop.inside("failed", Order(error=Terminal("for good")))
        with pytest.raises(ValueError):
            await shop.inside("freed", Order(error=ValueError()))
        await shop.commit()
        replay = await shop.outside("done", NEVER)
        assert (replay.value, replay.replayed) == ("done", True)
        with pytest.raises(OperationFailed, match="for good"):
            await shop.outside("failed", NEVER)
        assert (await shop.outside("freed")).value == "leased"
        assert (shop.ran, rows(shop.path)) == (4, ["tea"])

    run_in_shop(scenario)


def test_a_transaction_is_refused_a_key_under_a_running_lease(path: Path) -> None:
    async def scenario() -> None:
        async with Shop(ON_LOOP, path) as shop, Shop(AIO, path) as other:

            async def body(attempt: Any) -> str:
                with pytest.raises(InFlight):
                    await other.inside("k", NEVER)
                await other.rollback()
                return "leased"

            assert (await shop.once.run("order", "k", body)).value == "leased"
            assert (await other.inside("k", NEVER)).value == "leased"
            await other.rollback()

    asyncio.run(scenario())


def test_a_cancelled_body_in_a_transaction_leaves_nothing(path: Path) -> None:
    async def scenario(kind: str) -> None:
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
            await shop.commit()  # though it commits, the rows are undone and the key is free
            assert rows(path) == []
            assert not (await shop.inside(kind, Order(()))).replayed

    for kind in (ON_LOOP, AIO):
        asyncio.run(scenario(kind))


def test_a_transaction_whose_commit_fails_leaves_nothing(path: Path) -> None:
    async def scenario() -> None:
        async with Shop(SYNC, path) as shop:
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

    asyncio.run(scenario())
