"""Statements use indexes, take few round trips, and write no more than necessary.

The tables have 200 000 rows, with ONCEKEY_SOAK=1 a million. The plans are those the server really
used, also inside its functions: auto_explain writes them into its log.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.postgres_adapters import (
    KEEP,
    LEASE,
    StoreAdapter,
    StoreAdapters,
    fresh_server,
    make_claim,
    make_finish,
)
from tests.support.servers import Postgres

from oncekey.core.commands import (
    Busy,
    Claim,
    Claimed,
    Done,
    Look,
    Mismatched,
    Release,
    Renew,
    Replay,
    Resolve,
    SaveStep,
    Unknown,
)
from oncekey.core.record import State
from oncekey.stores.postgres.options import CLAIMS

SOAK = bool(os.environ.get("ONCEKEY_SOAK"))
ROWS = 1_000_000 if SOAK else 200_000
HOUR = 3_600_000_000
NOW = 500_000 * HOUR
SLOTS = 8
SETTINGS: dict[str, Any] = {
    "shared_preload_libraries": "auto_explain,pg_stat_statements",
    "auto_explain.log_min_duration": -1,
    "auto_explain.log_nested_statements": True,
    "pg_stat_statements.track": "top",
    "autovacuum": False,
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"schema": "plain"},
    "ring": {
        "schema": "ring", "retention": "ring", "ring_slots": SLOTS, "ring_period": "6h",
    },
}  # fmt: skip

KEPT = 24 * HOUR


def fill(postgres: Postgres, schema: str, rows: range, slots: int = 1) -> None:
    """Insert finished keys by number, in every slot, none of them due."""
    postgres.execute(
        f"""INSERT INTO {schema}.records
        SELECT lpad(to_hex(n), 32, '0')::uuid, gen_random_uuid(), n, {NOW}, {NOW}, {NOW}, {KEPT},
            0, {KEPT}, {NOW + KEPT} + n, 1, 1, 2, n % {slots},
            false, '\\x0166', 's', 'o', '', '', '', ''
        FROM generate_series({rows[0]}, {rows[-1]}) n"""  # noqa: S608
    )


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = fresh_server(SETTINGS)
    server.execute("CREATE EXTENSION pg_stat_statements")
    yield server
    server.close()


@pytest.fixture
def adapters() -> Iterator[StoreAdapters]:
    adapters = StoreAdapters("psycopg")
    yield adapters
    adapters.close()


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


@pytest.fixture(scope="module")
def fillings() -> set[str]:
    """The layouts whose table was filled."""
    return set()


@pytest.fixture(params=SHAPES)
def filled(
    request: pytest.FixtureRequest, postgres: Postgres, adapters: StoreAdapters, fillings: set[str]
) -> dict[str, Any]:
    """The options of a store whose table was filled."""
    shape = SHAPES[request.param]
    if request.param not in fillings:
        adapters.store(postgres.url(), **shape).prepare()
        slots = SLOTS if "retention" in shape else 1
        fill(postgres, shape["schema"], rows=range(1, ROWS + 1), slots=slots)
        postgres.execute(f"ANALYZE {shape['schema']}.records")
        fillings.add(request.param)
    return shape


# --- plans ----------------------------------------------------------------------------------------


def stored(number: int, owner: str = "owner", **changes: Any) -> Claim:
    """A claim of one of the rows that fill the table."""
    return make_claim("", owner, **changes)._replace(id=number.to_bytes(16, "big"))


def every_verb(store: StoreAdapter, name: str, clock: Clock) -> None:
    """Call every store method, once for each kind of decision."""
    asked = [make_claim(f"{name} {n}", retry_safe=n % 2 == 0) for n in range(20)]
    fresh = [claim._replace(keep_unknown=KEEP) for claim in asked]
    fences = [reply.fence for reply in store.apply(fresh)]
    held = dict(zip((claim.id for claim in fresh), fences, strict=True))
    assert {type(r) for r in store.apply([stored(n) for n in range(1, 40)])} == {Replay}
    different = stored(40)._replace(fingerprint=b"\x01other")
    busy = fresh[0]._replace(owner=b"another".ljust(16))
    assert [type(r) for r in store.apply([different, busy])] == [Mismatched, Busy]
    one, two, three, *others = fresh
    mixed = [
        *(make_finish(claim, held[claim.id], b"x" * 300) for claim in others[:10]),
        *(make_claim(f"{name} more {n}") for n in range(10)),
    ]
    assert {type(r) for r in store.apply(mixed)} == {Done, Claimed}
    assert store.apply([Renew(one.id, one.owner, held[one.id], LEASE)]) == [Done()]
    step = SaveStep(two.id, two.owner, held[two.id], "s", True, b"b")
    release = Release(three.id, three.owner, held[three.id])
    assert store.apply([step, release]) == [Done(), Done()]
    store.apply([Look(claim.id) for claim in fresh])
    assert {record.id for record in store.unfinished(clock.now - 1, 100).records} > {one.id, two.id}
    clock.now += 2 * LEASE
    late = [claim._replace(owner=b"late".ljust(16)) for claim in others[10:]]
    replies = store.apply(late)
    assert {type(reply) for reply in replies} == {Claimed, Unknown}  # taken over, or given up
    unsure = next(reply.record for reply in replies if isinstance(reply, Unknown))
    resolve = Resolve(unsure.id, unsure.fence, State.SUCCEEDED, b"", "by hand")
    assert store.apply([resolve]) == [Done()]
    clock.now += KEEP  # they expire, and go to the history
    again = [claim._replace(owner=b"again".ljust(16), audit=HOUR) for claim in others]
    assert {type(reply) for reply in store.apply(again)} == {Claimed}
    store.history(others[0].id)
    store.sweep(100)


def plans(postgres: Postgres, run: Callable[[], object]) -> str:
    """The plans, from the server's log, of everything that runs meanwhile."""
    postgres.configure({"auto_explain.log_min_duration": 0})
    path = postgres.directory / "log"
    before = path.stat().st_size
    run()
    postgres.configure({"auto_explain.log_min_duration": -1})
    with path.open("rb") as log:
        log.seek(before)
        return log.read().decode()


