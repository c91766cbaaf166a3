"""Three SQS consumers under random kills and pauses, with duplicates: effects = messages.

Against moto, an emulator; see tests/support/servers/sqs_server.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.queues.consumer_storm import SHORT, Plan, storm
from tests.queues.sqs_queues import SqsQueues
from tests.support import redis_stores
from tests.support.servers import processes
from tests.support.servers.sqs_server import SqsServer

LONG = Plan(messages=1_000, duplicates=200, kills=20, pauses=10, seconds=400, handler_seconds=0.02)


def run_storm(tmp_path: Path, plan: Plan, seed: int, kind: str) -> None:
    store = f"{redis_stores.valkey().url()}?prefix={processes.fresh_name('sqs-storm')}"
    with SqsServer() as server:  # of its own, because its queue makes the emulator slow
        arguments = {"client": server.options()}
        storm(SqsQueues, arguments, store, tmp_path, plan, seed, kind=kind).check(plan)


@pytest.mark.seeded
def test_effects_are_messages_under_kills_pauses_and_duplicates(tmp_path: Path, seed: int) -> None:
    run_storm(tmp_path, SHORT, seed, "sync")


@pytest.mark.soak
@pytest.mark.seeded
@pytest.mark.timeout(500)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_effects_are_messages_in_a_long_storm(tmp_path: Path, seed: int, kind: str) -> None:
    run_storm(tmp_path, LONG, seed, kind)
