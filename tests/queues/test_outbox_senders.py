"""From a row of an outbox through a broker's sender to a consumer on the other side.

On each broker, with both clients. Kafka here is librdkafka's mock and SQS is moto's server: see
sender_targets.py.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.queues.moved_clock import MovedClock, still_store
from tests.queues.outbox_case import SECOND, OutboxCase
from tests.queues.running_consumer import PATIENCE_S
from tests.queues.sender_targets import TARGETS, RabbitTarget, Target
from tests.support.log_records import written_log

from oncekey import Once
from oncekey.queues.blocking import consumer as consumer_module
from oncekey.queues.outbox import Outbox, OutboxPublisher, OutgoingMessage
from oncekey.queues.rabbitmq import RabbitRefused, RabbitSender
from oncekey.stores.outbox_commands import Settle

# Longer than SQS and AMQP allow for an id of their own, and with characters that SQS refuses.
LONG_ID = "order-17:" + "ö" * 200


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop of a consumer waits for the end of a long poll of SQS."""
    monkeypatch.setattr(consumer_module, "RECEIVE_WAIT_S", 1.0)


@pytest.fixture(params=("sync", "async"))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OutboxCase]:
    made = OutboxCase("sqlite" if request.param == "sync" else "sqlite-async", tmp_path)
    yield made
    made.close()


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    return TARGETS[request.param]()


@pytest.fixture
def sender(case: OutboxCase, target: Target) -> Iterator[Any]:
    made = case.do(_made(target, case))
    yield made
    case.do(made.close())


def _made(target: Target, case: OutboxCase) -> Any:
    """An async sender is made within its event loop."""
    if not case.is_async:
        return target.sender(is_async=False)

    async def made() -> Any:
        return target.sender(is_async=True)

    return made()


def send_and_die(case: OutboxCase, sender: Any) -> int:
    """Do what a publisher does until it has sent a batch, and no more: an abandoned flow is exactly
    a crash. How many messages it has sent."""
    publisher = case.publisher(sender).publisher
    flow = publisher._flow.batch()
    effect = next(flow)
    while not isinstance(effect, Settle):
        effect = flow.send(case.do(publisher._perform(effect)))
    return len(effect.published)


def test_a_message_that_was_sent_twice_runs_once_on_the_other_side(
    case: OutboxCase, target: Target, sender: Any, tmp_path: Path
) -> None:
    case.add({"order": 17}, queue=target.queue, key=LONG_ID, headers={"Kind": "placed"})
    case.add({"order": 18}, queue=target.queue, key="order-18", order_group="customer-ö")
    assert send_and_die(case, sender) == 2
    case.clock.advance(31 * SECOND)  # its lease is over
    assert case.publisher(sender).publish_due() == 2
    assert case.stats().waiting == 0
    sent = 2 if target.is_deduplicating else 4
    assert target.count() == sent
    seen = target.consumed(f"sqlite:///{tmp_path / 'keys.db'}", sent)
    assert sorted(message.json()["order"] for message in seen) == [17, 18]
    (first,) = [message for message in seen if message.json()["order"] == 17]
    assert first.headers["oncekey-key"] == LONG_ID
    assert first.headers["kind"] == "placed"


def test_what_a_killed_publisher_had_sent_is_sent_again_and_runs_once(tmp_path: Path) -> None:
    """SIGKILL after RabbitMQ has confirmed, before the rows are deleted."""
    target, store = RabbitTarget(), f"sqlite:///{tmp_path / 'outbox.db'}"
    with Once(still_store(store)) as once:
        outbox = Outbox(once)
        outbox.create_table()
        with closing(sqlite3.connect(tmp_path / "outbox.db")) as connection:
            for order in range(3):
                outbox.add(connection, target.queue, {"order": order})
            connection.commit()
        command = [sys.executable, "-m", "tests.queues.killed_publisher", store, target.url]
        killed = subprocess.run(command, timeout=PATIENCE_S)
        assert killed.returncode == -signal.SIGKILL
        assert target.count() == outbox.stats().taken == 3
        publisher = OutboxPublisher(once, RabbitSender(target.url))
        assert publisher.publish_due() == 0
        MovedClock(f"{tmp_path / 'outbox.db'}.clock").advance(30)  # the killed one's lease is over
        assert publisher.publish_due() == 3
        publisher._sender.close()  # type: ignore[attr-defined]
    assert target.count() == 6
    seen = target.consumed(f"sqlite:///{tmp_path / 'keys.db'}", 6)
    assert sorted(message.json()["order"] for message in seen) == [0, 1, 2]


