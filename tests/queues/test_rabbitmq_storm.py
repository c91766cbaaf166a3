"""Three RabbitMQ consumers under random kills and pauses, with duplicates: effects = messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.queues.consumer_storm import SHORT, Plan, storm
from tests.queues.rabbit_queues import RabbitQueues
from tests.support import redis_stores
from tests.support.rabbitmq_queues import rabbitmq
from tests.support.servers import processes

LONG = Plan(messages=1_000, duplicates=200, kills=20, pauses=10, seconds=400, handler_seconds=0.02)


def run_storm(tmp_path: Path, plan: Plan, seed: int, kind: str) -> None:
    store = f"{redis_stores.valkey().url()}?prefix={processes.fresh_name('rabbitmq-storm')}"
    arguments = {"url": rabbitmq().url}
    storm(RabbitQueues, arguments, store, tmp_path, plan, seed, kind=kind).check(plan)


@pytest.mark.seeded
def test_effects_are_messages_under_kills_pauses_and_duplicates(tmp_path: Path, seed: int) -> None:
    run_storm(tmp_path, SHORT, seed, "async")


@pytest.mark.soak
@pytest.mark.seeded
@pytest.mark.timeout(500)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_effects_are_messages_in_a_long_storm(tmp_path: Path, seed: int, kind: str) -> None:
    run_storm(tmp_path, LONG, seed, kind)
