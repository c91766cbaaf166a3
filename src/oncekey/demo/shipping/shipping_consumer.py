"""The consumer of orders, guarded by oncekey: each order is shipped once, however often its message
is delivered.

This is the module to copy from.
"""

from __future__ import annotations

from collections.abc import Callable

from oncekey import AsyncAttempt, AsyncOnce
from oncekey.core.codec import JSON
from oncekey.demo.api.provider_client import ProviderClient, Receipt
from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.broker import AsyncBroker
from oncekey.queues.queue_message import Message

NAME = "shipping"


def shipping_consumer(
    once: AsyncOnce,
    queue: AsyncBroker,
    provider: ProviderClient,
    *,
    on_run: Callable[[Message], None],
) -> AsyncConsumer:
    """`on_run` is called with each message whose order is shipped; the demo's log shows it."""

    async def ship(message: Message, attempt: AsyncAttempt) -> Receipt:
        on_run(message)
        order = message.json()
        receipt: Receipt = await attempt.step(
            "provider:ship",
            lambda key: provider.ship(key, order["order"], order["card"]),
            codec=JSON,
        )
        return receipt

    # The order's number is the key, not the message's: an order that is sent twice is shipped once.
    return AsyncConsumer(once, ship, queue, name=NAME, key="json:$.order", retry_safe=True)
