"""A server that is down, comes back, or stops during a call: nothing is lost or done twice.

The store reconnects by itself. A command whose reply was lost is repeated with the same owner and
fence (I1, I4, I9).
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import asyncpg
import pytest
from tests.support.postgres_adapters import (
    StoreAdapter,
    StoreAdapters,
    caller_pool,
    fresh_server,
    locked,
    make_claim,
    make_finish,
)
from tests.support.servers import Postgres, Proxy, processes
from tests.support.servers.processes import free_port

from oncekey.core.commands import Claimed, Done, Replay
from oncekey.core.errors import StoreUnavailable
from oncekey.core.policy import Policy
from oncekey.core.record import State
from oncekey.stores import server_watch
from oncekey.stores.postgres import asyncpg_connections, options, psycopg_connections
from oncekey.testing.contract.engine_case import wait_until_true

ROWS = "SELECT attempt, fence FROM oncekey.records WHERE uuid_send(id) = %s"
PROMPT_SECONDS = 45.0  # below the timeouts of a minute, with room for a busy machine


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = fresh_server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _it_runs_and_is_empty(postgres: Postgres) -> None:
    if not postgres.is_running:
        postgres.start()
    postgres.execute("DROP SCHEMA IF EXISTS oncekey CASCADE")


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[Proxy]:
    with Proxy(postgres.port) as proxy:
        yield proxy


def refused(adapter: StoreAdapter, *commands: Any, match: str | None = None) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable, match=match) as raised:
        adapter.apply(commands)
    return raised.value


# --- down -----------------------------------------------------------------------------------


def test_an_unreachable_server_is_reported_at_once_by_every_call(
    adapters: StoreAdapters,
) -> None:
    store = adapters.store(
        f"postgresql://postgres@127.0.0.1:{free_port()}/postgres", pool_timeout="60s"
    )
    for _ in range(3):
        begun = time.monotonic()
        error = refused(store, make_claim("k"), match=r"cannot be reached.*(refused|Connect call)")
        assert not error.ambiguous
        assert not error.final
        assert time.monotonic() - begun < PROMPT_SECONDS


def test_a_store_connects_as_soon_as_the_server_is_up(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    store = adapters.store(postgres.url(), pool_timeout="60s")
    postgres.stop()
    assert not refused(store, make_claim("k")).ambiguous
    postgres.start()
    assert store.claim(make_claim("k")).attempt == 1
    postgres.stop("immediate")
    begun = time.monotonic()
    errors = [refused(store, make_claim("other")) for _ in range(3)]
    assert time.monotonic() - begun < PROMPT_SECONDS
    assert not errors[-1].ambiguous  # by then it knows that the server is down
    postgres.start()
    assert isinstance(store.apply([make_claim("k")])[0], Claimed)


def test_an_unknown_host_is_reported(adapters: StoreAdapters) -> None:
    store = adapters.store("postgresql://postgres@no-such-host.invalid/postgres")
    error = refused(store, make_claim("k"), match=r"cannot be reached.*(resolve|not known)")
    assert not error.ambiguous


def test_concurrent_callers_of_an_unreachable_server_wait_once(
    adapters: StoreAdapters, postgres: Postgres, proxy: Proxy
) -> None:
    """Eight calls at once, seven seconds each: one after the other would take 56."""
    proxy.hold()
    store = adapters.store(postgres.url(port=proxy.port) + "?connect_timeout=7")
    begun = time.monotonic()
    calls = [adapters.start(store.apply, [make_claim(f"k{n}")]) for n in range(8)]
    errors = [call.exception() for call in calls]
    assert time.monotonic() - begun < PROMPT_SECONDS
    assert all(isinstance(error, StoreUnavailable) for error in errors)
    assert not any(getattr(error, "ambiguous", True) for error in errors)
    assert "cannot be reached" in str(errors[0])


# --- restarted between two calls --------------------------------------------------------------


def use_all_connections(adapter: StoreAdapter) -> int:
    """Open as many connections as the pool holds, all idle."""
    pool = adapter.store._database.pool
    if adapter.loop is None:
        acquired = [pool.acquire(time.monotonic() + 30) for _ in range(4)]
        for one in acquired:
            one.__enter__()
        for one in acquired:
            one.__exit__(None, None, None)
        return sum(len(own.idle) for own in pool._by_process.values())

    async def all_at_once() -> int:
        acquired = [pool.acquire(time.monotonic() + 30) for _ in range(4)]
        for one in acquired:
            await one.__aenter__()
        for one in acquired:
            await one.__aexit__(None, None, None)
        return sum(len(own.idle) for own in pool._by_loop.values())

    opened: int = adapter.loop.run(all_at_once())
    return opened


def wait_until_noticed(adapter: StoreAdapter) -> None:
    """Wait until the event loop has noticed that the connections have ended."""
    if adapter.loop is not None:
        by_loop = adapter.store._database.pool._by_loop

        def ended() -> bool:
            return all(pooled.is_closed for own in by_loop.values() for pooled in own.idle)

        wait_until_true(ended)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_restart_between_two_calls_is_invisible(
    adapters: StoreAdapters, postgres: Postgres, mode: Any
) -> None:
    store = adapters.store(postgres.url())
    claim = make_claim("k")
    fence = store.claim(claim).fence
    assert use_all_connections(store) == 4
    postgres.restart(mode)
    wait_until_noticed(store)
    assert store.apply([make_finish(claim, fence, b"answer")]) == [Done()]
    (replay,) = store.apply([make_claim("k", "another")])
    assert isinstance(replay, Replay)
    assert replay.body == b"answer"


def test_a_session_terminated_by_the_server_is_replaced(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    store = adapters.store(postgres.url())
    fence = store.claim(make_claim("k")).fence
    postgres.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        "WHERE application_name = 'oncekey'"
    )
    wait_until_noticed(store)
    assert store.apply([make_finish(make_claim("k"), fence)]) == [Done()]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_callers_pool_survives_a_server_restart(
    adapters: StoreAdapters, postgres: Postgres, mode: Any
) -> None:
    with ExitStack() as stack:
        pool, _ = caller_pool(adapters, postgres, stack)
        store = adapters.store(pool, pool_timeout="10s")
        fence = store.claim(make_claim("k")).fence
        postgres.stop(mode)
        hurried = adapters.store(pool, pool_timeout="300ms")
        hurried.store._ready = True
        errors = [refused(hurried, make_claim("other")) for _ in range(2)]
        assert "cannot be reached" in str(errors[-1])
        assert not errors[-1].ambiguous
        postgres.start()
        assert store.apply([make_finish(make_claim("k"), fence)]) == [Done()]
        store.close()


def test_a_connection_that_its_pool_has_taken_back_counts_as_closed(postgres: Postgres) -> None:
    """asyncpg's pool does so by itself when a connection is lost during a call. What is left of it
    raises an error of asyncpg's own, which callers of the store must not see (S5)."""

    async def lose() -> None:
        async with asyncpg.create_pool(postgres.url(), min_size=1, max_size=1) as pool:
            connection: Any = await pool.acquire()
            pooled = asyncpg_connections.PooledConnection(connection)
            connection.remove_log_listener(pooled._on_notice)
            await pool.release(connection)
            assert pooled.is_closed
            pooled.detach()
            pooled.terminate()

    asyncio.run(lose())