WAYS: dict[str, dict[str, Any]] = {
    "usual": {},
    "generic": {"options": "-c plan_cache_mode=force_generic_plan"},
    "wrapped": {"pooler": True},
    "row_lock": {"claim": "row_lock"},
    "advisory_lock": {"claim": "advisory_lock"},
    "portable": {"claim": "portable"},
}


@pytest.mark.parametrize(
    ("filled", "way"),
    [(shape, way) for shape in SHAPES for way in WAYS if (shape, way) != ("ring", "portable")],
    indirect=["filled"],
)
def test_no_statement_reads_the_whole_table(
    adapters: StoreAdapters, postgres: Postgres, filled: dict[str, Any], way: str
) -> None:
    options = {**filled, **WAYS[way]}
    url = postgres.url()
    if "options" in options:
        url += "?options=" + options.pop("options").replace(" ", "%20").replace("=", "%3D")
    clock = Clock()
    store = adapters.store(url, clock=clock, **options)
    store.prepare()
    said = plans(postgres, lambda: every_verb(store, way, clock))
    table = re.compile(r"Seq Scan on (?:\w+\.)?(records|history)\w*")
    allowed = re.compile(r"LIMIT 100001\) counted")  # of one slot, up to a point, when it is due
    scans = Counter(
        found[0] for entry in entries(said) if not allowed.search(entry)
        for found in table.finditer(entry)
    )  # fmt: skip
    assert scans == {}, next(entry for entry in entries(said) if table.search(entry))
    found = set(re.findall(r"Index (?:Only )?Scan using (\w+) on", said))
    prefix = r"records(_\d+)?_" if "retention" in filled else "records_"
    assert any(re.fullmatch(prefix + r"(id_slot_)?pkey\d*", name) for name in found), found
    assert any("sweep" in name for name in found), found
    assert any(name.endswith(("_fence", "_expr_idx")) for name in found), found
    assert any(name.startswith("history") for name in found), found


def entries(log: str) -> list[str]:
    """The log's entries: a line without a tab begins one."""
    return re.split(r"\n(?=\S)", log)


