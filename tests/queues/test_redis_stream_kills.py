"""kill -9 of a consumer of Redis Streams at every point: effects = messages, nothing pending."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.queues.consumer_kills import COVERING, PARKING, Case, Kills
from tests.queues.kill_cases import cases_run, kill_params
from tests.queues.stream_queues import StreamQueues
from tests.support.redis_stores import valkey


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    folder = tmp_path_factory.mktemp("kills")
    store = f"sqlite:///{folder / 'keys.db'}"
    return Kills(StreamQueues, {"url": valkey().url()}, store, folder, cases_run(COVERING, PARKING))


@pytest.mark.parametrize("case", kill_params(COVERING))
def test_a_killed_consumer_of_a_stream_loses_nothing(kills: Kills, case: Case) -> None:
    kills[case].check(case.point)


@pytest.mark.parametrize("case", PARKING, ids=lambda case: case.point)
def test_without_retry_safe_what_a_kill_left_open_is_parked_and_never_run_again(
    kills: Kills, case: Case
) -> None:
    """I1: at most one effect for each message, and what was not finished is where operators see
    it."""
    result = kills[case]
    with valkey().client() as client:
        entries: Any = client.xrange(f"{result.queue}:parked")
    found = [
        (json.loads(fields["body"])["order"], fields["oncekey-parked"]) for _, fields in entries
    ]
    result.check_parked(case.point, found)
