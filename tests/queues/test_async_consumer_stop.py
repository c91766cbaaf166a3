"""A consumer in tasks that is stopped in the middle of something."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from oncekey import AsyncOnce
from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.broker import Settled
from oncekey.queues.memory_broker import AsyncMemoryBroker, MemoryBroker
from oncekey.queues.queue_message import Message

PATIENCE_S = 90.0


class SlowBroker(AsyncMemoryBroker):
    """A broker that takes its time to settle."""

    def __init__(self, queue: MemoryBroker) -> None:
        super().__init__(queue)
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()

    async def settle(self, settled: Sequence[Settled]) -> None:
        self.entered.set()
        await self.gate.wait()
        await super().settle(settled)


async def _stop_while_settling(queue: MemoryBroker) -> None:
    async def handler(message: Message) -> None:
        return None

    async with AsyncOnce("memory://") as once:
        broker = SlowBroker(queue)
        consumer = AsyncConsumer(once, handler, broker, name="shipping", key="json:$.id")
        running = asyncio.create_task(consumer.run())
        await asyncio.wait_for(broker.entered.wait(), PATIENCE_S)
        consumer.stop()
        for _ in range(50):  # it goes as far as it can
            await asyncio.sleep(0)
        broker.gate.set()
        await asyncio.wait_for(running, PATIENCE_S)


def test_what_is_being_settled_is_settled_before_the_consumer_ends() -> None:
    queue = MemoryBroker()
    queue.send('{"id": 1}')
    asyncio.run(_stop_while_settling(queue))
    assert len(queue) == 0
