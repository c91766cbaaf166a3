"""Consumers of SQS: the loops of queues/ over the brokers of this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.blocking.consumer import Consumer
from oncekey.queues.broker import Settled
from oncekey.queues.consumer_settings import MAX_TRIES_DEFAULT
from oncekey.queues.message_key import KeyChoice
from oncekey.queues.sqs.aiobotocore_broker import AiobotocoreBroker
from oncekey.queues.sqs.boto3_broker import Boto3Broker


class SQSConsumer(Consumer):
    """Consumes a queue of SQS with boto3: `handler(message)` runs once for each key.

        consumer = SQSConsumer(once, ship, "orders", name="shipping", key="json:$.order")
        consumer.run()                      # until consumer.stop(), from a signal handler

    queue               its URL, its ARN or its name
    client              `boto3.client("sqs")`; made with the environment's settings if left out
    dead_letter_queue   where messages go that failed for good; by default the one that the queue's
                        redrive policy names
    park_queue          where messages go whose outcome nobody knows; by default the dead-letter
                        queue too

    The other options are those of every consumer (`ConsumerSettings`) and the fields of Policy.
    For a loop of your own, `handle(message_of(raw, queue))` and `settle` do the two halves.
    """

    _broker: Boto3Broker

    def __init__(
        self,
        once: Once,
        handler: Callable[..., Any],
        queue: str,
        *,
        name: str,
        key: KeyChoice,
        client: Any = None,
        dead_letter_queue: str | None = None,
        park_queue: str | None = None,
        max_tries: int = MAX_TRIES_DEFAULT,
        **options: Any,
    ) -> None:
        broker = Boto3Broker(
            client,
            queue,
            dead_letter_queue=dead_letter_queue,
            park_queue=park_queue,
            max_tries=max_tries,
        )
        super().__init__(once, handler, broker, name=name, key=key, max_tries=max_tries, **options)

    def settle(self, settled: Sequence[Settled]) -> None:
        """Delete, hide or move messages of a loop of your own, as their dispositions say."""
        self._broker.facts()
        self._broker.settle(settled)


class AsyncSQSConsumer(AsyncConsumer):
    """Consumes a queue of SQS with aiobotocore: `await handler(message)` runs once for each key.

    It has the options of SQSConsumer. `client` is what `create_client("sqs")` of an aiobotocore
    session gives, opened by `async with` or not.
    """

    _broker: AiobotocoreBroker

    def __init__(
        self,
        once: AsyncOnce,
        handler: Callable[..., Any],
        queue: str,
        *,
        name: str,
        key: KeyChoice,
        client: Any = None,
        dead_letter_queue: str | None = None,
        park_queue: str | None = None,
        max_tries: int = MAX_TRIES_DEFAULT,
        **options: Any,
    ) -> None:
        broker = AiobotocoreBroker(
            client,
            queue,
            dead_letter_queue=dead_letter_queue,
            park_queue=park_queue,
            max_tries=max_tries,
        )
        super().__init__(once, handler, broker, name=name, key=key, max_tries=max_tries, **options)

    async def settle(self, settled: Sequence[Settled]) -> None:
        """Delete, hide or move messages of a loop of your own, as their dispositions say."""
        await self._broker.facts()
        await self._broker.settle(settled)