def test_a_sequential_scan_would_be_detected(postgres: Postgres, filled: dict[str, Any]) -> None:
    query = f"SELECT count(*) FROM {filled['schema']}.records WHERE body = 'x'"  # noqa: S608
    said = plans(postgres, lambda: postgres.execute(query))
    assert re.search(r"Seq Scan on (ring\.)?records", said)


def test_a_session_opened_on_an_empty_table_uses_indexes_later(postgres: Postgres) -> None:
    """It keeps the plans it made when reading the whole table was the fastest way."""
    adapters = StoreAdapters("psycopg")
    clock = Clock()
    store = adapters.store(postgres.url(), schema="growing", clock=clock)
    store.prepare()
    fill(postgres, "growing", rows=range(1, 50))
    for n in range(7):  # often enough for plans to be kept
        every_verb(store, f"early {n}", clock)
    fill(postgres, "growing", rows=range(50, 20_000))
    said = plans(postgres, lambda: every_verb(store, "late", clock))
    assert not re.search(r"Seq Scan on (growing\.)?(records|history)", said)
    assert "Index Scan using records_pkey on" in said
    adapters.close()
    postgres.execute("DROP SCHEMA growing CASCADE")


# --- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_a_finish_is_a_heap_only_update(
    adapters: StoreAdapters, postgres: Postgres, shape: str
) -> None:
    """Ten thousand lifecycles in mixed batches, with answers of 300 bytes: the updates are
    heap-only. The hardest case is a batch that finishes all that another one claimed."""
    store = adapters.store(postgres.url(), **{**SHAPES[shape], "schema": f"hot_{shape}"})
    usual = make_claim("", scope="acct_12345", label="charge")
    fresh: list[Claim] = []
    fences: list[int] = []
    for n in range(101):
        finishes = [
            make_finish(claim, fence, os.urandom(300))
            for claim, fence in zip(fresh, fences, strict=True)
        ]
        fresh = [usual._replace(id=os.urandom(16)) for _ in range(100 if n < 100 else 0)]
        replies = store.apply([*fresh, *finishes])
        fences = [reply.fence for reply in replies[: len(fresh)]]
        assert replies[len(fresh) :] == [Done()] * len(finishes)
    store.close()
    query = """SELECT sum(n_tup_upd), sum(n_tup_hot_upd) FROM pg_stat_user_tables
               WHERE schemaname = %s AND relname LIKE 'records%%'"""
    rows: list[tuple[Any, ...]] = []
    while not rows or rows[0][0] < 10_000:  # reported by the session when it ends
        rows = postgres.execute(query, (f"hot_{shape}",))
    ((updates, hot),) = rows
    assert updates == 10_000
    assert hot / updates >= 0.98, f"{hot} of {updates}"
    # All claims of a batch have one fence: found by it, each finish would read the whole batch.
    query = """SELECT sum(idx_scan), sum(idx_tup_read) FROM pg_stat_user_indexes
               WHERE schemaname = %s AND relname LIKE 'records%%'
                   AND position('fence' IN pg_get_indexdef(indexrelid)) > 0"""
    assert postgres.execute(query, (f"hot_{shape}",)) == [(0, 0)]
    postgres.execute(f"DROP SCHEMA hot_{shape} CASCADE")


def wal_bytes(postgres: Postgres, run: Callable[[], None]) -> int:
    """The bytes of log that `run` makes the server write, at the least of three times.

    The first may do others' work: a page that is read for the first time after a write has its
    hints set and dead versions pruned. And every 15 s the background writer logs who is running.
    """
    lsn = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
    least: list[int] = []
    for _ in range(3):
        before = postgres.execute(lsn)[0][0]
        run()
        least.append(int(postgres.execute(lsn)[0][0] - before))
    return min(least)


