"""The hammer on PostgreSQL: each way to claim, a pooler, the ring, lost replies (I1-I7, I9, I12).

It runs for seconds; with ONCEKEY_SOAK=1 (`make hammer-postgres`) for a minute with 32 processes, on
a server whose files are on the disk. It fails if too little happened to prove anything.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.hammer.hammer_runs import SOAK, caught_at, run_until_enough
from tests.hammer.test_sqlite_hammer import CAUGHT_AT
from tests.support.hammer import HammerPlan
from tests.support.postgres_stores import DATABASE, pooler, server
from tests.support.servers import Postgres, Proxy, ServerFailed, require

# What must have happened in the main run.
LEAST = {
    "claims": 1_500,
    "grants": 250,
    "takeovers": 25,
    "give-ups": 30,
    "fenced zombies": 50,
    "lost replies": 100,
    "replays": 200,
    "mismatches": 70,
    "in flight": 70,
    "renewals": 25,
    "releases": 15,
    "resolved": 15,
    "generations": 150,
    "crashes": 3,
    "swept": 100,
}
LEAST_LONG = {
    "claims": 100_000,
    "takeovers": 1_000,
    "fenced zombies": 500,
    "lost replies": 100,
    "generations": 5_000,
}
# ... and in each of the others.
SOME = {"claims": 300, "takeovers": 8, "fenced zombies": 10, "generations": 30, "replays": 30}

# Boundaries every 50 ms; lease, keep and audit are 280 ms together.
RING: dict[str, Any] = {"retention": "ring", "ring_slots": 8, "ring_period": "50ms"}
VARIANTS: dict[str, dict[str, Any]] = {
    "row_lock": {"claim": "row_lock"},
    "advisory_lock": {"claim": "advisory_lock"},
    "portable": {"claim": "portable"},
    "pooler": {"pooler": "true"},
    "not transactional": {"transactional": "false"},
    "ring, row_lock": {"claim": "row_lock", **RING},
    "ring, not transactional": {"transactional": "false", **RING},
}
# Each way to claim once, and what a pooler and the ring change; `make soak` hammers all of them.
IN_MAKE_TEST = ("advisory_lock", "portable", "pooler", "ring, row_lock")


@pytest.fixture(scope="module")
def hammered() -> Iterator[Postgres]:
    """The server to use: in a long run one of its own, with its files on the disk."""
    if SOAK:
        with require(lambda: Postgres(settings={"max_connections": 300})) as running:
            yield running
    else:
        yield server()


def url_of(address: str, schema: str, **options: Any) -> str:
    values = {"schema": schema, "pool_size": 2, **options}
    return f"{address}?{urlencode(values)}"


def fresh(postgres: Postgres, schema: str) -> str:
    """Drop the schema if it exists; its name."""
    postgres.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
    return schema


def test_the_hammer_finds_no_violation_on_postgresql(
    hammered: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hammered.execute("SHOW fsync") == [("on",)]

    def plan(run: int) -> HammerPlan:
        url = url_of(hammered.url(DATABASE), fresh(hammered, f"hammer {run}"))
        if SOAK:
            return HammerPlan(url, seconds=60, processes=32, seed=run)
        return HammerPlan(url, seconds=3, processes=12, seed=run)

    counts = run_until_enough("PostgreSQL", plan, LEAST_LONG if SOAK else LEAST, capsys)
    assert counts["store errors"] == 0


def test_the_hammer_finds_no_violation_on_the_ring(
    hammered: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """A boundary every 50 ms, and slots emptied as they pass."""

    def plan(run: int) -> HammerPlan:
        url = url_of(hammered.url(DATABASE), fresh(hammered, f"ring {run}"), **RING)
        if SOAK:
            return HammerPlan(url, seconds=60, processes=32, keys=60, seed=run)
        return HammerPlan(url, seconds=2, processes=8, seed=run)

    least = {**SOME, "generations": 100, "swept": 60}
    if SOAK:
        least = {"claims": 50_000, "takeovers": 500, "generations": 10_000, "swept": 5_000}
    counts = run_until_enough("the ring", plan, least, capsys)
    assert counts["store errors"] == 0


@pytest.mark.parametrize("name", VARIANTS if SOAK else IN_MAKE_TEST)
def test_the_hammer_finds_no_violation_with_any_setting(
    hammered: Postgres, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = VARIANTS[name]
    behind = server() if "pooler" in options else hammered

    def plan(run: int) -> HammerPlan:
        address = pooler().url(DATABASE) if "pooler" in options else behind.url(DATABASE)
        url = url_of(address, fresh(behind, f"{name} {run}"), **options)
        if SOAK:
            return HammerPlan(url, seconds=20, processes=16, seed=run)
        return HammerPlan(url, seconds=2, processes=8, keys=20, seed=run)

    least = {what: number * 10 for what, number in SOME.items()} if SOAK else SOME
    counts = run_until_enough(name, plan, least, capsys)
    assert counts["store errors"] == 0


def test_i9_the_hammer_finds_no_violation_if_replies_are_lost(
    hammered: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server applied the command, and the connection broke before the reply."""
    with require(lambda: Proxy(hammered.port)) as proxy, losing_replies(proxy):
        address = hammered.url(DATABASE, port=proxy.port)

        def plan(run: int) -> HammerPlan:
            url = url_of(address, fresh(hammered, f"lossy {run}"))
            long = HammerPlan(url, seconds=30, processes=16, keys=400, seed=run)
            plan = long if SOAK else HammerPlan(url, seconds=2, processes=8, seed=run)
            # It takes a while to connect again, and the lease should not be over by then.
            return replace(plan, lease=200_000, keep=400_000)

        least = {"claims": 300, "takeovers": 3, "replays": 100, "store errors": 20}
        if SOAK:
            least = {what: number * 8 for what, number in least.items()}
        run_until_enough("lost replies", plan, least, capsys)


@contextmanager
def losing_replies(proxy: Proxy) -> Iterator[None]:
    """Lose one reply after the other while the block runs."""
    over = threading.Event()

    def lose() -> None:
        while not over.wait(0.1):
            proxy.drop_replies(after=b"_pg3_", times=1)  # a prepared statement of psycopg's
            try:
                proxy.wait_until_dropped(seconds=0.2)
            except ServerFailed:
                continue  # nobody sent anything

    thread = threading.Thread(target=lose)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("retention", ["plain", "ring"])
@pytest.mark.parametrize("sabotage", ["FinishWithoutOwner", "StealsLeases"])
def test_the_hammer_finds_a_store_that_is_broken_on_purpose(
    hammered: Postgres, sabotage: str, retention: str
) -> None:
    options = RING if retention == "ring" else {}

    def plan(run: int) -> HammerPlan:
        url = url_of(hammered.url(DATABASE), fresh(hammered, f"broken {retention}"), **options)
        broken = HammerPlan(url, seconds=1.5, processes=8, keys=12, sabotage=sabotage, seed=run)
        return replace(broken, lease=100_000, audit=30_000)

    assert caught_at(CAUGHT_AT[sabotage], plan)
