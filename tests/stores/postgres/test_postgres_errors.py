"""The errors that callers get if the server, its limits or its rights prevent a call."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.postgres_adapters import (
    Reach,
    StoreAdapter,
    StoreAdapters,
    caller_pool,
    direct_url,
    fresh_server,
    locked,
    make_claim,
    make_finish,
    through_pgbouncer,
    waiting,
)
from tests.support.postgres_stores import server as shared_server
from tests.support.servers import Postgres
from tests.support.servers.processes import User

from oncekey.core.commands import Claimed, Done, Look
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.stores.postgres import errors
from oncekey.stores.postgres.queries import Layout, make_migrations
from oncekey.testing.contract.engine_case import wait_until_true

SCHEMA = "oncekey"
HBA = "host all secretive 127.0.0.1/32 scram-sha-256\n"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = fresh_server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _empty(postgres: Postgres) -> None:
    postgres.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


def unavailable(adapter: StoreAdapter, match: str) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable, match=match) as raised:
        adapter.apply([make_claim("k")])
    assert not raised.value.final
    return raised.value


# --- who may log in, and to what ----------------------------------------------------------------


def test_a_missing_database_is_a_configuration_error(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    store = adapters.store(postgres.url("nowhere"))
    with pytest.raises(ConfigurationError, match="no such database; create it"):
        store.apply([make_claim("k")])


def test_an_unknown_role_is_a_configuration_error(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    store = adapters.store(postgres.url(user="nobody"))
    with pytest.raises(ConfigurationError, match="refused the login; check user, password"):
        store.apply([make_claim("k")])


def test_a_store_works_once_the_password_is_corrected(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    hba = postgres.data / "pg_hba.conf"
    if HBA not in hba.read_text():
        hba.write_text(HBA + hba.read_text())
        postgres.execute("CREATE ROLE secretive LOGIN SUPERUSER PASSWORD 'right'")
        postgres.configure({})
    where = postgres.url(user="secretive")
    for password in (":wrong", ""):
        store = adapters.store(where.replace("@", f"{password}@"))
        with pytest.raises(ConfigurationError, match="refused the login") as raised:
            store.apply([make_claim("k")])
        assert "wrong@" not in str(raised.value)
    store = adapters.store(where.replace("@", ":right@"))
    assert store.claim(make_claim("k")).attempt == 1


def test_a_password_changed_after_first_use_makes_the_store_unavailable(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    postgres.execute("DROP ROLE IF EXISTS leaving; CREATE ROLE leaving LOGIN SUPERUSER")
    store = adapters.store(postgres.url(user="leaving"))
    store.claim(make_claim("k"))
    postgres.execute("ALTER ROLE leaving NOLOGIN")
    postgres.execute("SELECT pg_terminate_backend(pid, 9000) FROM pg_stat_activity "
                     "WHERE usename = 'leaving'")  # fmt: skip
    with pytest.raises(StoreUnavailable):  # perhaps the end of the old session
        store.apply([make_claim("k")])
    assert not unavailable(store, "refused the login").ambiguous


def test_an_invalid_address_is_refused(adapters: StoreAdapters) -> None:
    with pytest.raises(ConfigurationError) as raised:
        adapters.store("postgresql://postgres:hidden@[::/x").apply([make_claim("k")])
    assert "hidden" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="neither an address nor"):
        adapters.store(object())


def test_a_server_without_free_connections_is_unavailable(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    postgres.execute("DROP ROLE IF EXISTS few; CREATE ROLE few LOGIN SUPERUSER")
    store = adapters.store(postgres.url(user="few"))
    store.prepare()
    store.close()
    postgres.execute("ALTER ROLE few NOSUPERUSER CONNECTION LIMIT 1")
    # The server ends a session some time after its client has closed it.
    left = "SELECT 1 FROM pg_stat_activity WHERE usename = 'few'"
    wait_until_true(lambda: not postgres.execute(left))
    with psycopg.connect(postgres.url(user="few")):
        store = adapters.store(postgres.url(user="few"))
        assert not unavailable(store, "no connection left; raise max_connections").ambiguous


def test_an_undeclared_pooler_is_a_configuration_error(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    with ExitStack() as stack:
        address, _ = through_pgbouncer(adapters, postgres, stack)
        with pytest.raises(ConfigurationError, match=r"a pooler .* between; set pooler=true"):
            adapters.store(address).apply([make_claim("k")])


# --- rights -------------------------------------------------------------------------------------


@pytest.fixture
def poor(postgres: Postgres) -> str:
    """The URL of a role that may do nothing yet."""
    postgres.execute("DROP OWNED BY poor; DROP ROLE poor") if postgres.execute(
        "SELECT 1 FROM pg_roles WHERE rolname = 'poor'"
    ) else None
    postgres.execute("CREATE ROLE poor LOGIN")
    return postgres.url(user="poor")


def test_a_role_that_may_not_create_tables_is_a_configuration_error(
    adapters: StoreAdapters, poor: str
) -> None:
    with pytest.raises(ConfigurationError, match="may not make oncekey's tables; run `oncekey mig"):
        adapters.store(poor).apply([make_claim("k")])
    with pytest.raises(ConfigurationError, match=r"lacks tables.*`oncekey migrate`"):
        adapters.store(poor, migrate=False).apply([make_claim("k")])


def test_the_error_names_the_rights_a_role_lacks(
    adapters: StoreAdapters, postgres: Postgres, poor: str
) -> None:
    adapters.store(postgres.url()).prepare()
    with pytest.raises(ConfigurationError, match="grant it USAGE on the schema"):
        adapters.store(poor).apply([make_claim("k")])
    postgres.execute(f"GRANT USAGE ON SCHEMA {SCHEMA} TO poor")
    with pytest.raises(ConfigurationError, match="SELECT, INSERT, UPDATE, DELETE"):
        adapters.store(poor).apply([make_claim("k")])
    postgres.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO poor")
    store = adapters.store(poor)
    assert not unavailable(store, "permission denied for table records").ambiguous
    postgres.execute(
        f"GRANT INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA {SCHEMA} TO poor"
    )
    assert store.claim(make_claim("k")).attempt == 1  # the message was right: no more is needed
    store.bind(b"check")
    assert store.sweep(10) == 0
    assert store.elect(b"me", 1_000_000)


def test_a_ring_is_swept_with_the_rights_the_message_names(
    adapters: StoreAdapters, postgres: Postgres, poor: str
) -> None:
    ring = {"retention": "ring", "ring_slots": 4, "ring_period": "1h"}
    adapters.store(postgres.url(), **ring).prepare()
    postgres.execute(
        f"GRANT USAGE ON SCHEMA {SCHEMA} TO poor; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE "
        f"ON ALL TABLES IN SCHEMA {SCHEMA} TO poor"
    )
    now = [3_600_000_000]
    store = adapters.store(poor, **ring, clock=lambda: now[0])
    store.claim(make_claim("k", keep=1, keep_unknown=1))
    now[0] += 3 * 3_600_000_000
    assert store.sweep(10) == 1


# --- a server that takes no writes --------------------------------------------------------------


def test_a_read_only_database_is_reported(adapters: StoreAdapters, postgres: Postgres) -> None:
    """An operator may have set it, for instance to switch to another server; it is respected."""
    name = f"closed_{adapters.driver}"
    url = postgres.create_database(name)
    postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    assert not unavailable(adapters.store(url), "read-only.*connect to the primary").ambiguous
    postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
    store = adapters.store(url)
    fence = store.claim(make_claim("k")).fence
    postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    reopened = adapters.store(url)
    finish = make_finish(make_claim("k"), fence)
    with pytest.raises(StoreUnavailable, match="read-only") as raised:
        reopened.apply([finish])
    assert not raised.value.ambiguous
    postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
    assert reopened.apply([finish]) == [Done()]  # on a new session: the old one was given up


# --- limits -------------------------------------------------------------------------------------


def test_an_exhausted_pool_is_reported(adapters: StoreAdapters, postgres: Postgres) -> None:
    store = adapters.store(
        postgres.url(), pool_size=1, pool_timeout="200ms", lock_timeout="120s",
        statement_timeout="120s", call_timeout="120s",
    )  # fmt: skip
    store.prepare()
    with locked(postgres, f"{SCHEMA}.records"):
        blocked = adapters.start(store.apply, [make_claim("first")])
        wait_until_true(lambda: waiting(postgres, SCHEMA) == 1)
        assert not unavailable(store, "no connection became free within pool_timeout").ambiguous
    assert isinstance(blocked.result(60)[0], Claimed)
    assert store.claim(make_claim("k")).attempt == 1


@pytest.mark.parametrize("reach", [direct_url, caller_pool, through_pgbouncer])
def test_statement_and_lock_timeout_apply_to_every_call(
    adapters: StoreAdapters, postgres: Postgres, reach: Reach
) -> None:
    adapters.store(postgres.url()).prepare()
    calls: list[Callable[[StoreAdapter], Any]] = [
        lambda store: store.apply([make_claim("k")]),
        lambda store: store.apply([Look(make_claim("k").id)]),
        lambda store: store.apply([make_finish(make_claim("k"), 1)]),
        lambda store: store.sweep(10),
        lambda store: store.history(make_claim("k").id),
        lambda store: store.bind(b"check"),
        lambda store: store.elect(b"me", 1),
    ]
    with ExitStack() as stack:
        address, options = reach(adapters, postgres, stack)
        calm = {"call_timeout": "60s", **options}  # a busy server may answer late
        impatient = {"statement_timeout": "50s", "lock_timeout": "30ms", **calm}
        hurried = {"statement_timeout": "30ms", "lock_timeout": "50s", **calm}
        for limits, said in ((impatient, "than lock_timeout"), (hurried, "than statement_timeout")):
            store = adapters.store(address, **limits)
            store.store._ready = True  # on a busy machine that would take too long as well
            with locked(
                postgres, ", ".join(f"{SCHEMA}.{t}" for t in ("records", "history", "meta"))
            ):
                for call in calls:
                    with pytest.raises(StoreUnavailable, match=said) as raised:
                        call(store)
                    assert not raised.value.ambiguous
            assert isinstance(eventually(store)[0], Claimed)  # nothing is left behind
            store.close()
        if reach is caller_pool:
            assert shown(adapters, address) == "0"  # the caller's sessions are as they were


def eventually(store: StoreAdapter) -> list[Any]:
    """Repeat a claim that may exceed the limits once or twice."""
    for _ in range(50):
        try:
            replies: list[Any] = store.apply([make_claim("k")])
        except StoreUnavailable:
            continue
        return replies
    raise AssertionError("it never came through")


def shown(adapters: StoreAdapters, pool: Any) -> str:
    if adapters.loop is None:
        with pool.connection() as connection:
            return str(connection.execute("SHOW statement_timeout").fetchone()[0])
    return str(adapters.loop.run(pool.fetchval("SHOW statement_timeout")))


def test_an_exhausted_callers_pool_is_reported(adapters: StoreAdapters, postgres: Postgres) -> None:
    with ExitStack() as stack:
        pool, _ = caller_pool(adapters, postgres, stack)
        store = adapters.store(pool, pool_timeout="200ms")
        store.prepare()
        if adapters.loop is None:
            with pool.connection(), pool.connection():
                error = unavailable(store, "the pool that was given has no connection")
        else:
            held = [adapters.loop.run(take(pool)) for _ in range(2)]
            error = unavailable(store, "the pool that was given had no connection within pool_tim")
            for connection in held:
                adapters.loop.run(pool.release(connection))
        assert not error.ambiguous
        assert store.claim(make_claim("k")).attempt == 1
        store.close()
        assert shown(adapters, pool) == "0"  # it stays open


async def take(pool: Any) -> Any:
    return await pool.acquire()


# --- the disk -----------------------------------------------------------------------------------


def test_a_full_disk(adapters: StoreAdapters, tmp_path: Path) -> None:
    """The database is on a file system of 24 MB. The server's log is elsewhere: it would stop."""
    base = shared_server().base
    server = Postgres(base)
    small = server.directory / "small"
    mount = f'mount -t tmpfs -o size=24m,mode=0777 tmpfs "{small}" && exec unshare '
    mount += '--user --map-user=1000 --map-group=1000 -- "$@"'
    outer = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    server._copy_template()
    server.user.make_directory(small)
    tried = User((*server.user.wrapper, *outer), server.user.owner)
    try:
        tried.run(["true"], server.directory)
    except Exception:
        shutil.rmtree(server.directory)
        pytest.skip("no private mounts here")
    server.user = tried
    with server:
        server.execute(f"CREATE TABLESPACE small LOCATION '{small}'")
        server.execute("CREATE DATABASE small TABLESPACE small")
        store = adapters.store(server.url("small"))
        kept = make_claim("kept")
        fence = store.claim(kept).fence
        full, error = fill(store)
        assert "disk is full; make room" in str(error)
        assert not error.ambiguous
        assert store.record(make_claim(f"{full} 0").id) is None  # of that batch, nothing
        assert store.record(make_claim(f"{full - 1} 199").id) is not None
        assert store.apply([make_finish(kept, fence)]) == [Done()]  # there is room on its page
        store.close()


