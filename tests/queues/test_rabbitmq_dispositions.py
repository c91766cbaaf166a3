"""What each disposition does to a message in RabbitMQ, with pika and with aio-pika."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.queues.rabbit_brokers import BrokerUnderTest, broker_of
from tests.queues.rabbit_queues import QUORUM, channel_to, delayed, publish, waiting
from tests.support.rabbitmq_queues import rabbitmq
from tests.support.servers import processes

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.disposition import REMOVE, STOPPED, DeadLetter, Disposition, Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.rabbitmq import RabbitRefused, aio_pika_session, pika_session

LETTER = Disposition(Kind.DEAD_LETTER, 0.0, "", DeadLetter("ValueError: no stock", 17, 3))
FOR_LONG = Disposition(Kind.HIDE, 3_000.0)
SHORTLY = Disposition(Kind.RETRY, 0.2)


@pytest.fixture(params=("sync", "async"))
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def channel() -> Iterator[Any]:
    with channel_to(rabbitmq().url) as made:
        yield made


@pytest.fixture
def queue(channel: Any) -> str:
    name = processes.fresh_name("orders")
    channel.queue_declare(name, durable=True, arguments=QUORUM)
    return name


@pytest.fixture
def broker(kind: str, queue: str) -> Iterator[BrokerUnderTest]:
    with broker_of(kind, rabbitmq().url, queue) as made:
        made.facts()
        yield made


def bodies(messages: list[Message]) -> list[str]:
    return sorted(message.text for message in messages)


def receive_all(broker: BrokerUnderTest, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        more = broker.receive()
        assert more, f"{len(found)} of {count} messages came"
        found += more
    return found


def test_what_is_removed_never_comes_again(
    channel: Any, queue: str, broker: BrokerUnderTest
) -> None:
    for number in range(6):
        publish(channel, queue, str(number))
    found = receive_all(broker, 6)
    # Not in their order, so that the first two go by one ack and the last by its own.
    broker.settle([(found[5], REMOVE), (found[1], REMOVE), (found[0], REMOVE)])
    broker.leave()
    processes.wait_until(lambda: waiting(channel, queue) == 3, "the others are given back")


def test_a_delayed_message_comes_back_with_its_content_and_count(
    channel: Any, queue: str, broker: BrokerUnderTest
) -> None:
    elsewhere = f"{queue}.copies"
    channel.queue_declare(elsewhere, durable=True, arguments=QUORUM)
    headers = {"tenant": "acme", "CC": [elsewhere], "weight": 3}
    publish(channel, queue, "order", headers, message_id="m-1", type="order", expiration="60000")
    (message,) = broker.receive()
    assert message.headers["message-id"] == message.delivery_id == "m-1"
    assert message.headers["weight"] == "3"
    assert message.receive_count == 1
    before = time.monotonic()
    broker.settle([(message, SHORTLY)])
    (again,) = broker.receive()
    assert time.monotonic() - before >= 0.2
    assert again.body == b"order"
    assert again.receive_count == 2
    assert again.raw.properties["type"] == "order"
    assert again.raw.properties["headers"]["weight"] == 3
    assert waiting(channel, elsewhere) == 1  # the publisher's, and no second one


def test_a_classic_queue_is_consumed_alike(kind: str, channel: Any) -> None:
    queue = processes.fresh_name("orders")
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
    node = rabbitmq()
    with broker_of(kind, node.url, queue, management_url=node.management_url) as broker:
        assert broker.facts().hold_max is None
        publish(channel, queue, "order")
        (message,) = broker.receive()
        broker.settle([(message, SHORTLY)])
        (again,) = broker.receive()
        assert again.receive_count == 2
        broker.settle([(again, STOPPED)])
        (third,) = broker.receive()
        assert third.receive_count == 3
        broker.settle([(third, LETTER)])
    assert (waiting(channel, queue), waiting(channel, f"{queue}.dead")) == (0, 1)


def test_a_message_that_is_hidden_for_long_holds_up_no_other(
    channel: Any, queue: str, broker: BrokerUnderTest
) -> None:
    publish(channel, queue, "first")
    (first,) = broker.receive()
    broker.settle([(first, FOR_LONG)])
    publish(channel, queue, "second")
    (second,) = broker.receive()
    broker.settle([(second, SHORTLY)])
    assert bodies(broker.receive()) == ["second"]
    assert delayed(channel, queue) == 1


def test_a_dead_letter_has_its_error_and_replaces_older_marks(
    channel: Any, queue: str, broker: BrokerUnderTest
) -> None:
    old = {"oncekey-fence": "1", "oncekey-redrive": "monday", "tenant": "acme"}
    publish(channel, queue, "order", old, user_id="guest", expiration="60000")
    (message,) = broker.receive()
    broker.settle([(message, LETTER)])
    assert waiting(channel, queue) == 0
    method, properties, body = channel.basic_get(f"{queue}.dead", auto_ack=True)
    assert method is not None
    assert body == b"order"
    assert properties.headers == {
        "tenant": "acme",
        "oncekey-error": "ValueError: no stock",
        "oncekey-fence": "17",
        "oncekey-tries": "3",
    }
    assert properties.delivery_mode == 2
    assert properties.expiration is None  # it would vanish
    assert properties.user_id is None  # RabbitMQ refuses another user's


def test_a_parked_message_is_where_operators_see_it(
    channel: Any, queue: str, broker: BrokerUnderTest
) -> None:
    publish(channel, queue, "order")
    (message,) = broker.receive()
    broker.settle([(message, Disposition(Kind.PARK, reason="OutcomeUnknown: nobody knows"))])
    _, properties, body = channel.basic_get(f"{queue}.parked", auto_ack=True)
    assert body == b"order"
    assert properties.headers["oncekey-error"] == "OutcomeUnknown: nobody knows"


def test_a_message_that_is_given_back_is_not_sent_here_again_at_once(
    channel: Any, queue: str, broker: BrokerUnderTest
) -> None:
    publish(channel, queue, "order")
    (message,) = broker.receive()
    broker.settle([(message, STOPPED)])
    processes.wait_until(lambda: waiting(channel, queue) == 1, "it waits in the queue")
    (again,) = broker.receive()
    assert again.receive_count == 2
    assert "x-delivery-count" not in again.headers  # so it does not count as a failed delivery


def test_closing_gives_everything_back_without_a_failed_delivery(
    kind: str, channel: Any, queue: str
) -> None:
    publish(channel, queue, "order")
    with broker_of(kind, rabbitmq().url, queue) as first:
        assert bodies(first.receive()) == ["order"]
    with broker_of(kind, rabbitmq().url, queue) as second:
        (message,) = second.receive()
        assert "x-delivery-count" not in message.headers


def test_a_letter_that_its_queue_refuses_waits_and_is_not_lost(
    kind: str, channel: Any, queue: str
) -> None:
    dead = f"{queue}.dead"
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare(dead, durable=True, arguments=full)
    with broker_of(kind, rabbitmq().url, queue) as broker:
        broker.facts()
        for number in range(4):
            publish(channel, queue, str(number))
        found = receive_all(broker, 4)
        for message in found:
            broker.settle([(message, LETTER)])
        moved = waiting(channel, dead)
        assert moved >= 1
        assert delayed(channel, queue) == 4 - moved > 0
        channel.queue_delete(dead)
        publish(channel, queue, "5")
        (message,) = broker.receive()
        broker.settle([(message, LETTER)])
        assert delayed(channel, queue) == 5 - moved


def test_a_message_whose_headers_fill_a_frame_can_become_a_dead_letter(
    broker: BrokerUnderTest, channel: Any, queue: str
) -> None:
    """RabbitMQ ends the connection of whoever sends more, and would do so with every try."""
    publish(channel, queue, "a", {"trace": "x" * 130_950, "shop": "s-1"})
    (message,) = broker.receive()
    broker.settle([(message, LETTER)])
    _, properties, body = channel.basic_get(f"{queue}.dead", auto_ack=True)
    assert body == b"a"
    assert properties.headers["shop"] == "s-1"
    assert properties.headers["oncekey-error"] == "ValueError: no stock"
    assert properties.headers["oncekey-left-out"] == "trace"
    assert waiting(channel, queue) == 0


def test_a_queue_that_confirms_nothing_is_not_waited_for_for_ever(
    broker: BrokerUnderTest, channel: Any, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(channel, queue, "a")
    (message,) = broker.receive()
    dead = f"{queue}.dead"
    rabbitmq().suspend_queue(dead)
    try:
        with monkeypatch.context() as hurried:
            for session in (pika_session, aio_pika_session):
                hurried.setattr(session, "PUBLISH_TIMEOUT_S", 0.5)
            with pytest.raises(BrokerUnavailable):
                broker.settle([(message, LETTER)])
    finally:
        rabbitmq().resume_queue(dead)
    (again,) = broker.receive()  # by another connection
    broker.settle([(again, LETTER)])
    assert waiting(channel, queue) == 0
    assert waiting(channel, dead) >= 1


def test_redrive_moves_no_more_letters_than_there_are(
    channel: Any, queue: str, broker: BrokerUnderTest
) -> None:
    for number in range(3):
        publish(channel, f"{queue}.dead", str(number), {"oncekey-fence": "17"})
    assert broker.redrive(2, "tuesday") == 2
    assert broker.redrive(10, "tuesday") == 1
    assert broker.redrive(10, "tuesday") == 0
    found = receive_all(broker, 3)
    assert bodies(found) == ["0", "1", "2"]
    assert {m.headers["oncekey-redrive"] for m in found} == {"tuesday"}
    assert {m.headers["oncekey-fence"] for m in found} == {"17"}


def test_a_queue_that_delays_by_itself_is_left_to_do_it(kind: str, channel: Any) -> None:
    queue = processes.fresh_name("orders")
    delays = {"x-delayed-retry-type": "returned", "x-delayed-retry-min": 300}
    channel.queue_declare(queue, durable=True, arguments=QUORUM | delays)
    node = rabbitmq()
    with broker_of(kind, node.url, queue, management_url=node.management_url) as broker:
        broker.facts()
        publish(channel, queue, "order")
        (message,) = broker.receive()
        before = time.monotonic()
        broker.settle([(message, Disposition(Kind.RETRY, 0.5))])
        assert delayed(channel, queue) == 0
        (again,) = broker.receive()
        assert time.monotonic() - before >= 0.3
        assert again.receive_count == 2
        # It delays for 0.3 seconds, which is too often for a message that shall wait an hour.
        broker.settle([(again, FOR_LONG)])
        assert delayed(channel, queue) == 1


def test_a_delivery_of_a_lost_connection_is_told_and_comes_again(
    kind: str, channel: Any, queue: str
) -> None:
    publish(channel, queue, "order")
    with broker_of(kind, rabbitmq().url, queue) as broker:
        (message,) = broker.receive()
        broker._call(broker.broker.sessions.current.close)
        assert bodies(broker.receive()) == ["order"]
        with pytest.raises(BrokerUnavailable, match="lost meanwhile"):
            broker.settle([(message, REMOVE)])


# --- the start ------------------------------------------------------------------------------------


def test_a_missing_queue_is_declared_only_on_demand(
    kind: str, channel: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = processes.fresh_name("orders")
    with (
        broker_of(kind, rabbitmq().url, queue) as broker,
        pytest.raises(ConfigurationError, match="there is no queue"),
    ):
        broker.facts()
    with broker_of(kind, rabbitmq().url, queue, declare=True) as broker:
        assert broker.facts().hold_max == 1_800
    arguments = rabbitmq().ask("GET", f"queues/%2F/{queue}")["arguments"]
    assert arguments["x-queue-type"] == "quorum"
    assert arguments["x-dead-letter-routing-key"] == f"{queue}.dead"
    told = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert told == []  # the clients would warn of each queue that is not there yet


def test_a_delay_queue_that_is_declared_otherwise_is_refused(
    kind: str, channel: Any, queue: str
) -> None:
    channel.queue_declare(f"{queue}.delay.1000ms", durable=True)
    with (
        broker_of(kind, rabbitmq().url, queue) as broker,
        pytest.raises(RabbitRefused, match="inequivalent arg"),
    ):
        broker.facts()


def test_a_node_that_does_not_answer_is_unavailable(kind: str) -> None:
    url = f"amqp://127.0.0.1:{processes.free_port()}/"
    with (
        broker_of(kind, [url, url], "orders") as broker,
        pytest.raises(BrokerUnavailable, match="111"),
    ):
        broker.facts()


def test_facts_are_asked_of_the_management_api(kind: str, channel: Any) -> None:
    queue = processes.fresh_name("orders")
    limits = {"x-message-ttl": 90_000, "x-delivery-limit": 7, "x-consumer-timeout": 60_000}
    channel.queue_declare(queue, durable=True, arguments=QUORUM | limits)
    node = rabbitmq()
    with broker_of(kind, node.url, queue, management_url=node.management_url) as broker:
        facts = broker.facts()
    expected = (queue, None, 90.0, 60.0, 8, False)
    assert json.dumps(facts[: len(expected)]) == json.dumps(expected)
    assert str(facts.broker).startswith("rabbitmq vhost=/ cluster=")
