"""Three consumers of a stream, killed and paused at random, with duplicates: effects = messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.queues.consumer_storm import SHORT, Plan, storm
from tests.queues.stream_queues import StreamQueues
from tests.support.redis_stores import valkey
from tests.support.servers import processes

LONG = Plan(messages=1_000, duplicates=200, kills=20, pauses=10, seconds=400)


def run_storm(tmp_path: Path, plan: Plan, seed: int, kind: str) -> None:
    arguments = {"url": valkey().url(1)}
    store = f"{valkey().url()}?prefix={processes.fresh_name('stream-storm')}"
    storm(StreamQueues, arguments, store, tmp_path, plan, seed, kind=kind).check(plan)


@pytest.mark.seeded
def test_effects_are_messages_under_kills_pauses_and_duplicates(tmp_path: Path, seed: int) -> None:
    run_storm(tmp_path, SHORT, seed, "sync")


@pytest.mark.soak
@pytest.mark.seeded
@pytest.mark.timeout(500)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_effects_are_messages_in_a_long_storm(tmp_path: Path, seed: int, kind: str) -> None:
    run_storm(tmp_path, LONG, seed, kind)
