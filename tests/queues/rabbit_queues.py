"""RabbitMQ for the kill harness, and what the tests of its consumers ask of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pika
import pika.exceptions

from oncekey import AsyncOnce, Once
from oncekey.queues.rabbitmq import AsyncRabbitConsumer, RabbitConsumer
from oncekey.queues.rabbitmq.message import DELAY_MAX_S, DELAY_MIN_S
from oncekey.queues.rabbitmq.settings import names_of

QUORUM = {"x-queue-type": "quorum"}


@contextmanager
def channel_to(url: str) -> Iterator[Any]:
    """A channel with confirms, on a connection of its own."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        if connection.is_open:
            connection.close()


def publish(
    channel: Any,
    queue: str,
    body: str | bytes,
    headers: Mapping[str, Any] | None = None,
    **more: Any,
) -> None:
    properties = pika.BasicProperties(delivery_mode=2, headers=dict(headers or {}), **more)
    data = body.encode() if isinstance(body, str) else body
    channel.basic_publish("", queue, data, properties, mandatory=True)


def waiting(channel: Any, queue: str) -> int:
    """How many messages wait in a queue; 0 if there is none of that name."""
    probe = channel.connection.channel()
    try:
        count: int = probe.queue_declare(queue, passive=True).method.message_count
    except pika.exceptions.ChannelClosedByBroker:
        return 0
    probe.close()
    return count


def delayed(channel: Any, queue: str) -> int:
    """How many messages of a queue wait in its delay queues."""
    names, seconds, count = names_of(queue, None, None), DELAY_MIN_S, 0
    while seconds <= DELAY_MAX_S:
        count += waiting(channel, names.delay_queue(seconds))
        seconds *= 2
    return count


class RabbitQueues:
    """A `QueueUnderTest`; its argument is the address of a node."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._consumer: Any = None
        self._was_empty = False

    def send(self, queue: str, bodies: Sequence[str]) -> None:
        with channel_to(self._url) as channel:
            channel.queue_declare(queue, durable=True, arguments=QUORUM)
            for body in bodies:
                publish(channel, queue, body)

    def consumer(
        self, once: Once, queue: str, handler: Callable[..., Any], **options: Any
    ) -> RabbitConsumer:
        made = RabbitConsumer(once, handler, queue, url=self._url, **options)
        self._consumer = made
        return made

    def async_consumer(
        self, once: AsyncOnce, queue: str, handler: Callable[..., Any], **options: Any
    ) -> AsyncRabbitConsumer:
        made = AsyncRabbitConsumer(once, handler, queue, url=self._url, **options)
        self._consumer = made
        return made

    def is_drained(self, queue: str) -> bool:
        """True if nothing waits, and this process holds nothing, for the second time: a message
        that is on its way from RabbitMQ is in nobody's count, and has come by the next look."""
        is_empty = self._is_empty(queue)
        was_empty, self._was_empty = self._was_empty, is_empty
        return is_empty and was_empty

    def _is_empty(self, queue: str) -> bool:
        """What is cheap to know is asked first, since the delays are many queues. Then all is asked
        in the order in which a message moves, so that none is missed on its way."""
        session = self._consumer._broker.sessions.current
        if session is None or session.program.unsettled:
            return False
        with channel_to(self._url) as channel:
            if waiting(channel, queue):
                return False
            left = delayed(channel, queue) + waiting(channel, queue)
        return not left and not session.program.unsettled
