"""Listing unfinished records on PostgreSQL: page by page, by index, without blocking others.

Which records are listed is tested by the contract suite (oncekey.testing.contract.unfinished_list).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.postgres_adapters import (
    StoreAdapter,
    StoreAdapters,
    fresh_server,
    make_claim,
    make_finish,
    token,
)
from tests.support.servers import Postgres

from oncekey.core.commands import Done, Release, SaveStep
from oncekey.stores.memory import MemoryStore
from oncekey.stores.postgres import asyncpg_store, psycopg_store, unfinished
from oncekey.stores.postgres.queries import Layout, make_migrations
from oncekey.stores.postgres.schema import upgrade_script

HOUR = 3_600_000_000
ALL = 10_000
LOOKS = 7
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "ring": {"retention": "ring", "ring_slots": 5, "ring_period": "1h"},
}
BEFORE = 4  # the last schema without the index


class Clock:
    def __init__(self) -> None:
        self.now = 500_000 * HOUR

    def __call__(self) -> int:
        return self.now


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = fresh_server({"autovacuum": False, "max_wal_size": "4GB"})
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _empty(postgres: Postgres) -> None:
    postgres.execute("DROP SCHEMA IF EXISTS oncekey CASCADE")


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SHAPES[request.param]


def live(clock: Clock, *stores: Any) -> None:
    """Send forty batches of five claims to all stores, in every slot. Of each batch one is
    finished, one freed, one freed after a step, and two stay open: one of them stays undecided
    for an hour and one for ever."""
    for number in range(40):
        claims = [make_claim(f"{number}-{n}", keep=HOUR) for n in range(5)]
        claims[3] = claims[3]._replace(keep_unknown=HOUR)
        for store in stores:
            fences = [reply.fence for reply in store.apply(claims)]
            held = [(one.id, one.owner, fence) for one, fence in zip(claims, fences, strict=True)]
            step = SaveStep(*held[2], "pay", False, b"intent")
            ends = [make_finish(claims[0], fences[0]), Release(*held[1]), step, Release(*held[2])]
            assert store.apply(ends) == [Done()] * 4
        clock.now += HOUR // 20


class Counted(unfinished.UnfinishedPages):
    """Counts its pages."""

    pages = 0

    def page(self) -> Any:
        self.pages += 1
        Counted.last = self
        return super().page()

    last: Counted


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    """Pages of a few rows."""
    monkeypatch.setattr(unfinished, "PAGE_ROWS_MAX", LOOKS)
    for module in (psycopg_store, asyncpg_store):
        monkeypatch.setattr(module, "UnfinishedPages", Counted)
    return Counted


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 60, ALL])
def test_s10_pages_list_the_same_records_as_a_single_read(
    adapters: StoreAdapters,
    postgres: Postgres,
    shape: dict[str, Any],
    counted: type[Counted],
    limit: int,
) -> None:
    clock = Clock()
    store, memory = adapters.store(postgres.url(), clock=clock, **shape), MemoryStore(clock=clock)
    live(clock, store, memory)
    after, seen = 0, 0
    while True:
        found = store.unfinished(after, limit)
        assert found == memory.unfinished(after, limit)
        if len(found.records) < limit:
            break
        after = found.records[-1].fence
        seen += len(found.records)
    # Two hours have passed. Half of those freed halfway have expired, and the one that was freed an
    # hour ago; half of those that stay undecided for an hour; none of the others.
    assert seen + len(found.records) == (20 - 1) + 20 + 40
    store.unfinished(0, ALL)
    assert counted.last.pages == 200 // 10 + 1  # no batch is cut apart, so each has two of them


def test_pages_of_a_listing_share_one_clock_reading(
    adapters: StoreAdapters,
    postgres: Postgres,
    counted: type[Counted],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So nothing claimed during the listing is before the time that it returns."""
    store = adapters.store(postgres.url(), statement_timeout="1m")
    store.apply([make_claim(str(n)) for n in range(LOOKS)])
    query = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    read: list[int] = []

    def page(self: Any) -> Any:
        read.append(postgres.execute(query)[0][0])
        return Counted.page(self)

    for module in (psycopg_store, asyncpg_store):
        monkeypatch.setattr(module, "UnfinishedPages", type("Told", (Counted,), {"page": page}))
    found = store.unfinished(0, ALL)
    assert len(read) == 2
    assert read[0] <= found.now < read[1]