def test_a_refused_message_is_parked_and_its_neighbours_go_out(
    case: OutboxCase, target: Target, sender: Any
) -> None:
    case.add("before", queue=target.queue, order_group="a")
    missing = target.missing
    bad = []
    if missing is not None:
        bad.append(case.add("nowhere", queue=missing))
    if target.too_large is not None:
        bad.append(case.add(target.too_large, queue=target.queue))
    case.add("after", queue=target.queue, order_group="b")
    publisher = case.publisher(sender, max_tries=2, backoff="1s")
    assert publisher.publish_due() == 2
    assert target.count() == 2
    assert (case.stats().waiting, case.stats().parked) == (len(bad), 0)
    case.clock.advance(2 * SECOND)
    assert publisher.publish_due() == 0
    parked = case.do(case.outbox.parked())
    assert sorted(one.message.id for one in parked) == sorted(bad)
    assert all(one.refusals == 2 for one in parked)
    assert all("Refused: " in one.error for one in parked)


def test_a_client_of_rabbitmq_logs_nothing_of_a_message_without_a_queue(case: OutboxCase) -> None:
    sender = case.do(_made(TARGETS["rabbitmq"](), case))
    with written_log("pika") as sync_log, written_log("aiormq") as async_log:
        lost = OutgoingMessage("id-1", "no-such-queue", b"card Ada!")
        (result,) = case.do(sender.send([lost]))
    case.do(sender.close())
    assert isinstance(result, RabbitRefused)
    assert "Ada!" not in sync_log.text + async_log.text


def test_a_broker_that_is_down_refuses_nothing_and_gets_all_when_it_is_back(
    case: OutboxCase, target: Target
) -> None:
    with target.cut_off() as way:
        sender = case.do(_made(target, case))
        publisher = case.publisher(sender, max_tries=1, backoff="1s")
        case.add("first", queue=target.queue)
        assert publisher.publish_due() == 1
        for text in ("second", "third"):
            case.add(text, queue=target.queue)
        way.close()
        try:
            assert publisher.publish_due() == 0
        finally:
            way.open()
        assert (case.stats().waiting, case.stats().parked) == (2, 0)
        case.clock.advance(300 * SECOND)
        assert publisher.publish_due() == 2
        assert target.count() >= 3  # one may have arrived unconfirmed, and was sent again
        case.do(sender.close())


def test_a_message_that_ends_the_channel_of_rabbitmq_does_not_take_others_with_it(
    case: OutboxCase,
) -> None:
    """RabbitMQ closes the channel over a message beyond its limit of 16 MiB."""
    target = TARGETS["rabbitmq"]()
    sender = case.do(_made(target, case))
    bodies = (b"a", b"x" * 17_000_000, b"b", b"c")
    messages = [OutgoingMessage(f"id-{n}", target.queue, body) for n, body in enumerate(bodies)]
    results = case.do(sender.send(messages))
    assert [type(result) for result in results] == [type(None), RabbitRefused, *[type(None)] * 2]
    assert "larger than configured max size" in str(results[1])
    assert target.count() >= 3
    assert case.do(sender.send(messages[:1])) == [None]
    case.do(sender.close())
    assert case.do(sender.send(messages[2:])) == [None, None]  # it connects again
    case.do(sender.close())
