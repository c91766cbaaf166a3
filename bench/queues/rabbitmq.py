"""RabbitMQ with aio-pika, from tasks of one process, on a quorum queue.

The bare loop takes messages as they come, handles a bounded number of them at once and acknowledges
each: what aio-pika's documentation has, with a prefetch as large as the consumer's.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from bench.postgres import load
from bench.queues.meter import Meter
from oncekey import AsyncOnce, Policy
from oncekey.queues.rabbitmq import AsyncRabbitConsumer

POLICY = Policy(lease="30s", keep="24h")
_CONFIRMED_AT_ONCE = 500
_queues = itertools.count()


class RabbitQueues:
    """A node of RabbitMQ, and the database of those who guard."""

    def __init__(self, node: str, database: str) -> None:
        self.node = node
        self.database = database

    def bare(self, concurrency: int, batch: int, seconds: float) -> float:
        """The loop without a guard."""

        async def slice(meter: Meter) -> None:
            slots = asyncio.Semaphore(concurrency)

            async def handle(message: AbstractIncomingMessage) -> None:
                async with slots:
                    await meter.handle_async(message)
                await message.ack()

            await self._loop(meter, batch, handle)

        return self._measured(seconds, slice)

    def one_at_a_time(self, seconds: float, messages: int) -> float:
        """The loop with a guard around each message, one after the other."""

        async def slice(meter: Meter) -> None:
            turn = asyncio.Lock()
            async with AsyncOnce(self.database, policy=POLICY) as once:

                async def handle(message: AbstractIncomingMessage) -> None:
                    async with turn:
                        key = message.message_id or ""
                        await once.run("one", key, meter.handle_async, request=message.body)
                    await message.ack()

                await self._loop(meter, 1, handle)

        return self._measured(seconds, slice, messages)

    def guarded(self, concurrency: int, batch: int, seconds: float) -> float:
        async def slice(meter: Meter) -> None:
            queue = await self._filled(meter.messages)
            async with AsyncOnce(self.database, policy=POLICY) as once:
                consumer = AsyncRabbitConsumer(
                    once,
                    meter.handle_async,
                    queue,
                    url=self.node,
                    name="bench",
                    key="header:message-id",
                    retry_safe=True,
                    concurrency=concurrency,
                    batch=batch,
                )
                running = asyncio.create_task(consumer.run())
                try:
                    await meter.wait_async()
                finally:
                    consumer.stop()
                    await running

        return self._measured(seconds, slice)

    def _measured(
        self, seconds: float, slice: Callable[[Meter], Awaitable[None]], messages: int | None = None
    ) -> float:
        meter = Meter(seconds) if messages is None else Meter(seconds, messages)

        async def main() -> None:
            await slice(meter)

        asyncio.run(main())
        return meter.us

    async def _filled(self, messages: int) -> str:
        """A quorum queue with so many messages, each with a key of its own."""
        name = f"bench-{next(_queues)}"
        async with await aio_pika.connect(self.node) as connection:
            channel = await connection.channel()
            await channel.queue_delete(name)
            await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
            for first in range(0, messages, _CONFIRMED_AT_ONCE):
                count = min(_CONFIRMED_AT_ONCE, messages - first)
                await asyncio.gather(*(_publish(channel, name) for _ in range(count)))
        return name

    async def _loop(
        self,
        meter: Meter,
        prefetch: int,
        handle: Callable[[AbstractIncomingMessage], Awaitable[None]],
    ) -> None:
        name = await self._filled(meter.messages)
        async with await aio_pika.connect(self.node) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=prefetch)
            queue = await channel.get_queue(name)
            tag = await queue.consume(handle)
            await meter.wait_async()
            with suppress(aio_pika.exceptions.AMQPError):
                await queue.cancel(tag)


async def _publish(channel: aio_pika.abc.AbstractChannel, queue: str) -> None:
    key = load.fresh_key()
    body = f'{{"order": "{key}"}}'.encode()
    message = aio_pika.Message(body, message_id=key, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    await channel.default_exchange.publish(message, queue)