def test_s9_a_claim_between_two_pages_is_listed(
    postgres: Postgres, counted: type[Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the store's only connection, which the listing releases after each page."""
    adapters = StoreAdapters("psycopg")
    store = adapters.store(postgres.url(), pool_size=1, pool_timeout="1s")
    store.apply([make_claim(str(n)) for n in range(LOOKS)])

    class Between(Counted):
        def page(self) -> Any:
            if self.pages == 1:
                store.claim(make_claim("between"))
            return super().page()

    monkeypatch.setattr(psycopg_store, "UnfinishedPages", Between)
    records = store.unfinished(0, ALL).records
    assert [record.id for record in records][LOOKS:] == [token("between")]
    adapters.close()


def test_listing_neither_waits_for_locks_nor_blocks_others(
    adapters: StoreAdapters, postgres: Postgres, shape: dict[str, Any]
) -> None:
    """Beside a transaction that writes a listed row, and inside one that stays open."""
    store = adapters.store(postgres.url(), lock_timeout="1s", **shape)
    one, two = make_claim("one"), make_claim("two")
    fences = [reply.fence for reply in store.apply([one, two])]
    with psycopg.connect(postgres.url()) as other:
        other.execute("UPDATE oncekey.records SET state = 2, finished_at = 1")
        found = store.unfinished(0, ALL)
        assert {record.id for record in found.records} == {one.id, two.id}
        other.rollback()
        query = store._database._queries["unfinished"].sql
        cursor = psycopg.RawCursor(other)
        assert len(cursor.execute(query.encode(), (None, 0, ALL, ALL)).fetchall()) == 2
        assert store.apply([make_finish(one, fences[0])]) == [Done()]
        assert store.claim(make_claim("three")).attempt == 1
        assert store.sweep(ALL) == 0
        assert other.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


# --- the index ------------------------------------------------------------------------------------

ROWS = 50_000


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_s10_listing_reads_only_recent_claims_and_one_page_at_most(
    postgres: Postgres, shape: dict[str, Any], mode: str
) -> None:
    """The table has thousands of blocks, and was filled just now, without a vacuum or analyze."""
    adapters = StoreAdapters("psycopg")
    clock = Clock()
    store = adapters.store(postgres.url(), clock=clock, **shape)
    store.prepare()
    slots = shape.get("ring_slots", 1)
    postgres.execute(
        f"""INSERT INTO oncekey.records
        SELECT gen_random_uuid(), gen_random_uuid(), n, n, n, {clock.now}, {HOUR}, 0, {HOUR},
            {clock.now}, 1, 1, 2, n % {slots}, false,
            '', 's', 'o', '', '', repeat('x', 100)::bytea, ''
        FROM generate_series(1, {ROWS}) n"""  # noqa: S608
    )
    store.apply([make_claim(str(n)) for n in range(50)])
    settings = {"plan_cache_mode": mode, **store._options.planner_settings}
    options = " ".join(f"-c {n}={v}" for n, v in settings.items() if n.startswith(("plan", "ena")))
    query = store._database._queries["unfinished"].sql
    with psycopg.connect(postgres.url(), options=options) as session:
        session.execute(f"PREPARE listing AS {query}".encode())

        def blocks_of(sql: str) -> int:
            explained = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {sql}"
            ((result,),) = session.execute(explained.encode()).fetchall()
            plan = result[0]["Plan"]
            return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

        def listing_of(after: int) -> int:
            return blocks_of(
                f"EXECUTE listing({clock.now}, {after}, 100, {unfinished.PAGE_ROWS_MAX})"
            )

        assert listing_of(clock.now - 1) < 500  # fifty rows, each once more by its id
        assert listing_of(0) < unfinished.PAGE_ROWS_MAX / 5
        assert blocks_of("SELECT count(body) FROM oncekey.records") > 4_000
    adapters.close()


def indexes(postgres: Postgres) -> dict[str, bool]:
    """The indexes on the fence, and whether each is valid."""
    rows = postgres.execute("""
        SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE c.relnamespace = 'oncekey'::regnamespace
            AND pg_get_indexdef(i.indexrelid, 1, true) LIKE '%fence%' AND i.indnatts = 1
    """)
    return dict(rows)


def make_older(postgres: Postgres, shape: dict[str, Any]) -> list[str]:
    """Create an older release's schema with an unfinished key; returns the tables of its rows."""
    slots = shape.get("ring_slots", 1)
    layout = Layout("oncekey", slots, HOUR) if slots > 1 else Layout("oncekey")
    postgres.execute(upgrade_script(layout, make_migrations(layout)[:BEFORE]))
    postgres.execute(
        """INSERT INTO oncekey.records VALUES (
            gen_random_uuid(), gen_random_uuid(), 1, 1, 1, 0, 1, 0, 9e18, 9e18,
            1, 0, 1, 0, false, '', '', '', '', '', '', '')"""
    )
    if slots == 1:
        return ["records"]
    return [*(f"records_{n}" for n in range(slots)), "records_kept"]


def test_records_of_an_older_release_are_listed(
    adapters: StoreAdapters, postgres: Postgres, shape: dict[str, Any]
) -> None:
    make_older(postgres, shape)
    assert len(adapters.store(postgres.url(), **shape).unfinished(0, ALL).records) == 1
    made = indexes(postgres)
    assert made["records_fence"]
    assert all(made.values())


def test_the_fence_index_may_be_created_concurrently_beforehand(
    postgres: Postgres, shape: dict[str, Any]
) -> None:
    """As the comment in its migration says; the index is not built a second time."""
    tables = make_older(postgres, shape)
    with psycopg.connect(postgres.url(), autocommit=True) as by_hand:
        for table in tables:
            name = f"{table}_fence"
            sql = f"CREATE INDEX CONCURRENTLY {name} ON oncekey.{table} ((fence + 0))"
            by_hand.execute(sql.encode())
    made = indexes(postgres)
    adapters = StoreAdapters("psycopg")
    store: StoreAdapter = adapters.store(postgres.url(), **shape)
    assert len(store.unfinished(0, ALL).records) == 1
    assert indexes(postgres) == {**made, "records_fence": True}
    adapters.close()
