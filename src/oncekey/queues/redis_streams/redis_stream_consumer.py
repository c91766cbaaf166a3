"""Consumers of Redis Streams: the loops of queues/ over the brokers of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.blocking.consumer import Consumer
from oncekey.queues.message_key import DELIVERY, KeyChoice
from oncekey.queues.missing_client import client_of
from oncekey.queues.redis_streams.stream_program import StreamProgram
from oncekey.queues.redis_streams.stream_settings import StreamSettings

_OF_THE_STREAM: Final = (
    "group", "start", "body_field", "dead_letter_stream", "park_stream", "acked", "retention",
)  # fmt: skip


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
        program, others = _program(stream, name, key, options)
        with client_of("Redis Streams", extra="redis"):
            from oncekey.queues.redis_streams.redis_brokers import RedisStreamBroker
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
        program, others = _program(stream, name, key, options)
        with client_of("Redis Streams", extra="redis"):
            from oncekey.queues.redis_streams.redis_brokers import AsyncRedisStreamBroker
        broker = AsyncRedisStreamBroker(server, program)
        super().__init__(once, handler, broker, name=name, key=key, **others)


def _program(
    stream: str, name: str, key: KeyChoice, options: dict[str, Any]
) -> tuple[StreamProgram, dict[str, Any]]:
    """The program of a consumer, and the options that are not the stream's."""
    own = {option: options[option] for option in _OF_THE_STREAM if option in options}
    others = {option: options[option] for option in options if option not in own}
    settings = StreamSettings(stream=stream, **{"group": name, **own})
    return StreamProgram(settings, needs_identity=key == DELIVERY), others
