"""kill -9 of a client at every store call of an attempt, on etcd (I1, I4, I5, I10).

The killed clients are real processes, and etcd's servers end their leases; nothing can move that
time, so a retry polls until its key is free. All clients are killed before the first retry.
"""

from __future__ import annotations

import time
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
from tests.support.etcd_stores import etcd
from tests.support.servers.processes import wait_until

from oncekey.core.policy import Policy
from oncekey.engine.once import Once

LEASE = "3s"
LEASE_SECONDS = 3.0
RECOVERED_WITHIN_SECONDS = 120.0
PREFIX = "kills"


class RetryEngine:
    """An engine on the shared cluster that polls until a lease is over."""

    def __init__(self) -> None:
        self.url = etcd().url(PREFIX)
        self.once = Once(self.url, policy=Policy(lease=LEASE), cache=0)

    def check_lease(self, point: KillPoint) -> object:
        outcomes: list[object] = []

        def is_over() -> bool:
            outcomes.append(point.retry())
            return not is_held(outcomes[-1])

        wait_until(is_over, "the lease of a killed client is over", RECOVERED_WITHIN_SECONDS)
        assert time.monotonic() > float(point.claimed.read_text()) + LEASE_SECONDS
        return outcomes[-1]


@pytest.fixture(scope="module")
def retries() -> Iterator[RetryEngine]:
    retries = RetryEngine()
    with retries.once:
        yield retries


@pytest.fixture(scope="module", params=["sync", "async"])
def killed(
    request: pytest.FixtureRequest, retries: RetryEngine, tmp_path_factory: pytest.TempPathFactory
) -> Kills:
    folder = tmp_path_factory.mktemp(request.param)
    return kill_everywhere(retries.url, request.param, folder, LEASE, CHOSEN)


@pytest.mark.parametrize("number", CHOSEN, ids=NAMES.__getitem__)
def test_i1_a_retry_after_a_kill_at_any_store_call_runs_once_on_etcd(
    retries: RetryEngine, killed: Kills, number: int
) -> None:
    check_kills(retries, killed, number)