# --- gone in the middle -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fast", "immediate", "kill"])
def test_a_server_that_stops_during_a_call_makes_it_ambiguous(
    adapters: StoreAdapters, postgres: Postgres, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A batch that waits for a lock is sent anew after this long, and then it has not been sent.
    monkeypatch.setattr(options, "BATCH_LOCK_US", 240_000_000)
    store = adapters.store(postgres.url(), lock_timeout="60s", statement_timeout="60s")
    store.prepare()
    with locked(postgres, "oncekey.records"):
        call = adapters.start(store.apply, [make_claim("k")])
        wait_until_true(lambda: waits(postgres) == 1)
        if mode == "kill":
            postgres.kill()
            error = call.exception(60)
        else:
            error = stop_before_the_lock_is_free(postgres, mode, call)
    assert isinstance(error, StoreUnavailable)
    assert error.ambiguous
    postgres.start()
    assert postgres.execute(ROWS, (make_claim("k").id,)) == []
    assert store.claim(make_claim("k")).attempt == 1


def stop_before_the_lock_is_free(
    postgres: Postgres, mode: Any, call: Future[Any]
) -> BaseException | None:
    """Stop the server; returns what the call ended with. Each session is ended by a signal of its
    own. If the one that holds the lock came first, the call could yet be carried out; so it gets
    its signal last."""
    ((holder,),) = postgres.execute(
        "SELECT pid FROM pg_locks WHERE granted AND mode = 'AccessExclusiveLock' "
        "AND relation = 'oncekey.records'::regclass"
    )
    processes.suspend(holder)
    with ThreadPoolExecutor(1) as stopper:
        try:
            stopped = stopper.submit(postgres.stop, mode)
            error = call.exception(60)
        finally:
            os.kill(holder, signal.SIGCONT)
        stopped.result(60)
    return error


def waits(postgres: Postgres) -> int:
    rows = postgres.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    return int(rows[0][0])


def warm_up(store: StoreAdapter) -> None:
    """Prepare the statements, so that the next request only executes one."""
    store.apply([make_claim("warm")])
    store.apply([make_finish(make_claim("nobody's"), 1)])


@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "wrapped"])
def test_i9_a_claim_and_a_finish_with_lost_replies_can_be_repeated(
    adapters: StoreAdapters, postgres: Postgres, proxy: Proxy, pooler: bool
) -> None:
    """`wrapped`: as behind a pooler, where each statement is between BEGIN and COMMIT."""
    commit = b"COMMIT\0" if pooler else b""
    store = adapters.store(postgres.url(port=proxy.port), pooler=pooler)
    warm_up(store)
    claim = make_claim("k")
    proxy.drop_replies(after=commit)
    assert refused(store, claim, match="connection").ambiguous
    proxy.wait_until_dropped()
    ((attempt, fence),) = postgres.execute(ROWS, (claim.id,))  # it was done all the same
    assert store.claim(claim) == Claimed(fence, attempt, ())
    assert postgres.execute(ROWS, (claim.id,)) == [(1, fence)]
    warm_up(store)
    finish = make_finish(claim, fence, b"answer")
    proxy.drop_replies(after=commit)
    assert refused(store, finish, match="connection").ambiguous
    proxy.wait_until_dropped()
    before = store.record(claim.id)
    assert before is not None
    assert (before.state, before.body) == (State.SUCCEEDED, b"answer")
    assert store.apply([finish]) == [Done()]
    assert store.record(claim.id) == before  # I2


