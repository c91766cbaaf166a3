"""kill -9 of a client at every store call of an attempt, on Valkey (I1, I4, I5, I10).

The killed clients are real processes, and so is the clock: the server's own jumps ahead to where
the lease ends, by libfaketime, so no test waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fault.kill_points import (
    CHOSEN,
    NAMES,
    KillPoint,
    Kills,
    check_kills,
    is_held,
    kill_everywhere,
)
from tests.support.servers import RedisServer, require
from tests.support.servers.redis_server import DURABLE

from oncekey.core.policy import Policy
from oncekey.engine.once import Once

LEASE_SECONDS = 3600
MARGIN_SECONDS = 1
EARLY_SECONDS = 60


class RetryEngine:
    """An engine on a server whose clock is set ahead; after that it is a new engine."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.once = self._open()

    def _open(self) -> Once:
        return Once(self.server.url(), policy=Policy(lease="1h"), cache=0)

    def _set_clock(self, ahead: int) -> None:
        self.once.close()
        self.server.set_clock(ahead)
        self.once = self._open()

    def check_lease(self, point: KillPoint) -> object:
        try:
            for ahead in (0, LEASE_SECONDS - EARLY_SECONDS):
                self._set_clock(ahead)
                assert is_held(point.retry())
            self._set_clock(LEASE_SECONDS + MARGIN_SECONDS)
            return point.retry()
        finally:
            self._set_clock(0)


@pytest.fixture(scope="module")
def retries() -> Iterator[RetryEngine]:
    with require(lambda: RedisServer(settings=DURABLE, clock=True)) as server:
        retries = RetryEngine(server)
        yield retries
        retries.once.close()


@pytest.fixture(scope="module", params=["sync", "async"])
def killed(
    request: pytest.FixtureRequest, retries: RetryEngine, tmp_path_factory: pytest.TempPathFactory
) -> Kills:
    url = retries.server.url()
    return kill_everywhere(
        url, request.param, tmp_path_factory.mktemp(request.param), chosen=CHOSEN
    )


@pytest.mark.parametrize("number", CHOSEN, ids=NAMES.__getitem__)
def test_i1_a_retry_after_a_kill_at_any_store_call_runs_once_on_valkey(
    retries: RetryEngine, killed: Kills, number: int
) -> None:
    check_kills(retries, killed, number)
