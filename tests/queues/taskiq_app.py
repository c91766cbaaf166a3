"""Taskiq tasks on a broker of two Valkey lists, run by Taskiq's own receiver.

A message is moved from the list of the waiting to that of the held, and removed from there when it
is acknowledged; a worker that starts takes back what dead ones held. `work` is a worker. The clock
of their store stands still, so that no lease ends before the test says so.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

import redis.asyncio as redis
from taskiq import AsyncBroker, BrokerMessage
from taskiq.acks import AckableMessage
from taskiq.receiver import Receiver
from tests.queues.moved_clock import clocked_store

from oncekey import AsyncOnce, Policy
from oncekey.queues.taskiq import idempotent_task

WAITING: Final = "tasks"
HELD: Final = "held"
LEASE_S: Final = 1
GATE_S: Final = 200


class ListBroker(AsyncBroker):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.client: Any = redis.Redis.from_url(url, socket_timeout=GATE_S + 5)

    async def kick(self, message: BrokerMessage) -> None:
        await self.client.rpush(WAITING, message.message)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        while await self.client.lmove(HELD, WAITING):
            pass
        while True:
            data = await self.client.blmove(WAITING, HELD, 1)
            if data is not None:
                yield AckableMessage(data=data, ack=self._remover(data))

    def _remover(self, data: bytes) -> Callable[[], Awaitable[None]]:
        async def remove() -> None:
            await self.client.lrem(HELD, 1, data)

        return remove


url = os.environ["ONCEKEY_TEST_BROKER"]
broker = ListBroker(url)
store = clocked_store(os.environ["ONCEKEY_TEST_STORE"], is_async=True)
once = AsyncOnce(store, policy=Policy(lease=f"{LEASE_S}s"))


async def effect(name: str) -> None:
    """Note one run; then wait until the test opens the gate of this name."""
    await broker.client.rpush(f"effects:{name}", os.getpid())
    gate = f"gate:{name}"  # what it moves stays, also if this process dies meanwhile
    assert await broker.client.blmove(gate, gate, GATE_S), f"nobody opened {gate}"


@idempotent_task(once, key=lambda name: name)
@broker.task
async def ship(name: str) -> None:
    await effect(name)


@idempotent_task(once, key=lambda name: name, retry_safe=True)
@broker.task
async def ship_again(name: str) -> None:
    await effect(name)


async def work() -> None:
    await broker.startup()
    await Receiver(broker, max_async_tasks=10).listen(asyncio.Event())