def fill(store: StoreAdapter) -> tuple[int, StoreUnavailable]:
    """Claim until the disk is full; returns the number of the failed batch and its error."""
    for n in range(200):
        try:
            store.apply([make_claim(f"{n} {i}", scope="s" * 900) for i in range(200)])
        except StoreUnavailable as error:
            return n, error
    raise AssertionError("the disk was never full")


# --- one command's fault --------------------------------------------------------------------------


def test_a_faulty_command_is_not_a_store_failure(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    store = adapters.store(postgres.url())
    with pytest.raises(Exception, match=r"0x00|NUL|invalid byte") as raised:
        store.apply([make_claim("good"), make_claim("bad", scope="a\0b")])
    assert not isinstance(raised.value, StoreUnavailable)
    assert store.record(make_claim("good").id) is None
    assert store.claim(make_claim("good")).attempt == 1


def test_each_of_our_sqlstates_has_one_meaning() -> None:
    codes = [value for value in vars(errors).values() if re.fullmatch(r"OK\d+", str(value))]
    assert len(codes) == len(set(codes))
    raised = {
        code
        for step in make_migrations(Layout("s"))
        for code in re.findall(r"ERRCODE = '(OK\d+)'", step.sql)
    }
    assert raised <= set(codes)

    class Ended(Exception):
        sqlstate = errors.KEY_ENDED

    assert "pooler" not in errors.describe(Ended("another owner has ended the key"))
