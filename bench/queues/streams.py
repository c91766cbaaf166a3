"""Redis Streams on Valkey, from tasks of one process.

The bare loop reads batches, handles each with a bounded number of tasks and acknowledges it with
one call: what one would write by hand for speed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import redis.asyncio as redis
from idemkit import QueueConfig
from idemkit.adapters.queue import IdempotentConsumer
from idemkit.backends.postgres import PostgresBackend

from bench.postgres import load
from bench.queues.meter import Meter
from oncekey import AsyncOnce, Policy
from oncekey.queues.redis_streams import AsyncRedisStreamConsumer

BATCH = 64
GROUP = "bench"
POLICY = Policy(lease="30s", keep="24h")
_streams = itertools.count()

Entry = tuple[bytes, dict[bytes, bytes]]
HandleAll = Callable[[list[Entry]], Awaitable[None]]


class Streams:
    """A server of streams, and the databases of those who guard."""

    def __init__(self, server: str, database: str, peer_database: str) -> None:
        self.server = server
        self.database = database
        self.peer_database = peer_database

    def bare(self, concurrency: int, seconds: float) -> float:
        """The loop without a guard."""

        async def slice(meter: Meter) -> None:
            handle = _at_most(concurrency, meter.handle_async)
            await self._loop(meter, lambda entries: _gathered(entries, handle))

        return self._measured(seconds, slice)

    def one_at_a_time(self, seconds: float, messages: int) -> float:
        """The loop with a guard around each message, one after the other."""

        async def slice(meter: Meter) -> None:
            async with AsyncOnce(self.database, policy=POLICY) as once:

                async def handle_all(entries: list[Entry]) -> None:
                    for _, fields in entries:
                        key = fields[b"key"].decode()
                        await once.run("one", key, meter.handle_async, request=fields[b"body"])

                await self._loop(meter, handle_all)

        return self._measured(seconds, slice, messages)

    def peer(self, concurrency: int, seconds: float, messages: int) -> float:
        """The loop with idemkit around each message."""

        async def slice(meter: Meter) -> None:
            backend = PostgresBackend.from_url(
                self.peer_database, min_size=concurrency, max_size=concurrency
            )
            config = QueueConfig(
                dedup_id=lambda entry: entry[1][b"key"].decode(), visibility_timeout_seconds=30
            )
            async with backend:
                guard = IdempotentConsumer(
                    backend=backend, config=config, handler=meter.handle_async
                )
                handle = _at_most(concurrency, guard.dispatch)
                await self._loop(meter, lambda entries: _gathered(entries, handle))

        return self._measured(seconds, slice, messages)

    def guarded(self, concurrency: int, batch: int, seconds: float) -> float:
        async def slice(meter: Meter) -> None:
            stream = await self._filled(meter.messages)
            async with AsyncOnce(self.database, policy=POLICY) as once:
                consumer = AsyncRedisStreamConsumer(
                    once,
                    meter.handle_async,
                    stream,
                    server=self.server,
                    name=GROUP,
                    key="header:key",
                    start="first",
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
        """A stream with so many messages, each with a key of its own."""
        stream = f"bench-{next(_streams)}"
        async with redis.Redis.from_url(self.server) as client:
            await client.delete(stream)
            for first in range(0, messages, 1_000):
                pipeline = client.pipeline(transaction=False)
                for _ in range(first, min(first + 1_000, messages)):
                    key = load.fresh_key()
                    pipeline.xadd(stream, {"key": key, "body": f'{{"order": "{key}"}}'})
                await pipeline.execute()
        return stream

    async def _loop(self, meter: Meter, handle_all: HandleAll) -> None:
        stream = await self._filled(meter.messages)
        async with redis.Redis.from_url(self.server) as client:
            await client.xgroup_create(stream, GROUP, id="0")
            reader = asyncio.create_task(_read(client, stream, handle_all))
            try:
                await meter.wait_async()
            finally:
                reader.cancel()
                with suppress(asyncio.CancelledError):
                    await reader


async def _read(client: Any, stream: str, handle_all: HandleAll) -> None:
    while True:
        answer = await client.xreadgroup(GROUP, "one", {stream: ">"}, count=BATCH, block=100)
        for _, entries in answer or ():
            await handle_all(entries)
            await client.xack(stream, GROUP, *(id for id, _ in entries))


async def _gathered(entries: list[Entry], handle: Callable[[Entry], Awaitable[object]]) -> None:
    await asyncio.gather(*map(handle, entries))


def _at_most(
    concurrency: int, handle: Callable[[Any], Awaitable[object]]
) -> Callable[[Entry], Awaitable[object]]:
    slots = asyncio.Semaphore(concurrency)

    async def bounded(entry: Entry) -> object:
        async with slots:
            return await handle(entry)

    return bounded
