"""The hammer on PostgreSQL: each way to claim, a pooler, the ring, lost replies (I1-I7, I9, I12).

It runs some rounds; `make hammer-postgres` runs a minute with 32 processes, on a server whose files
are on the disk. It judges safety alone, and prints what it did.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.hammer.hammer_runs import LONG, ROUNDS_SECONDS_MAX, SHORT, caught_at, run_safely
from tests.support.hammer import HammerPlan
from tests.support.hammer.hammer_run import make_tables
from tests.support.hammer.saboteurs import CAUGHT_AT
from tests.support.postgres_stores import DATABASE, pooler, server
from tests.support.servers import Postgres, Proxy, ServerFailed, require

# No call may fail because the machine is busy.
PATIENT = dict.fromkeys(("statement_timeout", "lock_timeout", "pool_timeout"), "120s")

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
def disk_server() -> Iterator[Postgres]:
    """A server of its own for the long runs, with its files on the disk."""
    with require(lambda: Postgres(settings={"max_connections": 300})) as running:
        yield running


@pytest.fixture
def hammered(request: pytest.FixtureRequest, is_long: bool) -> Postgres:
    """The server to use."""
    running: Postgres = request.getfixturevalue("disk_server") if is_long else server()
    return running


def url_of(address: str, schema: str, **options: Any) -> str:
    values = {"schema": schema, "pool_size": 2, **PATIENT, **options}
    return f"{address}?{urlencode(values)}"


def fresh(postgres: Postgres, schema: str) -> str:
    """Drop the schema if it exists; its name."""
    postgres.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
    return schema


def plan_of(url: str, seed: int, *, processes: int, rounds: int) -> HammerPlan:
    return HammerPlan(
        url, seconds=ROUNDS_SECONDS_MAX, processes=processes, rounds=rounds, seed=seed
    )


@pytest.mark.seeded
@pytest.mark.parametrize("is_long", [SHORT, LONG])
def test_the_hammer_finds_no_violation_on_postgresql(
    hammered: Postgres, is_long: bool, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hammered.execute("SHOW fsync") == [("on",)]
    url = url_of(hammered.url(DATABASE), fresh(hammered, "hammer"))
    plan = plan_of(url, seed, processes=10, rounds=40)
    if is_long:
        plan = HammerPlan(url, seconds=60, processes=32, seed=seed)
    counts = run_safely("PostgreSQL", plan, capsys)
    assert counts["claims"]


@pytest.mark.seeded
@pytest.mark.parametrize("is_long", [SHORT, LONG])
def test_the_hammer_finds_no_violation_on_the_ring(
    hammered: Postgres, is_long: bool, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A boundary every 50 ms, and slots emptied as they pass."""
    url = url_of(hammered.url(DATABASE), fresh(hammered, "hammered ring"), **RING)
    plan = plan_of(url, seed, processes=8, rounds=30)
    if is_long:
        plan = HammerPlan(url, seconds=60, processes=32, keys=60, seed=seed)
    counts = run_safely("the ring", plan, capsys)
    assert counts["claims"]


@pytest.mark.seeded
@pytest.mark.parametrize(
    ("name", "is_long"),
    [
        *(pytest.param(name, False, id=f"{name}-short") for name in IN_MAKE_TEST),
        *(pytest.param(name, True, id=f"{name}-long", marks=pytest.mark.soak) for name in VARIANTS),
    ],
)
def test_the_hammer_finds_no_violation_with_any_setting(
    hammered: Postgres, name: str, is_long: bool, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    options = VARIANTS[name]
    behind = server() if "pooler" in options else hammered
    address = pooler().url(DATABASE) if "pooler" in options else behind.url(DATABASE)
    url = url_of(address, fresh(behind, f"hammered {name}"), **options)
    plan = replace(plan_of(url, seed, processes=6, rounds=25), keys=20)
    if is_long:
        plan = HammerPlan(url, seconds=20, processes=16, seed=seed)
    counts = run_safely(name, plan, capsys)
    assert counts["claims"]


@pytest.mark.seeded
@pytest.mark.parametrize("is_long", [SHORT, LONG])
def test_i9_the_hammer_finds_no_violation_if_replies_are_lost(
    hammered: Postgres, is_long: bool, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server applied the command, and the connection broke before the reply."""
    schema = fresh(hammered, "lossy")
    make_tables(HammerPlan(url_of(hammered.url(DATABASE), schema)))  # which takes many replies
    with require(lambda: Proxy(hammered.port)) as proxy, losing_replies(proxy):
        url = url_of(hammered.url(DATABASE, port=proxy.port), schema)
        plan = plan_of(url, seed, processes=8, rounds=30)
        if is_long:
            plan = HammerPlan(url, seconds=30, processes=16, keys=400, seed=seed)
        # It takes a while to connect again, and the lease should not be over by then.
        plan = replace(plan, lease=200_000, keep=400_000)
        assert run_safely("lost replies", plan, capsys)["claims"]


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


@pytest.mark.soak
@pytest.mark.seeded
@pytest.mark.parametrize("is_long", [LONG])
@pytest.mark.parametrize("retention", ["plain", "ring"])
@pytest.mark.parametrize("sabotage", ["FinishWithoutOwner", "StealsLeases"])
def test_the_hammer_finds_a_store_that_is_broken_on_purpose(
    hammered: Postgres, sabotage: str, retention: str, seed: int
) -> None:
    options = RING if retention == "ring" else {}

    def plan(run: int) -> HammerPlan:
        url = url_of(hammered.url(DATABASE), fresh(hammered, f"broken {retention}"), **options)
        broken = HammerPlan(url, seconds=1.5, processes=8, keys=12, sabotage=sabotage)
        return replace(broken, lease=100_000, audit=30_000, seed=seed + run)

    assert caught_at(CAUGHT_AT[sabotage], plan)
