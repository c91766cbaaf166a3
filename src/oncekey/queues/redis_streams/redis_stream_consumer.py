"""Consumers of Redis Streams: the loops of queues/ over the brokers of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from oncekey.engine.aio.once import AsyncOnce
from oncekey.engine.blocking.once import Once
from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.blocking.consumer import Consumer
from oncekey.queues.message_key import DELIVERY, KeyChoice
from oncekey.queues.redis_streams.redis_brokers import AsyncRedisStreamBroker, RedisStreamBroker
from oncekey.queues.redis_streams.stream_program import StreamProgram
from oncekey.queues.redis_streams.stream_settings import StreamSettings

_OF_THE_STREAM: Final = (
    "group", "start", "body_field", "dead_letters", "parked", "acked", "retention",
)  # fmt: skip


class RedisStreamConsumer(Consumer):
    """Consumes a stream of Redis or Valkey in threads: `handler(message)` runs once for each key.

        consumer = RedisStreamConsumer(
            once, ship, "orders", server="redis://127.0.0.1:6379/0",
            name="shipping", key="json:$.order", start="first",
        )
        consumer.run()                      # until consumer.stop(), from a signal handler

    stream   the name of the stream's key
    server   a URL, or a client of redis-py (without decode_responses), also one of a Cluster
    group    the consumer group, by default the consumer's name

    `start`, `body_field`, `dead_letters`, `parked`, `acked` and `retention` are those of
    `StreamSettings`; the others are those of every consumer (`ConsumerSettings`) and the fields of
    Policy.
    """

    def __init__(
        self,
        once: Once,
        handler: Callable[..., Any],
        stream: str,
        *,
        server: str | Any,
        name: str,
        key: KeyChoice,
        **options: Any,
    ) -> None:
        broker = RedisStreamBroker(server, _program(stream, name, key, options))
        super().__init__(once, broker, handler, name=name, key=key, **options)


class AsyncRedisStreamConsumer(AsyncConsumer):
    """Consumes a stream of Redis or Valkey in tasks: `await handler(message)` runs once for each
    key. It has the options of RedisStreamConsumer; a client is one of redis.asyncio."""

    def __init__(
        self,
        once: AsyncOnce,
        handler: Callable[..., Any],
        stream: str,
        *,
        server: str | Any,
        name: str,
        key: KeyChoice,
        **options: Any,
    ) -> None:
        broker = AsyncRedisStreamBroker(server, _program(stream, name, key, options))
        super().__init__(once, broker, handler, name=name, key=key, **options)


def _program(stream: str, name: str, key: KeyChoice, options: dict[str, Any]) -> StreamProgram:
    """The program of a consumer; takes the stream's own options out of `options`."""
    own = {option: options.pop(option) for option in _OF_THE_STREAM if option in options}
    settings = StreamSettings(stream=stream, **{"group": name, **own})
    return StreamProgram(settings, needs_identity=key == DELIVERY)
