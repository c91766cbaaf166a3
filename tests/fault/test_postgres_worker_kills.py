"""kill -9 of a client at every store call of an attempt, on PostgreSQL (I1, I4, I5, I10).

The killed clients are real processes. No test waits for a lease to end: the retry uses a store
whose clock is ahead of the server's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fault.kill_points import (
    NAMES,
    SCENARIOS,
    KillPoint,
    Kills,
    check_kills,
    is_held,
    kill_everywhere,
)
from tests.support.postgres_stores import server

from oncekey.core.policy import Policy
from oncekey.engine.once import Once
from oncekey.stores.postgres import PostgresStore
from oncekey.stores.store_rules import wall_clock

SCHEMA = "kills"
LEASE_US = 3_600_000_000
MARGIN_US = 1_000_000
EARLY_US = 60_000_000


class RetryEngine:
    """An engine whose store's clock can be set ahead."""

    def __init__(self) -> None:
        self.ahead = 0
        self.url = f"{server().url()}?schema={SCHEMA}"
        store = PostgresStore(
            server().url(), schema=SCHEMA, clock=lambda: wall_clock() + self.ahead
        )
        self.once = Once(store, policy=Policy(lease="1h"), cache=0)

    def check_lease(self, point: KillPoint) -> object:
        try:
            for self.ahead in (0, LEASE_US - EARLY_US):
                assert is_held(point.retry())
            self.ahead = LEASE_US + MARGIN_US
            return point.retry()
        finally:
            self.ahead = 0


@pytest.fixture(scope="module")
def retries() -> Iterator[RetryEngine]:
    retries = RetryEngine()
    with retries.once:
        yield retries


@pytest.fixture(scope="module", params=["sync", "async"])
def killed(
    request: pytest.FixtureRequest, retries: RetryEngine, tmp_path_factory: pytest.TempPathFactory
) -> Kills:
    """Kill at every point, on psycopg and on asyncpg."""
    return kill_everywhere(retries.url, request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("number", range(len(SCENARIOS)), ids=NAMES)
def test_i1_a_retry_after_a_kill_at_any_store_call_runs_once(
    retries: RetryEngine, killed: Kills, number: int
) -> None:
    check_kills(retries, killed, number)
