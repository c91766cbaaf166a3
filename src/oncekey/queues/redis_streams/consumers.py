"""Consumers of Redis Streams, for threads and for event loops, and their brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from oncekey.core.errors import OncekeyError
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.blocking.consumer import Consumer
from oncekey.queues.broker import Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.message_key import DELIVERY, KeyChoice
from oncekey.queues.missing_client import client_of
from oncekey.queues.queue_message import Message
from oncekey.queues.redis_streams.program import StreamProgram
from oncekey.queues.redis_streams.settings import settings_of
from oncekey.queues.redrive import GoOn, to_the_end

_log = logging.getLogger("oncekey")


class RedisStreamConsumer(Consumer):
    """Consumes a stream of Redis or Valkey in threads: `handler(message)` runs once for each key.

        consumer = RedisStreamConsumer(
            once, ship, "orders", server="redis://...", name="shipping", key="json:$.order",
            start="first",
        )
        consumer.run()                      # until consumer.stop(), from a signal handler

    stream              the name of the stream's key
    server              a URL, or a client of redis-py, also one of a Cluster or of Sentinels
    group               the consumer group, by default the consumer's name
    start               where a group begins that does not exist yet: "first" (everything that is in
                        the stream), "new" (what is added from then on) or an entry's id; without
                        it no group is made
    body_field          the field that is the message's body, "body"; the others are its headers.
                        None makes the body of all fields, as JSON
    dead_letter_stream  where messages go that failed for good; `STREAM:dead`
    park_stream         where messages go whose outcome nobody knows; `STREAM:parked`
    acked               what becomes of entries that are done: "keep", "delete" or "trim"
    retention           for how long a message can come back, if you know that

    The other options are those of every consumer (`ConsumerSettings`) and the fields of Policy.
    """

    def __init__(
        self,
        once: Once,
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
        broker = RedisStreamBroker(server, program)
        super().__init__(once, handler, broker, name=name, key=key, **others)


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


class RedisStreamBroker:
    """A stream, from threads. `server` is a URL, or a client that stays the caller's."""

    def __init__(self, server: str | Any, program: StreamProgram) -> None:
        self.program = program
        with client_of("Redis Streams", extra="redis"):
            from oncekey.queues.redis_streams.client import StreamClient
        self._client = StreamClient(
            server, other="AsyncRedisStreamConsumer", settings=program.settings
        )

    def facts(self) -> BrokerFacts:
        return self._client.run(self.program.facts())

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        return self._client.run(self.program.receive(most, wait, lease))

    def settle(self, settled: Sequence[Settled]) -> None:
        self._client.run(self.program.settle(settled))

    def extend(self, messages: Sequence[Message], seconds: float) -> None:
        self._client.run(self.program.extend(messages, seconds))

    def redrive(self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end) -> int:
        return self._client.run(self.program.redrive(most, id, parked, go_on))

    def close(self) -> None:
        try:
            self._client.run(self.program.leave())
        except OncekeyError as error:  # what is not given back comes when its lease is over
            _log.info("nothing is given back: %s", error)
        self._client.close()


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
        return await self._client.run(self.program.facts())

    async def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        return await self._client.run(self.program.receive(most, wait, lease))

    async def settle(self, settled: Sequence[Settled]) -> None:
        await self._client.run(self.program.settle(settled))

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        await self._client.run(self.program.extend(messages, seconds))

    async def redrive(
        self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end
    ) -> int:
        return await self._client.run(self.program.redrive(most, id, parked, go_on))

    async def close(self) -> None:
        try:
            await self._client.run(self.program.leave())
        except OncekeyError as error:
            _log.info("nothing is given back: %s", error)
        finally:  # also if it is cancelled, since the server does not answer
            await self._client.close()