@pytest.mark.parametrize(
    ("filled", "claim"),
    [(shape, how) for shape in SHAPES for how in CLAIMS if (shape, how) != ("ring", "portable")],
    indirect=["filled"],
)
def test_i7_replays_and_rejections_write_nothing(
    adapters: StoreAdapters, postgres: Postgres, filled: dict[str, Any], claim: str
) -> None:
    clock = Clock()
    store = adapters.store(postgres.url(), clock=clock, claim=claim, **filled)
    held = make_claim(f"wal {claim}")
    store.claim(held)
    gone = make_claim(f"wal gone {claim}")
    store.claim(gone)
    busy, unsure = (one._replace(owner=b"another".ljust(16)) for one in (held, gone))
    clock.now += 2 * LEASE
    assert isinstance(store.apply([unsure])[0], Unknown)
    clock.now -= 2 * LEASE
    different = stored(3)._replace(fingerprint=b"\x01other")
    commands = [*(stored(n) for n in range(100, 300)), busy, unsure, different, Look(held.id)]

    def ask() -> None:
        kinds = Counter(type(reply) for reply in store.apply(commands))
        assert (kinds[Replay], kinds[Busy], kinds[Unknown], kinds[Mismatched]) == (200, 1, 1, 1)
        assert store.unfinished(clock.now - 1, 100).records

    ask()
    assert wal_bytes(postgres, ask) == 0
    written = wal_bytes(postgres, lambda: claim_anything(store))
    assert written > 0  # the measurement works


def claim_anything(store: StoreAdapter) -> None:
    store.claim(make_claim("")._replace(id=os.urandom(16)))


# --- round trips ----------------------------------------------------------------------------------


def calls(postgres: Postgres, run: Callable[[], object]) -> int:
    """How many statements reach the server, without the one that reads the count."""
    postgres.execute("SELECT pg_stat_statements_reset()")
    run()
    query = (
        "SELECT sum(calls) FROM pg_stat_statements WHERE query NOT LIKE '%%pg_stat_statements%%'"
    )
    return int(postgres.execute(query, ())[0][0] or 0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_number_of_statements_per_store_method(postgres: Postgres, shape: str, driver: str) -> None:
    adapters = StoreAdapters(driver)
    store = adapters.store(postgres.url(), **{**SHAPES[shape], "schema": f"trips_{shape}"})
    store.prepare()
    claims = [make_claim(f"{driver} {n}") for n in range(50)]
    fences: list[int] = []

    def count(*commands: object) -> int:
        return calls(postgres, lambda: store.apply(commands))

    def claim_all() -> None:
        fences.extend(reply.fence for reply in store.apply(claims))

    assert calls(postgres, claim_all) == 1  # a batch of claims
    finishes = [make_finish(c, fence) for c, fence in zip(claims, fences, strict=True)]
    more = [make_claim(f"{driver} more {n}") for n in range(50)]
    assert count(*finishes[:25], *more) == 1  # of claims and finishes
    assert count(make_claim(f"{driver} alone")) == 1
    assert count(finishes[25]) == 1
    assert count(claims[0]._replace(owner=b"another".ljust(16))) == 1  # a replay
    assert count(Look(claims[0].id)) == 1
    assert calls(postgres, lambda: store.unfinished(0, 10)) == 1
    held, fence = claims[40], fences[40]
    assert count(Renew(held.id, held.owner, fence, LEASE)) == 2  # read, then compare and set
    assert count(SaveStep(held.id, held.owner, fence, "s", False, b"")) == 2
    assert count(Release(held.id, held.owner, fence)) == 2
    adapters.close()


# --- settings -------------------------------------------------------------------------------------


def test_the_tables_have_the_settings_they_need(postgres: Postgres, filled: dict[str, Any]) -> None:
    query = """SELECT relname, reloptions FROM pg_class
               WHERE relnamespace = %s::regnamespace AND relkind = 'r'"""
    found = {
        name: dict(option.split("=") for option in options or ())
        for name, options in postgres.execute(query, (filled["schema"],))
    }
    names = [f"records_{n}" for n in range(SLOTS)] if "retention" in filled else ["records"]
    for name in names:
        assert int(found[name]["fillfactor"]) == 25  # room for a second version of every row
        assert float(found[name]["autovacuum_vacuum_scale_factor"]) <= 0.1
        assert float(found[name]["autovacuum_analyze_scale_factor"]) <= 0.02
        assert int(found[name]["autovacuum_vacuum_cost_delay"]) <= 1
    assert float(found["history"]["autovacuum_vacuum_scale_factor"]) <= 0.02
