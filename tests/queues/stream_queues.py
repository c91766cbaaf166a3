"""Redis Streams for tests: queues for the kill harness, and single deliveries on a server whose
clock a test moves, so that no test waits for a lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import redis
from tests.support.servers import processes
from tests.support.servers.redis_server import DURABLE, RedisProgram, RedisServer

from oncekey import AsyncOnce, Once
from oncekey.queues.queue_message import Message
from oncekey.queues.redis_streams import AsyncRedisStreamConsumer, RedisStreamConsumer
from oncekey.queues.redis_streams.consumers import RedisStreamBroker
from oncekey.queues.redis_streams.program import StreamProgram
from oncekey.queues.redis_streams.settings import StreamSettings

GROUP = "shipping"
LEASE_S = 30.0


class StreamQueues:
    """A `QueueUnderTest`; its argument is the server's URL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def send(self, queue: str, bodies: Sequence[str]) -> None:
        with redis.Redis.from_url(self._url) as client:
            for body in bodies:
                client.xadd(queue, {"body": body})

    def consumer(
        self, once: Once, queue: str, handler: Callable[..., Any], **options: Any
    ) -> RedisStreamConsumer:
        return RedisStreamConsumer(
            once, handler, queue, server=self._url, start="first", retention="1h", **options
        )

    def async_consumer(
        self, once: AsyncOnce, queue: str, handler: Callable[..., Any], **options: Any
    ) -> AsyncRedisStreamConsumer:
        return AsyncRedisStreamConsumer(
            once, handler, queue, server=self._url, start="first", retention="1h", **options
        )

    def is_drained(self, queue: str) -> bool:
        with redis.Redis.from_url(self._url) as client:
            if not client.exists(queue):
                return False
            groups: Any = client.xinfo_groups(queue)
            last: Any = client.xinfo_stream(queue)["last-generated-id"]
        return bool(groups) and not any(
            group["pending"] or group["last-delivered-id"] != last for group in groups
        )


class ClockedServer:
    """A durable server whose clock only goes on when a test says so, beside its usual pace."""

    def __init__(self, program: RedisProgram | None = None) -> None:
        self.server = RedisServer(program, settings=DURABLE, clock=True)
        self.server.start()
        self.client = self.server.client()
        self._offset = 0.0

    def pass_time(self, seconds: float) -> None:
        self._offset += seconds
        self.server.set_clock(self._offset)

    def stream(self) -> Stream:
        return Stream(self)

    def close(self) -> None:
        self.client.close()
        self.server.close()


class Stream:
    """A new stream, with as many consumers of its group as a test wants."""

    def __init__(self, clocked: ClockedServer) -> None:
        self.clocked = clocked
        self.client: Any = clocked.client
        self.name = processes.fresh_name("orders")
        self._brokers: list[RedisStreamBroker] = []

    def add(self, *bodies: str, **fields: str) -> list[str]:
        """Add entries; their ids."""
        return [self.client.xadd(self.name, {"body": body, **fields}) for body in bodies]

    def broker(self, *, identity: bool = False, **settings: Any) -> RedisStreamBroker:
        """A consumer's broker, started."""
        given = {"stream": self.name, "group": GROUP, "start": "first", **settings}
        program = StreamProgram(StreamSettings(**given), needs_identity=identity)
        broker = RedisStreamBroker(self.clocked.server.url(), program)
        self._brokers.append(broker)
        broker.facts()
        return broker

    def pending(self) -> dict[str, str]:
        """The consumer of each pending entry."""
        found = self.client.xpending_range(self.name, GROUP, "-", "+", 1000)
        return {item["message_id"]: item["consumer"] for item in found}

    def ids(self, suffix: str = "") -> list[str]:
        return [id for id, _ in self.client.xrange(self.name + suffix)]

    def fields(self, suffix: str) -> list[dict[str, str]]:
        """The fields of all entries of one of its other streams."""
        return [fields for _, fields in self.client.xrange(self.name + suffix)]

    def due(self) -> dict[str, float]:
        return dict(self.client.zrange(f"{self.name}:oncekey:{GROUP}", 0, -1, withscores=True))

    def close(self) -> None:
        for broker in self._brokers:
            broker.close()


def take(broker: RedisStreamBroker, most: int = 10) -> list[Message]:
    """What a consumer is given at once."""
    return list(broker.receive(most, 0.0, LEASE_S))


def bodies(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]
