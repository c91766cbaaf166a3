"""kill -9 of an SQS consumer at every point of a message's way: effects = messages, queue empty.

Against moto, an emulator; see tests/support/servers/sqs_server.py.
"""

from __future__ import annotations

import functools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.queues.consumer_kills import CONCURRENCY, MESSAGES, POINTS, KillResult, kill_everywhere
from tests.queues.sqs_queues import SqsQueues
from tests.support import redis_stores
from tests.support.servers import processes
from tests.support.servers.sqs_server import sqs

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
# The async consumer differs in its driver only; the sync one is killed everywhere.
CASES = {"sync": POINTS, "async": POINTS if SOAK else ("after effect", "before settle")}


@functools.cache
def killed(kind: str, folder: Path) -> dict[str, KillResult]:
    store = f"{redis_stores.valkey().url()}?prefix={processes.fresh_name('sqs-kills')}"
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


def test_without_retry_safe_what_a_kill_left_open_is_parked_and_never_run_again(
    folder: Path,
) -> None:
    """I1: at most one effect for each message, and one letter for each that was not finished."""
    store = f"{redis_stores.valkey().url()}?prefix={processes.fresh_name('sqs-kills')}"
    client = sqs().client()
    points = ("after Claim", "after effect", "before settle") if SOAK else ("after effect",)
    results = kill_everywhere(
        SqsQueues,
        {"client": sqs().options()},
        store,
        folder,
        points=points,
        retry_safe=False,
    )
    for point, result in results.items():
        assert (result.killed, result.drained) == (-signal.SIGKILL, 0), (point, result)
        orders = [effect.order for effect in result.effects.all]
        assert len(orders) == len(set(orders)), f"{point}: an effect happened twice"
        letters = receive_letters(client, f"{result.queue}-dead")
        parked = {str(json.loads(letter["Body"])["order"]) for letter in letters}
        # A busy machine may park more, whose effects happened; those of others stay away.
        assert len(orders) >= MESSAGES - CONCURRENCY, (point, orders, parked)
        assert parked | set(orders) == {str(number) for number in range(MESSAGES)}, point
        for letter in letters:
            error = letter["MessageAttributes"]["oncekey-error"]["StringValue"]
            assert "OutcomeUnknown" in error
    assert len(receive_letters(client, f"{results['after effect'].queue}-dead")) >= 1


def receive_letters(client: Any, queue: str) -> list[dict[str, Any]]:
    url = client.get_queue_url(QueueName=queue)["QueueUrl"]
    answer = client.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0, MessageAttributeNames=["All"]
    )
    return list(answer.get("Messages", ()))
