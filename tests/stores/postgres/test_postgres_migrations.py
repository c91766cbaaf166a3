"""Migrations on PostgreSQL: run twice, run at once, refused, and compatible with older releases."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.postgres_adapters import (
    KEEP,
    LEASE,
    STORE_DRIVERS,
    StoreAdapter,
    StoreAdapters,
    fresh_server,
    make_claim,
)
from tests.support.postgres_adapters import make_finish as finish_of
from tests.support.servers import Postgres

from oncekey.core.commands import Claimed, Done, Renew, Replay, SaveStep, Unknown
from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres import psycopg_store, store_base
from oncekey.stores.postgres.queries import Layout, Query, make_migrations, make_queries
from oncekey.stores.postgres.schema import upgrade_script
from oncekey.stores.sql_files import Migration, make_migration

PLAIN = Layout("oncekey")
RING = {"retention": "ring", "ring_slots": 5, "ring_period": "1h"}
KNOWN = make_migrations(PLAIN)
LAST = KNOWN[-1].version
AT_ONCE = 6


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = fresh_server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _empty(postgres: Postgres) -> None:
    postgres.execute("DROP SCHEMA IF EXISTS oncekey CASCADE")


def applied(postgres: Postgres, schema: str = "oncekey") -> list[tuple[Any, ...]]:
    return postgres.execute(
        f"SELECT version, name, compatible FROM {schema}.migrations ORDER BY version"  # noqa: S608
    )


def catalogue(postgres: Postgres) -> list[tuple[Any, ...]]:
    """Everything in the schema that a migration can create, and its settings."""
    return postgres.execute("""
        SELECT c.relkind::text, c.relname, c.reloptions::text, string_agg(
            a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull, ', '
            ORDER BY a.attnum)
        FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
        WHERE c.relnamespace = 'oncekey'::regnamespace GROUP BY 1, 2, 3
        UNION ALL
        SELECT 'function', p.proname, p.prosrc, pg_get_function_arguments(p.oid)
        FROM pg_proc p WHERE p.pronamespace = 'oncekey'::regnamespace
        ORDER BY 1, 2, 4""")


# --- the script ---------------------------------------------------------------------------------


def test_the_migration_script_runs_twice_and_creates_what_the_store_creates(
    postgres: Postgres,
) -> None:
    adapters = StoreAdapters("psycopg")
    adapters.store(postgres.url()).prepare()
    made, steps = catalogue(postgres), applied(postgres)
    assert steps == [(m.version, m.name, m.compatible or m.version) for m in KNOWN]
    postgres.execute("DROP SCHEMA oncekey CASCADE")
    script = postgres.directory / "upgrade.sql"
    script.write_text(upgrade_script(PLAIN, KNOWN), encoding="utf-8")
    script.chmod(0o644)
    psql: list[str | Path] = [
        postgres.bin / "psql",
        "-X",
        "-q",
        "-v",
        "ON_ERROR_STOP=1",
        "-f",
        script,
    ]
    for _ in range(2):
        postgres.user.run([*psql, postgres.url()], postgres.directory)
        assert (catalogue(postgres), applied(postgres)) == (made, steps)
    store = adapters.store(postgres.url(), migrate=False)
    assert store.claim(make_claim("k")).attempt == 1
    adapters.close()


@pytest.mark.parametrize("shape", [{}, RING], ids=["plain", "ring"])
def test_hosts_that_start_at_once_migrate_once(
    adapters: StoreAdapters, postgres: Postgres, shape: dict[str, Any]
) -> None:
    barrier = threading.Barrier(AT_ONCE)
    stores = [adapters.store(postgres.url(), **shape) for _ in range(AT_ONCE)]

    def start(store: StoreAdapter) -> None:
        barrier.wait()
        store.claim(make_claim(f"k{id(store)}"))

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(start, stores))
    assert [row[0] for row in applied(postgres)] == list(range(1, LAST + 1))
    assert postgres.execute("SELECT count(*) FROM oncekey.records") == [(AT_ONCE,)]


def test_a_migration_waits_for_another_hosts_lock(postgres: Postgres) -> None:
    """Even if that takes longer than any of our statements may take."""
    adapters = StoreAdapters("asyncpg")
    store = adapters.store(postgres.url(), statement_timeout="1s", lock_timeout="1s")
    store._database._reply_timeout = 1.0
    with psycopg.connect(postgres.url()) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (PLAIN.seed,))
        waiting = adapters.start(store.prepare)
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'"
        while postgres.execute(query) == [(0,)]:
            assert not waiting.done()
        other.execute("SELECT pg_sleep(1.2)")  # longer than each: the wait is the point
        assert not waiting.done()
    waiting.result(60)
    assert len(applied(postgres)) == LAST
    adapters.close()


def test_a_failing_migration_script_leaves_nothing(
    adapters: StoreAdapters, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Migration(LAST + 1, "bad", "CREATE TABLE oncekey.more (); SELECT no_such_function()")
    monkeypatch.setattr(store_base, "make_migrations", lambda layout: (*KNOWN, bad))
    store = adapters.store(postgres.url())
    with pytest.raises(ConfigurationError, match="no_such_function"):
        store.apply([make_claim("k")])
    assert postgres.execute("SELECT to_regnamespace('oncekey')") == [(None,)]
    monkeypatch.undo()
    assert store.claim(make_claim("k")).attempt == 1  # the connection is still usable


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema", ["Upper Case", 'with "quotes"', "größe-键", "a;b--c", "public", "x" * 63]
)
@pytest.mark.parametrize("shape", [{}, RING], ids=["plain", "ring"])
def test_a_schema_may_have_any_name(postgres: Postgres, schema: str, shape: dict[str, Any]) -> None:
    for driver in STORE_DRIVERS:
        adapters = StoreAdapters(driver)
        now = [3_600_000_000]
        store = adapters.store(postgres.url(), schema=schema, clock=lambda: now[0], **shape)  # noqa: B023
        store.claim(make_claim("k", keep=1, keep_unknown=1))
        now[0] += 4 * 3_600_000_000
        assert store.sweep(10) == 1
        adapters.close()
    postgres.execute(f"DROP SCHEMA {Layout(schema).quoted} CASCADE")
    if schema == "public":
        postgres.execute("CREATE SCHEMA public")


def test_stores_in_two_schemas_are_independent(adapters: StoreAdapters, postgres: Postgres) -> None:
    one, other = (adapters.store(postgres.url(), schema=name) for name in ("oncekey", "Oncekey"))
    one.claim(make_claim("k"))
    assert other.claim(make_claim("k", "another")).attempt == 1
    postgres.execute('DROP SCHEMA "Oncekey" CASCADE')


# --- what is refused ----------------------------------------------------------------------------


def test_another_retention_is_refused_before_anything_is_changed(
    adapters: StoreAdapters, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters.store(postgres.url()).prepare()
    before = catalogue(postgres)
    more = Migration(LAST + 1, "more", "CREATE TABLE oncekey.more ()")
    monkeypatch.setattr(
        store_base, "make_migrations", lambda layout: (*make_migrations(layout), more)
    )
    with pytest.raises(ConfigurationError, match="made for retention 'plain', this store is set"):
        adapters.store(postgres.url(), **RING).prepare()
    assert catalogue(postgres) == before
    monkeypatch.undo()
    postgres.execute("DROP SCHEMA oncekey CASCADE")
    adapters.store(postgres.url(), **RING).prepare()
    with pytest.raises(ConfigurationError, match="made for retention 'ring 5 3600000000'"):
        adapters.store(postgres.url(), **{**RING, "ring_slots": 6}).prepare()
    adapters.store(postgres.url(), **RING).prepare()


def test_tables_of_others_under_our_names_are_refused(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    postgres.execute("CREATE SCHEMA oncekey; CREATE TABLE oncekey.records (colour text)")
    with pytest.raises(ConfigurationError, match="a table of another program"):
        adapters.store(postgres.url()).prepare()
    assert postgres.execute("SELECT to_regclass('oncekey.migrations')") == [(None,)]
    postgres.execute("CREATE TABLE oncekey.migrations (id int, migration text)")
    with pytest.raises(ConfigurationError, match="or of another program"):
        adapters.store(postgres.url()).prepare()


def test_a_migrations_table_changed_by_hand_is_refused(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    adapters.store(postgres.url()).prepare()
    postgres.execute("DELETE FROM oncekey.migrations WHERE version = 2")
    with pytest.raises(ConfigurationError, match="changed by hand"):
        adapters.store(postgres.url()).prepare()


def test_migrate_false_creates_nothing(adapters: StoreAdapters, postgres: Postgres) -> None:
    store = adapters.store(postgres.url(), migrate=False)
    with pytest.raises(ConfigurationError, match=r"lacks tables, functions.*run `oncekey migrate`"):
        store.apply([make_claim("k")])
    assert postgres.execute("SELECT to_regnamespace('oncekey')") == [(None,)]
    adapters.store(postgres.url()).prepare()
    assert store.claim(make_claim("k")).attempt == 1  # and it checks again


# --- the next release ---------------------------------------------------------------------------

NEXT = """
-- compatible: %d
ALTER TABLE {schema}.records ADD COLUMN colour text NOT NULL DEFAULT 'red';
ALTER TABLE {schema}.history ADD COLUMN colour text NOT NULL DEFAULT 'red';
CREATE FUNCTION {schema}.claim_2(p_id uuid) RETURNS text LANGUAGE sql AS $$
    SELECT colour FROM {schema}.records WHERE id = p_id
