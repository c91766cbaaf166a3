"""Consumers of RabbitMQ: the loops of queues/ over the brokers of this package."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.blocking.consumer import Consumer
from oncekey.queues.message_key import KeyChoice
from oncekey.queues.missing_client import client_of
from oncekey.queues.rabbitmq.rabbit_settings import RabbitSettings


class RabbitConsumer(Consumer):
    """Consumes a queue of RabbitMQ with pika: `handler(message)` runs once for each key.

        consumer = RabbitConsumer(
            once, ship, "orders", url="amqp://...", name="shipping", key="json:$.order"
        )
        consumer.run()                      # until consumer.stop(), from a signal handler

    queue              its name
    url                amqp://user:password@host:5672/vhost; or several, of one cluster's nodes
    dead_letter_queue  where messages go that failed for good; `QUEUE.dead`, declared if need be
    park_queue         where messages go whose outcome nobody knows; `QUEUE.parked`
    declare            declare the queue, as a quorum queue, if there is none
    management_url     http://user:password@host:15672: ask there for the queue's type and policy
    consumer_timeout   the consumer timeout of the servers, where they were not left at 30 minutes
    identity           for key="delivery": a name that tells this queue from a later one of the
                       same name

    The other options are those of every consumer (`ConsumerSettings`) and the fields of Policy.
    """

    def __init__(
        self,
        once: Once,
        handler: Callable[..., Any],
        queue: str,
        *,
        name: str,
        key: KeyChoice,
        url: str | Sequence[str],
        **options: Any,
    ) -> None:
        settings, others = settings_of(queue, url, options)
        with client_of("RabbitMQ", extra="rabbitmq"):
            from oncekey.queues.rabbitmq.pika_broker import PikaBroker
        broker = PikaBroker(settings)
        super().__init__(once, handler, broker, name=name, key=key, **others)
        broker.use_prefetch(self.settings.batch_size)


class AsyncRabbitConsumer(AsyncConsumer):
    """Consumes a queue of RabbitMQ with aio-pika: `await handler(message)` runs once for each key.

    It has the options of RabbitConsumer.
    """

    def __init__(
        self,
        once: AsyncOnce,
        handler: Callable[..., Any],
        queue: str,
        *,
        name: str,
        key: KeyChoice,
        url: str | Sequence[str],
        **options: Any,
    ) -> None:
        settings, others = settings_of(queue, url, options)
        with client_of("RabbitMQ", extra="rabbitmq-async"):
            from oncekey.queues.rabbitmq.aio_pika_broker import AioPikaBroker
        broker = AioPikaBroker(settings)
        super().__init__(once, handler, broker, name=name, key=key, **others)
        broker.use_prefetch(self.settings.batch_size)


def settings_of(
    queue: str, url: str | Sequence[str], options: dict[str, Any]
) -> tuple[RabbitSettings, dict[str, Any]]:
    """The settings of the broker among a consumer's options, and the others."""
    mine = {field.name for field in dataclasses.fields(RabbitSettings)} - {"prefetch"}
    taken = {name: value for name, value in options.items() if name in mine}
    others = {name: value for name, value in options.items() if name not in mine}
    return RabbitSettings(url=url, queue=queue, **taken), others