def test_i1_the_engine_repeats_lost_commands_and_runs_the_body_once(
    adapters: StoreAdapters, postgres: Postgres, proxy: Proxy
) -> None:
    once = adapters.once(adapters.store(postgres.url(port=proxy.port)), cache=0)
    once.run("op", "first", lambda attempt: None)
    ran: list[int] = []

    def body(attempt: Any) -> str:
        ran.append(attempt.number)
        proxy.drop_replies()  # of the finish
        return "answer"

    proxy.drop_replies()  # of the claim
    result = once.run("op", "k", body)
    assert (result.value, result.replayed, result.attempt) == ("answer", False, 1)
    for _ in range(2):
        proxy.wait_until_dropped()
    again = once.run("op", "k", body)
    assert (again.value, again.replayed, again.fence) == ("answer", True, result.fence)
    assert ran == [1]


def test_i4_a_finish_is_repeated_until_the_server_is_back(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    """The body has run and the server is down: the outcome is stored as soon as it is back."""
    once = adapters.once(adapters.store(postgres.url()), cache=0, policy=Policy(lease="1h"))
    ran: list[str] = []
    stopped = threading.Event()

    def body(attempt: Any) -> str:
        ran.append("body")
        postgres.stop("immediate")
        stopped.set()
        return "answer"

    running = adapters.start(once.run, "op", "k", body)
    assert stopped.wait(60)
    postgres.start()
    assert running.result(60).value == "answer"
    assert once.run("op", "k", body).replayed
    assert ran == ["body"]


def test_a_connection_cut_during_a_call_is_ambiguous_and_repeatable(
    adapters: StoreAdapters, postgres: Postgres, proxy: Proxy
) -> None:
    store = adapters.store(postgres.url(port=proxy.port))
    store.prepare()
    proxy.hold("replies")
    call = adapters.start(store.apply, [make_claim("k")])
    proxy.wait_until_held("replies")
    proxy.cut()
    error = call.exception(60)
    assert isinstance(error, StoreUnavailable)
    assert error.ambiguous
    proxy.resume()
    assert store.claim(make_claim("k")).attempt == 1


@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "wrapped"])
def test_a_call_on_a_silent_network_times_out(
    adapters: StoreAdapters,
    postgres: Postgres,
    proxy: Proxy,
    pooler: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (psycopg_connections, asyncpg_connections):
        monkeypatch.setattr(module, "CANCEL_SECONDS", 0.2)
    monkeypatch.setattr(server_watch, "REST_SECONDS", 0.0)
    address = postgres.url(port=proxy.port)
    store = adapters.store(address, pooler=pooler, statement_timeout="60s")
    store.prepare()
    store._database._reply_timeout = 0.3
    proxy.hold()
    begun = time.monotonic()
    error = refused(store, make_claim("k"), match=r"answer")
    assert error.ambiguous
    assert time.monotonic() - begun < PROMPT_SECONDS
    proxy.cut()
    proxy.resume()
    store._database._reply_timeout = 30
    assert store.claim(make_claim("k")).attempt == 1
