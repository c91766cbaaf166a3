"""An outcome that no synchronous standby has is not replayed, by whichever process (I4, I13).

A commit that gives up waiting for the standby is done on the primary and can be read. If it were
replayed and the standby promoted then, a client would have an answer that nothing knows of. Chaos
found that with seed 7: the COMMIT of a caller's transaction was cancelled, and the retry went to
another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from tests.support.caller_connections import CALLERS, MUST_NOT_RUN, Body, Caller
from tests.support.postgres_adapters import (
    UNCONFIRMED,
    StoreAdapters,
    fresh_server,
    make_claim,
    make_finish,
    unconfirmed,
    with_standby,
)
from tests.support.servers import Postgres
from tests.support.servers.processes import wait_until

from oncekey.core.commands import Look, Replay
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import State

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
PLACED = Body((), value="placed")


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    with ExitStack() as stack:
        primary = fresh_server()
        stack.callback(primary.close)
        standby = with_standby(primary, synchronous=True)
        stack.callback(standby.close)
        yield primary, standby


@pytest.fixture
def primary(pair: tuple[Postgres, Postgres]) -> Iterator[Postgres]:
    primary, standby = pair
    yield primary
    if not standby.is_running:
        standby.start()
    primary.wait_for_standby(sync=True)
    primary.execute("DROP SCHEMA oncekey CASCADE")


@pytest.fixture
def standby(pair: tuple[Postgres, Postgres]) -> Postgres:
    return pair[1]


def restart(standby: Postgres, primary: Postgres) -> None:
    standby.start()
    primary.wait_for_standby(sync=True)


def test_i13_another_process_makes_sure_before_it_replays(
    adapters: StoreAdapters, primary: Postgres, standby: Postgres
) -> None:
    """It had no failure itself, so it cannot know that the outcome is on no standby."""
    store, other = adapters.store(primary.url()), adapters.store(primary.url())
    claim = make_claim("k")
    finish = make_finish(claim, store.claim(claim).fence)
    other.prepare()
    standby.stop("immediate")
    with ThreadPoolExecutor() as threads:
        finished = threads.submit(store.apply, [finish])
        cancel_commit(primary)
        with pytest.raises(StoreUnavailable, match=UNCONFIRMED):
            finished.result()
    other._database._reply_timeout = 0.1
    for command in (make_claim("k", "another"), Look(claim.id)):
        unconfirmed(other, command)
    restart(standby, primary)
    other._database._reply_timeout = 30
    assert isinstance(other.apply([make_claim("k", "another")])[0], Replay)
    record = other.record(claim.id)
    assert record is not None
    assert record.state == State.SUCCEEDED


def cancel_commit(primary: Postgres) -> None:
    """Cancel a commit that waits for the standby, as a driver does at its timeout."""
    wait_until(lambda: primary.execute(WAITING) == [(1,)], "a commit waits for the standby")
    primary.execute(CANCEL)


@pytest.mark.parametrize("kind", ["psycopg", "asyncpg", "sqlalchemy-async-session"])
def test_i13_a_callers_transaction_does_not_replay_what_no_standby_has(
    kind: str, primary: Postgres, standby: Postgres
) -> None:
    asyncio.run(replay_in_a_transaction(kind, primary, standby))


async def replay_in_a_transaction(kind: str, primary: Postgres, standby: Postgres) -> None:
    async with CALLERS["psycopg"](url=primary.url()) as writer:
        await writer.begin()
        assert (await writer.run_inside("k", PLACED)).value == "placed"
        async with CALLERS[kind](url=primary.url()) as reader:
            standby.stop("immediate")
            with ThreadPoolExecutor() as threads:
                committed = threads.submit(asyncio.run, writer.commit())
                cancel_commit(primary)
                committed.result()  # the server sends a warning only, which psycopg does not raise
            database_of(reader)._reply_timeout = 2  # for statements that a busy machine gets to
            await reader.begin()
            with pytest.raises(StoreUnavailable, match=UNCONFIRMED):
                await reader.run_inside("k", MUST_NOT_RUN)
            await reader.rollback()
            restart(standby, primary)
            database_of(reader)._reply_timeout = 30
            await reader.begin()
            replay = await reader.run_inside("k", MUST_NOT_RUN)
            await reader.commit()
            assert (replay.value, replay.replayed) == ("placed", True)


def database_of(caller: Caller) -> Any:
    return caller.once._store._database


def test_a_replay_on_a_server_without_standbys_commits_nothing(adapters: StoreAdapters) -> None:
    """The commit that makes sure is for those who have synchronous standbys."""
    server = fresh_server()
    try:
        store = adapters.store(server.url())
        claim = make_claim("k")
        store.apply([make_finish(claim, store.claim(claim).fence)])
        before = server.execute("SELECT pg_current_wal_insert_lsn()")
        assert isinstance(store.apply([make_claim("k", "another")])[0], Replay)
        assert server.execute("SELECT pg_current_wal_insert_lsn()") == before
    finally:
        server.close()
