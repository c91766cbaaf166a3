"""kill -9 of a RabbitMQ consumer at every point of a message's way: effects = messages, and the
queue, a quorum queue, is empty."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest
from tests.queues.consumer_kills import POINTS, KillResult, kill_everywhere
from tests.queues.rabbit_queues import RabbitQueues
from tests.support.rabbitmq_queues import rabbitmq

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
# The async consumer differs in its driver only; the sync one is killed everywhere.
CASES = {"sync": POINTS, "async": POINTS if SOAK else ("after effect", "before settle")}


@functools.cache
def killed(kind: str, folder: Path) -> dict[str, KillResult]:
    store = f"sqlite:///{folder / 'keys.db'}"
    arguments = {"url": rabbitmq().url}
    return kill_everywhere(RabbitQueues, arguments, store, folder, kind=kind, points=CASES[kind])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.mark.parametrize(
    ("kind", "point"), [(kind, point) for kind, points in CASES.items() for point in points]
)
def test_a_killed_rabbitmq_consumer_loses_nothing(folder: Path, kind: str, point: str) -> None:
    killed(kind, folder)[point].check(point)
