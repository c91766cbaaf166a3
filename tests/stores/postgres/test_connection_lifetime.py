"""A store's connections end with the store or with their event loop, and survive a fork."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.support.postgres_adapters import (
    STORE_DRIVERS,
    Reach,
    StoreAdapter,
    StoreAdapters,
    caller_pool,
    direct_url,
    fresh_server,
    locked,
    make_claim,
    waiting,
)
from tests.support.servers import Postgres, processes

from oncekey.core.commands import Claimed
from oncekey.core.errors import StoreUnavailable
from oncekey.stores.postgres import PostgresStore, options
from oncekey.testing.contract.engine_case import wait_until_true

SCHEMA = "oncekey"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = fresh_server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _empty(postgres: Postgres) -> None:
    postgres.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


def test_a_closed_store_is_unavailable_until_it_is_reopened(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    store = adapters.store(postgres.url())
    store.claim(make_claim("k"))
    store.close()
    store.close()
    with pytest.raises(StoreUnavailable, match="closed") as raised:
        store.apply([make_claim("k")])
    assert not raised.value.ambiguous
    assert raised.value.final
    wait_until_true(lambda: sessions(postgres) == 0)
    store.reopen()
    assert isinstance(store.claim(make_claim("other")), Claimed)


def sessions(postgres: Postgres, name: str = "oncekey", that: str = "true") -> int:
    query = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND {that}"  # noqa: S608
    return int(postgres.execute(query, (name,))[0][0])


def test_close_lets_a_running_call_finish(
    adapters: StoreAdapters, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A batch that waits for a lock is sent anew after this long, and a closed store sends nothing.
    monkeypatch.setattr(options, "BATCH_LOCK_US", 240_000_000)
    names = ("lock_timeout", "statement_timeout", "pool_timeout", "call_timeout")
    mine = processes.fresh_name("closing")  # a session of another test may wait, too
    url = f"{postgres.url()}?application_name={mine}"
    store = adapters.store(url, pool_size=1, **dict.fromkeys(names, "240s"))
    store.prepare()
    with locked(postgres, f"{SCHEMA}.records"):
        running = adapters.start(store.apply, [make_claim("k")])
        wait_until_true(lambda: sessions(postgres, mine, "wait_event_type = 'Lock'") == 1)
        queued = adapters.start(store.apply, [make_claim("other")])
        store.close()
    assert isinstance(running.result(60)[0], Claimed)
    error = queued.exception(60)
    assert isinstance(error, StoreUnavailable)
    assert error.final
    wait_until_true(lambda: sessions(postgres, mine) == 0)


# --- asyncio's own --------------------------------------------------------------------------------


@pytest.mark.parametrize("reach", [direct_url, caller_pool])
def test_a_cancelled_call_leaves_usable_connections(postgres: Postgres, reach: Reach) -> None:
    adapters = StoreAdapters("asyncpg")
    assert adapters.loop is not None
    with ExitStack() as stack:
        stack.callback(adapters.close)
        address, _ = reach(adapters, postgres, stack)
        store = adapters.store(address, pool_size=1, lock_timeout="60s", statement_timeout="60s")
        store.prepare()

        async def cancelled() -> None:
            call = asyncio.ensure_future(store.store.apply([make_claim("k")]))
            while await asyncio.to_thread(waiting, postgres, SCHEMA) == 0:
                pass
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

        with locked(postgres, f"{SCHEMA}.records"):
            adapters.loop.run(cancelled())
        for n in range(3):
            assert store.claim(make_claim(f"after {n}")).attempt == 1
        store.close()


def test_event_loops_share_a_store_but_no_connection(postgres: Postgres) -> None:
    one, other = StoreAdapters("asyncpg"), StoreAdapters("asyncpg")
    store = one.store(postgres.url())
    twin = StoreAdapter(store.store, other.loop)
    store.claim(make_claim("k"))
    with pytest.raises(AssertionError, match="Busy"):
        twin.claim(make_claim("k", "another"))
    by_loop = store.store._database.pool._by_loop
    assert sorted(len(own.idle) for own in by_loop.values()) == [1, 1]
    assert sessions(postgres) == 2
    one.close()
    other.close()
    wait_until_true(lambda: sessions(postgres) == 0)


SCRIPT = """
import asyncio, sys, warnings
from oncekey import AsyncOnce
once = AsyncOnce(sys.argv[1], cache=0)
async def body(attempt):
    return attempt.number
for n in range(5):
    assert asyncio.run(once.run("op", f"k{n}", body)).value == 1
assert asyncio.run(once.run("op", "k0", body)).replayed
asyncio.run(once.close())
print("fine")
"""


def test_each_call_may_have_its_own_event_loop(postgres: Postgres) -> None:
    """As in scripts: each `asyncio.run` ends its loop without closing the store."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, postgres.url()],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("fine\n", "")
    wait_until_true(lambda: sessions(postgres) == 0)


FORKS = """
import asyncio, os, signal, sys, threading
from oncekey import AsyncOnce, InFlight, Once
url, driver = sys.argv[1:]
once = (Once if driver == "psycopg" else AsyncOnce)(url, cache=0)
loop = asyncio.new_event_loop()

def run(key, here=None):
    if driver == "psycopg":
        return once.run("op", key, lambda attempt: os.getpid())
    async def body(attempt):
        return os.getpid()
    return (here or loop).run_until_complete(once.run("op", key, body))

def sessions():
    pool = once._store._database.pool
    if driver == "psycopg":
        idle = pool._by_process[os.getpid()].idle
        return sorted(pooled.connection.info.backend_pid for pooled in idle)
    return sorted(pooled.connection.get_server_pid() for pooled in pool._by_loop[loop].idle)

me = os.getpid()
assert run("before").value == me
mine = sessions()
for number in range(3):
    pid = os.fork()
    if pid == 0:
        code = 1
        signal.alarm(40)
        try:
            here = asyncio.new_event_loop()
            assert run("before", here).value == me
            assert run(f"child {number}", here).value == os.getpid()
            del once._store._database.pool   # whatever that closes, the parent must not notice
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code) if number == 0 or code else sys.exit()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert run(f"parent {number}").value == me
assert sessions() == mine
if driver == "psycopg":
    once.close()
else:
    loop.run_until_complete(once.close())
    loop.close()
print("fine")
"""


@pytest.mark.parametrize("driver", STORE_DRIVERS)
def test_a_forked_child_opens_its_own_connections(postgres: Postgres, driver: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, postgres.url(), driver],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "fine\n", done.stderr
    wait_until_true(lambda: sessions(postgres) == 0)


def test_a_garbage_collected_store_closes_its_connections(postgres: Postgres) -> None:
    store = PostgresStore(postgres.url())
    store.apply([make_claim("k")])
    assert sessions(postgres) == 1
    del store
    gc.collect()
    wait_until_true(lambda: sessions(postgres) == 0)