$$;
"""


def migrate_to_next(postgres: Postgres, *texts: str) -> None:
    """Migrate as a host with newer releases does, while hosts with this one keep running."""
    steps = [
        make_migration(LAST + n, f"next{n}", text.replace("{schema}", PLAIN.quoted))
        for n, text in enumerate(texts, 1)
    ]
    postgres.execute(upgrade_script(PLAIN, steps))


def live(store: StoreAdapter, name: str) -> None:
    """Use every store method, with a takeover, an expiry into the history, and a replay."""
    one = make_claim(name, retry_safe=True, audit=KEEP)
    fence = store.claim(one).fence
    assert store.apply([Renew(one.id, one.owner, fence, LEASE)]) == [Done()]
    assert store.apply([SaveStep(one.id, one.owner, fence, "s", True, b"b")]) == [Done()]
    assert store.apply([finish_of(one, fence)]) == [Done()]
    (replay,) = store.apply([make_claim(name, "another")])
    assert isinstance(replay, Replay)
    store._options.clock.ahead += KEEP + LEASE  # it has expired
    (again,) = store.apply([make_claim(name, "third", retry_safe=True)])
    assert isinstance(again, Claimed)
    assert [record.fence for record in store.history(one.id)] == [fence]
    store._options.clock.ahead += LEASE  # the third has died
    (taken,) = store.apply([make_claim(name, "fourth", retry_safe=True)])
    assert isinstance(taken, Claimed)
    assert taken.taken_over


class Clock:
    ahead = 1_000_000_000_000_000

    def __call__(self) -> int:
        return self.ahead


@pytest.mark.parametrize("shape", [{}, RING], ids=["plain", "ring"])
def test_this_release_works_on_a_compatible_newer_schema(
    adapters: StoreAdapters, postgres: Postgres, shape: dict[str, Any]
) -> None:
    store = adapters.store(postgres.url(), clock=Clock(), **shape)
    live(store, "before")
    fence = store.claim(make_claim("over")).fence
    migrate_to_next(postgres, NEXT % LAST)
    live(store, "after")  # on sessions that have planned everything before
    assert store.apply([finish_of(make_claim("over"), fence)]) == [Done()]
    late = adapters.store(postgres.url(), clock=Clock(), migrate=False, **shape)
    live(late, "new host")
    assert postgres.execute("SELECT DISTINCT colour FROM oncekey.records") == [("red",)]
    assert applied(postgres)[-1] == (LAST + 1, "next1", LAST)


def queries_before_standbys_were_remembered(layout: Layout) -> dict[str, Query]:
    """The queries of a release that has no function settings_2 yet."""
    told: dict[str, Any] = dict.fromkeys(("fsync", "full_page_writes"), "on")
    told |= dict.fromkeys(("attached", "idle_slots", "sightings", "forgotten"))
    told |= {"standby": False, "synchronous_standby_names": "", "now": 0}
    settings, literal = f"{layout.quoted}.settings_2()", f"'{json.dumps(told)}'"
    return {
        name: query._replace(sql=sql, raw=sql.encode())
        for name, query in make_queries(layout).items()
        for sql in [query.sql.replace(settings, literal)]
    }


@pytest.mark.parametrize("shape", [{}, RING], ids=["plain", "ring"])
def test_an_upgrade_beside_a_callers_long_transaction_stops_nobody(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, shape: dict[str, Any]
) -> None:
    """The release of schema 7 runs; one of its callers has a transaction open all the time."""
    adapters = StoreAdapters("psycopg")
    with monkeypatch.context() as older:
        older.setattr(store_base, "make_migrations", lambda layout: make_migrations(layout)[:7])
        older.setattr(psycopg_store, "make_queries", queries_before_standbys_were_remembered)
        store = adapters.store(postgres.url(), clock=Clock(), **shape)
        live(store, "before")
        with psycopg.connect(postgres.url()) as caller:
            caller.execute("SELECT count(*) FROM oncekey.records")
            postgres.execute(upgrade_script(PLAIN, KNOWN[7:]))
            live(store, "beside")
    live(adapters.store(postgres.url(), clock=Clock(), **shape), "after")
    assert applied(postgres)[-1][0] == LAST
    adapters.close()


@pytest.mark.parametrize("known", range(3, LAST))
@pytest.mark.parametrize("shape", [{}, RING], ids=["plain", "ring"])
def test_older_releases_work_on_this_releases_schema(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, known: int, shape: dict[str, Any]
) -> None:
    """They know the migrations up to a number, and call the functions that existed then."""
    adapters = StoreAdapters("psycopg")
    adapters.store(postgres.url(), **shape).prepare()
    monkeypatch.setattr(
        store_base, "make_migrations", lambda layout: make_migrations(layout)[:known]
    )
    live(adapters.store(postgres.url(), clock=Clock(), **shape), "older")
    adapters.close()


def test_a_newer_schema_without_a_compatible_line_is_refused(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    adapters.store(postgres.url()).prepare()
    migrate_to_next(postgres, "CREATE TABLE {schema}.more ()")
    said = f"has oncekey's schema {LAST + 1}, this release knows up to {LAST}; install the release"
    for migrate in (True, False):
        with pytest.raises(ConfigurationError, match=said):
            adapters.store(postgres.url(), migrate=migrate).prepare()


@pytest.mark.parametrize(
    ("first", "second", "works"),
    [(LAST, LAST, True), (LAST, LAST + 1, False), (LAST + 1, LAST, False), (LAST, 0, False)],
)
def test_a_schema_two_versions_ahead_needs_both_to_be_compatible(
    adapters: StoreAdapters, postgres: Postgres, first: int, second: int, works: bool
) -> None:
    adapters.store(postgres.url()).prepare()
    texts = [
        f"-- compatible: {version}\nSELECT 1" if version else "SELECT 1"
        for version in (first, second)
    ]
    migrate_to_next(postgres, *texts)
    store = adapters.store(postgres.url())
    if works:
        assert store.claim(make_claim("k")).attempt == 1
    else:
        with pytest.raises(ConfigurationError, match="install the release"):
            store.prepare()


# --- without functions ----------------------------------------------------------------------------

DROP_FUNCTIONS = """DO $$ DECLARE f record; BEGIN
    FOR f IN SELECT oid::regprocedure AS name FROM pg_proc
        WHERE pronamespace = 'oncekey'::regnamespace
    LOOP EXECUTE 'DROP FUNCTION ' || f.name || ' CASCADE'; END LOOP; END $$"""


def test_portable_claims_use_no_sql_functions(adapters: StoreAdapters, postgres: Postgres) -> None:
    store = adapters.store(postgres.url(), claim="portable")
    store.bind(b"check")
    postgres.execute(DROP_FUNCTIONS)
    claim = make_claim("k", lease=1, keep=1)
    held = store.claim(claim)
    unknown = make_claim("unknown", lease=1, keep=1)
    store.claim(unknown)
    assert store.apply([finish_of(claim, held.fence)]) == [Done()]
    assert isinstance(store.apply([make_claim("unknown", "another")])[0], Unknown)
    assert store.elect(b"t" * 16, LEASE)
    assert len(store.unfinished(0, 10).records) == 1
    assert store.sweep() == 1
    assert store.record(claim.id) is None
    assert store.history(claim.id) == []
