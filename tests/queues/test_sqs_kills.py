"""kill -9 of an SQS consumer at every point of a message's way: effects = messages, queue empty.

Against moto, an emulator; see tests/support/servers/sqs_server.py.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest
from tests.queues.consumer_kills import POINTS, KillResult, kill_everywhere
from tests.queues.sqs_queues import SqsQueues
from tests.support import redis_stores
from tests.support.servers.sqs_server import sqs

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
# The async consumer differs in its driver only; the sync one is killed everywhere.
CASES = {"sync": POINTS, "async": POINTS if SOAK else ("after effect", "before settle")}


@functools.cache
def killed(kind: str, folder: Path) -> dict[str, KillResult]:
    store = redis_stores.valkey().url()
    arguments = {"client": sqs().options()}
    return kill_everywhere(SqsQueues, arguments, store, folder, kind=kind, points=CASES[kind])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.mark.parametrize(
    ("kind", "point"), [(kind, point) for kind, points in CASES.items() for point in points]
)
def test_a_killed_sqs_consumer_loses_nothing(folder: Path, kind: str, point: str) -> None:
    killed(kind, folder)[point].check(point)
