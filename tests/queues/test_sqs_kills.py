"""kill -9 of an SQS consumer at every point of a message's way: effects = messages, queue empty.

Against moto, an emulator; see tests/support/servers/sqs_server.py.
"""

from __future__ import annotations

import json

import pytest
from tests.queues.consumer_kills import PARKING, Case, Kills
from tests.queues.kill_cases import cases_run, kill_params
from tests.queues.sqs_queues import SqsQueues
from tests.support import redis_stores
from tests.support.servers import processes
from tests.support.servers.sqs_server import sqs

# The emulator is slow, so these are the points at which SQS itself matters; what happens between a
# claim and its finish is the same on every broker. `make soak` tries them all here too.
USUAL = [
    Case("sync", "after receive"),
    Case("sync", "after effect"),
    Case("async", "before settle"),
    Case("sync", "after settle"),
]
PARKED = PARKING[1:]
CASES = cases_run(USUAL, PARKED)


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    folder = tmp_path_factory.mktemp("kills")
    store = f"{redis_stores.valkey().url()}?prefix={processes.fresh_name('sqs-kills')}"
    return Kills(SqsQueues, {"client": sqs().options()}, store, folder, CASES)


@pytest.mark.parametrize("case", kill_params(USUAL))
def test_a_killed_sqs_consumer_loses_nothing(kills: Kills, case: Case) -> None:
    kills[case].check(case.point)


@pytest.mark.parametrize("case", PARKED, ids=lambda case: case.point)
def test_without_retry_safe_what_a_kill_left_open_is_parked_and_never_run_again(
    kills: Kills, case: Case
) -> None:
    """I1: at most one effect for each message, and what was not finished is where operators see
    it."""
    result = kills[case]
    client = sqs().client()
    answer = client.receive_message(
        QueueUrl=client.get_queue_url(QueueName=f"{result.queue}-dead")["QueueUrl"],
        MaxNumberOfMessages=10,
        VisibilityTimeout=0,
        MessageAttributeNames=["All"],
    )
    letters = [
        (json.loads(found["Body"])["order"], found["MessageAttributes"]["oncekey-error"])
        for found in answer.get("Messages", ())
    ]
    result.check_parked(case.point, [(order, error["StringValue"]) for order, error in letters])
