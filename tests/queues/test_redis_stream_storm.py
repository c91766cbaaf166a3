"""Three consumers of a stream, killed and paused at random, with duplicates: effects = messages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.queues.consumer_storm import Plan, storm
from tests.queues.stream_queues import StreamQueues
from tests.support.redis_stores import valkey

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
PLAN = (
    Plan(messages=1_000, duplicates=200, kills=20, pauses=10, seconds=240)
    if SOAK
    else Plan(messages=60, duplicates=20, kills=2, pauses=1, seconds=50)
)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["sync", "async"] if SOAK else ["sync"])
def test_effects_are_messages_under_kills_pauses_and_duplicates(tmp_path: Path, kind: str) -> None:
    arguments = {"url": valkey().url(1)}
    store = f"{valkey().url()}?prefix=stream-storm"  # other tests leave their records there
    result = storm(StreamQueues, arguments, store, tmp_path, PLAN, kind=kind)
    result.check(PLAN)
    repeated = len(result.effects) - PLAN.messages
    print(f"{PLAN}: {repeated} effects were repeated and deduplicated")  # noqa: T201
