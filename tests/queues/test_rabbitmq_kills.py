"""kill -9 of a RabbitMQ consumer at every point of a message's way: effects = messages, and the
queue, a quorum queue, is empty."""

from __future__ import annotations

import json

import pytest
from tests.queues.consumer_kills import COVERING, PARKING, Case, Kills
from tests.queues.kill_cases import cases_run, kill_params
from tests.queues.rabbit_queues import RabbitQueues, channel_to
from tests.support.rabbitmq_queues import rabbitmq


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> Kills:
    folder = tmp_path_factory.mktemp("kills")
    store = f"sqlite:///{folder / 'keys.db'}"
    return Kills(RabbitQueues, {"url": rabbitmq().url}, store, folder, cases_run(COVERING, PARKING))


@pytest.mark.parametrize("case", kill_params(COVERING))
def test_a_killed_rabbitmq_consumer_loses_nothing(kills: Kills, case: Case) -> None:
    kills[case].check(case.point)


@pytest.mark.parametrize("case", PARKING, ids=lambda case: case.point)
def test_without_retry_safe_what_a_kill_left_open_is_parked_and_never_run_again(
    kills: Kills, case: Case
) -> None:
    """I1: at most one effect for each message, and what was not finished is where operators see
    it."""
    result = kills[case]
    parked = []
    with channel_to(rabbitmq().url) as channel:
        while True:
            method, properties, body = channel.basic_get(f"{result.queue}.parked", auto_ack=True)
            if method is None:
                break
            parked.append((json.loads(body)["order"], properties.headers["oncekey-error"]))
    result.check_parked(case.point, parked)
