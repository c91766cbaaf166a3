"""Three SQS consumers under random kills and pauses, with duplicates: effects = messages.

Against moto, an emulator; see tests/support/servers/sqs_server.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.queues.consumer_storm import Plan, storm
from tests.queues.sqs_queues import SqsQueues
from tests.support import redis_stores
from tests.support.servers.sqs_server import SqsServer

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
PLAN = (
    Plan(messages=1_000, duplicates=200, kills=20, pauses=10, seconds=400, handler_seconds=0.02)
    if SOAK
    else Plan(messages=40, duplicates=10, kills=2, pauses=1, seconds=50)
)


@pytest.mark.timeout(500)
@pytest.mark.parametrize("kind", ["sync", "async"] if SOAK else ["sync"])
def test_effects_are_messages_under_kills_pauses_and_duplicates(tmp_path: Path, kind: str) -> None:
    store = f"{redis_stores.valkey().url()}?prefix=sqs-storm"
    with SqsServer() as server:  # of its own, because its queue makes the emulator slow
        arguments = {"client": server.options()}
        result = storm(SqsQueues, arguments, store, tmp_path, PLAN, kind=kind)
    result.check(PLAN)
    repeated = len(result.effects) - PLAN.messages
    print(f"{result.kills} kills, {result.pauses} pauses, {repeated} effects repeated")  # noqa: T201
