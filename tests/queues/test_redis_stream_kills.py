"""kill -9 of a consumer of Redis Streams at every point: effects = messages, nothing pending."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest
from tests.queues.consumer_kills import POINTS, KillResult, kill_everywhere
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
