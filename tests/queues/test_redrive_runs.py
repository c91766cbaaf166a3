"""One redrive moves each message at most once, also while handlers still fail, and parked messages
go back to their queue: on every broker whose messages have headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.queues.kafka_topics import Topic, consumer_of
from tests.queues.rabbit_queues import RabbitQueues
from tests.queues.sqs_queues import SqsQueues
from tests.queues.stream_queues import StreamQueues
from tests.support import kafka_servers, redis_stores
from tests.support.rabbitmq_queues import rabbitmq
from tests.support.servers import processes
from tests.support.servers.elasticmq_server import elasticmq
from tests.support.servers.sqs_server import sqs

from oncekey import Once
from oncekey.core.errors import ConfigurationError
from oncekey.queues import Consumer, MemoryBroker
from oncekey.queues.disposition import DeadLetter, Disposition, Kind
from oncekey.queues.redis_streams import program as stream_program
from oncekey.queues.redis_streams.message import LOST_FIELD
from oncekey.queues.redrive import REDRIVE_HEADER

LETTERS = 12  # more than SQS gives at a time
DEAD = Disposition(Kind.DEAD_LETTER, 0.0, "", DeadLetter("Terminal: no such item", 17, 3))
PARK = Disposition(Kind.PARK, 0.0, "OutcomeUnknown: its process died")
OPTIONS: dict[str, Any] = {"name": "shipping", "key": "json:$.id"}


class Case:
    """A queue with messages, and as many brokers on it as a test wants."""

    def __init__(self, broker: Callable[[], Any]) -> None:
        self._make = broker
        self._made: list[Any] = []

    def broker(self) -> Any:
        broker = self._make()
        self._made.append(broker)
        return broker

    def settle_all(self, broker: Any, disposition: Disposition, expected: int) -> list[Any]:
        """Settle what is in the queue; it must become `expected` messages."""
        found: list[Any] = []

        def is_all() -> bool:
            taken = list(broker.receive(50, 1.0, 60.0))
            broker.settle([(message, disposition) for message in taken])
            found.extend(taken)
            return len(found) >= expected

        if expected:
            processes.wait_until(is_all, f"{expected} messages came", 90.0)
        return found

    def close(self) -> None:
        for broker in self._made:
            broker.close()


def _memory() -> Case:
    queue = MemoryBroker()
    for number in range(LETTERS):
        queue.send(f'{{"id": {number}}}')
    return Case(lambda: queue)


def _of(queues: Any) -> Case:
    name, once = processes.fresh_name("redriven"), Once("memory://")
    queues.send(name, [f'{{"id": {number}}}' for number in range(LETTERS)])
    return Case(lambda: queues.consumer(once, name, print, **OPTIONS).broker)


class _ParkingSqs(SqsQueues):
    """With a queue of its own for parked messages."""

    def consumer(self, once: Once, queue: str, handler: Any, **options: Any) -> Any:
        self._client.create_queue(QueueName=f"{queue}-parked")
        return super().consumer(once, queue, handler, park_queue=f"{queue}-parked", **options)


CASES: dict[str, Callable[[], Case]] = {
    "memory": _memory,
    "sqs": lambda: _of(_ParkingSqs(sqs().options())),
    "elasticmq": lambda: _of(_ParkingSqs(elasticmq().options())),
    "rabbitmq": lambda: _of(RabbitQueues(rabbitmq().url)),
    "redis": lambda: _of(StreamQueues(redis_stores.valkey().url())),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(stream_program, "REDRIVE_BATCH", 5)
    made = CASES[request.param]()
    yield made
    made.close()


def test_a_redrive_moves_no_letter_twice_while_the_handler_still_fails(case: Case) -> None:
    """The consumer is as fast as it can be: each letter that is moved is a dead letter again before
    the redrive goes on."""
    consuming = case.broker()
    consuming.facts()
    case.settle_all(consuming, DEAD, LETTERS)
    failed = 0

    def go_on(moved: int) -> bool:
        nonlocal failed
        case.settle_all(consuming, DEAD, moved - failed)
        failed = moved
        return True

    redriving = case.broker()  # whose facts nobody has asked
    assert redriving.redrive(1_000, "INC-7", go_on=go_on) == LETTERS
    case.settle_all(consuming, DEAD, LETTERS - failed)
    assert redriving.redrive(1_000, "INC-8") == LETTERS, "another redrive moves them again"


def test_a_redrive_ends_when_it_is_told_to(case: Case) -> None:
    consuming = case.broker()
    consuming.facts()
    case.settle_all(consuming, DEAD, LETTERS)
    redriving = case.broker()
    moved = redriving.redrive(5, "INC-7", go_on=lambda moved: False)
    assert 1 <= moved <= 5
    assert moved + redriving.redrive(1_000, "INC-7") == LETTERS


def test_parked_messages_go_back_without_the_mark_that_opens_failed_keys(case: Case) -> None:
    consuming = case.broker()
    consuming.facts()
    case.settle_all(consuming, PARK, LETTERS)
    redriving = case.broker()
    assert redriving.redrive(1_000, "INC-7") == 0, "they are no dead letters"
    parked_again = 0

    def go_on(moved: int) -> bool:
        nonlocal parked_again
        back = case.settle_all(consuming, PARK, moved - parked_again)
        assert all(REDRIVE_HEADER not in message.headers for message in back)
        assert all("OutcomeUnknown" not in str(message.headers) for message in back)
        parked_again = moved
        return True

    assert redriving.redrive(1_000, "INC-8", parked=True, go_on=go_on) == LETTERS


def test_on_sqs_parked_messages_without_a_queue_of_their_own_are_refused() -> None:
    case = _of(SqsQueues(sqs().options()))
    with pytest.raises(ConfigurationError, match="among its dead letters"):
        case.broker().redrive(10, "INC-7", parked=True)
    case.close()


def test_notes_of_trimmed_entries_are_not_moved_as_parked_messages() -> None:
    case, server = CASES["redis"](), redis_stores.valkey()
    broker = case.broker()
    broker.facts()
    case.settle_all(broker, PARK, LETTERS)
    parked = broker.program.settings.parked_key
    with server.client() as client:
        client.xadd(parked, {LOST_FIELD: "1-1"})
        assert broker.redrive(1_000, "INC-7", parked=True) == LETTERS
        assert client.xlen(parked) == 1
    case.close()


def test_on_kafka_a_redrive_ends_at_what_was_there_when_it_began() -> None:
    topic = Topic(kafka_servers.headers_kafka().client)
    with Once("memory://") as once:
        broker = consumer_of(topic, once, print).broker
        for source, parked in ((topic.dead, False), (topic.parked, True)):
            _write(topic, source, LETTERS)

            def go_on(moved: int, source: str = source) -> bool:
                _write(topic, source, 1)  # it has failed again
                return True

            assert broker.redrive(1_000, "INC-7", parked=parked, go_on=go_on) == LETTERS
        back = topic.read(topic.name, 2 * LETTERS)
        marked = [REDRIVE_HEADER in dict(message.headers() or []) for message in back]
        assert sum(marked) == LETTERS


def _write(topic: Topic, name: str, many: int) -> None:
    topic.ends(name)  # the broker makes it
    for number in range(many):
        topic._producer.produce(name, b"{}", partition=0, headers=[("n", str(number))])
    topic.flush()


def test_a_parked_message_whose_key_has_succeeded_is_removed_when_it_comes_back() -> None:
    """As after `oncekey resolve`: the record decides, and no handler runs."""
    queue, ran = MemoryBroker(), list[Any]()
    with Once("memory://") as once:
        consumer = Consumer(once, lambda message: ran.append(message.text), queue, **OPTIONS)
        for disposition in (PARK, None):
            queue.send('{"id": 1}')
            (message,) = queue.receive(1, 0.0, 60.0)
            queue.settle([(message, disposition or consumer.handle(message))])
        assert queue.redrive(10, "INC-7", parked=True) == 1
        (back,) = queue.receive(1, 0.0, 60.0)
        assert consumer.handle(back).kind is Kind.REMOVE
    assert len(ran) == 1
