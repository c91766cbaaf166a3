"""Redis Streams for event loops: `AsyncRedisStreamConsumer` and its broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from oncekey.core.errors import OncekeyError
from oncekey.engine.async_once import AsyncOnce
from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.broker import Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.message_key import DELIVERY, KeyChoice
from oncekey.queues.missing_client import client_of
from oncekey.queues.queue_message import Message
from oncekey.queues.redis_streams.program import Program, StreamProgram
from oncekey.queues.redis_streams.settings import settings_of
from oncekey.queues.redrive import GoOn, to_the_end

T = TypeVar("T")
_log = logging.getLogger("oncekey")


class AsyncRedisStreamConsumer(AsyncConsumer):
    """Consumes a stream of Redis or Valkey in tasks: `await handler(message)` runs once for each
    key. It has the options of RedisStreamConsumer; a client is one of `redis.asyncio`."""

    def __init__(
        self,
        once: AsyncOnce,
        handler: Callable[..., Any],
        stream: str,
        *,
        name: str,
        key: KeyChoice,
        server: str | Any,
        **options: Any,
    ) -> None:
        settings, others = settings_of(stream, name, options)
        program = StreamProgram(settings, needs_identity=key == DELIVERY)
        broker = AsyncRedisStreamBroker(server, program)
        super().__init__(once, handler, broker, name=name, key=key, **others)


class AsyncRedisStreamBroker:
    """A stream, from tasks of one event loop: see `RedisStreamBroker`."""

    def __init__(self, server: str | Any, program: StreamProgram) -> None:
        self.program = program
        with client_of("Redis Streams", extra="redis"):
            from oncekey.queues.redis_streams.client import AsyncStreamClient
        self._client = AsyncStreamClient(
            server, other="RedisStreamConsumer", settings=program.settings
        )

    async def facts(self) -> BrokerFacts:
        return await self._run(self.program.facts())

    async def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        return await self._run(self.program.receive(most, wait, lease))

    async def settle(self, settled: Sequence[Settled]) -> None:
        await self._run(self.program.settle(settled))

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        await self._run(self.program.extend(messages, seconds))

    async def redrive(
        self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end
    ) -> int:
        return await self._run(self.program.redrive(most, id, parked, go_on))

    async def close(self) -> None:
        try:
            await self._run(self.program.leave())
        except OncekeyError as error:
            _log.info("nothing is given back: %s", error)
        finally:  # also if it is cancelled, since the server does not answer
            await self._client.close()

    async def _run(self, program: Program[T]) -> T:
        return await self._client.run(program, self.program.settings)
