"""kill -9 of a consumer of Redis Streams at every point: effects = messages, nothing pending."""

from __future__ import annotations

import functools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.queues.consumer_kills import (
    CONCURRENCY,
    MESSAGES,
    POINTS,
    KillResult,
    kill_everywhere,
)
from tests.queues.stream_queues import StreamQueues
from tests.support.redis_stores import valkey

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
# The async consumer differs in its driver only; the sync one is killed everywhere.
CASES = {"sync": POINTS, "async": POINTS if SOAK else ("after receive", "before settle")}


@functools.cache
def killed(kind: str, folder: Path) -> dict[str, KillResult]:
    store = f"sqlite:///{folder / 'keys.db'}"
    arguments = {"url": valkey().url()}
    return kill_everywhere(StreamQueues, arguments, store, folder, kind=kind, points=CASES[kind])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.mark.parametrize(
    ("kind", "point"), [(kind, point) for kind, points in CASES.items() for point in points]
)
def test_a_killed_consumer_of_a_stream_loses_nothing(folder: Path, kind: str, point: str) -> None:
    killed(kind, folder)[point].check(point)


def test_without_retry_safe_what_a_kill_left_open_is_parked_and_never_run_again(
    folder: Path,
) -> None:
    """I1: at most one effect for each message, and what was not finished is where operators see
    it."""
    results = kill_everywhere(
        StreamQueues,
        {"url": valkey().url()},
        f"sqlite:///{folder / 'keys.db'}",
        folder,
        points=("after Claim", "after effect"),
        retry_safe=False,
    )
    for point, result in results.items():
        assert (result.killed, result.drained) == (-signal.SIGKILL, 0), point
        orders = [effect.order for effect in result.effects.all]
        assert len(orders) == len(set(orders)), f"{point}: an effect happened twice"
        with valkey().client() as client:
            entries: Any = client.xrange(f"{result.queue}:parked")
        parked = {str(json.loads(fields["body"])["order"]) for _, fields in entries}
        assert 1 <= len(parked) == len(entries) <= CONCURRENCY, point
        assert parked | set(orders) == {str(number) for number in range(MESSAGES)}, point
        assert all("OutcomeUnknown" in fields["oncekey-parked"] for _, fields in entries)
