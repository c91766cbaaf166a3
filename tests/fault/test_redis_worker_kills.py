"""kill -9 of a client at every store call of an attempt, on Valkey (I1, I4, I5, I10).

The killed clients are real processes, and so is the clock: the server's own jumps ahead to where
the lease ends, by libfaketime, so no test waits for it.
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
from tests.support.servers import RedisServer, require
from tests.support.servers.redis_server import DURABLE

from oncekey.core.policy import Policy
from oncekey.engine.blocking.once import Once

LEASE_SECONDS = 3600
MARGIN_SECONDS = 1
EARLY_SECONDS = 60


class RetryEngine:
    """An engine on a server whose clock can be set ahead."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.once = Once(server.url(), policy=Policy(lease="1h"), cache=0)

    def check_lease(self, point: KillPoint) -> object:
        try:
            for ahead in (0, LEASE_SECONDS - EARLY_SECONDS):
                self.server.set_clock(ahead)
                assert is_held(point.retry())
            self.server.set_clock(LEASE_SECONDS + MARGIN_SECONDS)
            return point.retry()
        finally:
            self.server.set_clock(0)


@pytest.fixture(scope="module")
def retries() -> Iterator[RetryEngine]:
    with require(lambda: RedisServer(settings=DURABLE, clock=True)) as server:
        retries = RetryEngine(server)
        with retries.once:
            yield retries


@pytest.fixture(scope="module", params=["sync", "async"])
def killed(
    request: pytest.FixtureRequest, retries: RetryEngine, tmp_path_factory: pytest.TempPathFactory
) -> Kills:
    url = retries.server.url()
    return kill_everywhere(url, request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("number", range(len(SCENARIOS)), ids=NAMES)
def test_i1_a_retry_after_a_kill_at_any_store_call_runs_once_on_valkey(
    retries: RetryEngine, killed: Kills, number: int
) -> None:
    check_kills(retries, killed, number, SCENARIOS[number])
