"""The brokers that senders of an outbox are tried on: a queue each, seen from outside.

A target makes a sender of either kind, counts what arrived, and consumes it. SQS is moto's
emulation. Kafka is librdkafka's mock, because the real broker of these tests keeps no headers; it
is reached by its own address, so it is paused where the others are cut off by a proxy.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.config import Config
from tests.queues.kafka_topics import Topic
from tests.queues.rabbit_queues import QUORUM, RabbitQueues, channel_to, waiting
from tests.queues.running_consumer import PATIENCE_S, wait_until
from tests.queues.sqs_queues import SqsQueues
from tests.queues.stream_queues import StreamQueues
from tests.support.kafka_servers import headers_kafka
from tests.support.rabbitmq_queues import rabbitmq
from tests.support.redis_stores import valkey
from tests.support.servers import Proxy, processes, require
from tests.support.servers.kafka_server import KafkaMock
from tests.support.servers.kraft_server import KraftServer
from tests.support.servers.sqs_server import sqs

from oncekey import Once
from oncekey.queues.kafka import AsyncKafkaSender, KafkaConsumer, KafkaSender
from oncekey.queues.queue_message import Message
from oncekey.queues.rabbitmq import AsyncRabbitSender, RabbitSender
from oncekey.queues.redis_streams import AsyncRedisStreamSender, RedisStreamSender
from oncekey.queues.sqs import AsyncSQSSender, SQSSender


class Way:
    """The way to a broker: through a proxy, or to a server that is paused."""

    def __init__(self, through: Proxy | KafkaMock) -> None:
        self._through = through

    def close(self) -> None:
        if isinstance(self._through, Proxy):
            self._through.refuse()
            self._through.cut()
        else:
            self._through.pause()
            wait_until(self._is_paused, "all of its threads are stopped")

    def _is_paused(self) -> bool:
        assert isinstance(self._through, KafkaMock)
        states = Path(f"/proc/{self._through.pid}/task").glob("*/status")
        return all("State:\tT" in each.read_text(encoding="utf-8") for each in states)

    def open(self) -> None:
        if isinstance(self._through, Proxy):
            self._through.heal()
        else:
            self._through.resume()


class Target(ABC):
    """A new queue on the shared server of one broker."""

    is_deduplicating = False
    too_large: bytes | None = None  # a body that the broker refuses

    def __init__(self) -> None:
        self.queue = processes.fresh_name("orders")

    @property
    @abstractmethod
    def missing(self) -> str | None:
        """A queue to which nothing can be sent; None if the broker makes every queue."""

    @abstractmethod
    def sender(self, *, is_async: bool) -> Any: ...

    @abstractmethod
    def count(self) -> int:
        """How many messages have arrived."""

    @abstractmethod
    def consumer(self, once: Once, handler: Any, **options: Any) -> Any: ...

    @abstractmethod
    def is_drained(self) -> bool: ...

    @contextmanager
    @abstractmethod
    def cut_off(self) -> Iterator[Way]:
        """What takes the broker away and brings it back; senders that are made meanwhile go
        through it."""

    def consumed(self, store: str, sent: int) -> list[Message]:
        """What a consumer's handler gets of everything that was sent."""
        seen: list[Message] = []
        with Once(store) as once:
            consumer = self.consumer(
                once,
                seen.append,
                name="ship",
                key="header:oncekey-key",
                retry_safe=True,
                lease="1s",  # a duplicate that is hidden comes back soon
            )
            thread = threading.Thread(target=consumer.run)
            thread.start()
            try:
                wait_until(lambda: consumer.counts.total() >= sent, "all are settled")
                wait_until(self.is_drained, "the queue is empty")
            finally:
                consumer.stop()
                thread.join(PATIENCE_S)
        return seen


class SqsTarget(Target):
    too_large = b"x" * 2049
    missing = "no-such-queue"

    def __init__(self) -> None:
        super().__init__()
        self._options: dict[str, Any] = sqs().options()
        self._queues = SqsQueues(self._options)
        self.queue = sqs().pair(fifo=self.is_deduplicating).source.rpartition("/")[2]
        self._queues._client.set_queue_attributes(
            QueueUrl=self._queue_url, Attributes={"MaximumMessageSize": "2048"}
        )

    @property
    def _queue_url(self) -> str:
        return str(self._queues._client.get_queue_url(QueueName=self.queue)["QueueUrl"])

    def sender(self, *, is_async: bool) -> Any:
        # A test does not wait for the client's own retries.
        retries: Any = {"max_attempts": 1}
        if is_async:
            config = AioConfig(retries=retries)
            return AsyncSQSSender(
                get_session().create_client("sqs", config=config, **self._options)
            )
        options = {**self._options, "config": Config(retries=retries)}
        return SQSSender(sqs().client(**options))

    def count(self) -> int:
        return self._queues._waiting(self._queue_url)

    def consumer(self, once: Once, handler: Any, **options: Any) -> Any:
        return self._queues.consumer(once, self.queue, handler, **options)

    def is_drained(self) -> bool:
        return self._queues.is_drained(self.queue)

    @contextmanager
    def cut_off(self) -> Iterator[Way]:
        with Proxy(sqs().port) as proxy:
            self._options = {**self._options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
            yield Way(proxy)


class SqsFifoTarget(SqsTarget):
    """A FIFO queue drops what comes again with the same id."""

    is_deduplicating = True


class KafkaTarget(Target):
    too_large = b"x" * 1_100_000
    missing = None

    def __init__(self) -> None:
        super().__init__()
        self._kafka: KraftServer | KafkaMock = headers_kafka()
        self._timeout_ms = 10_000

    @property
    def _topic(self) -> Topic:
        return Topic(self._kafka.client, self.queue, "shop", is_fresh=True)

    def sender(self, *, is_async: bool) -> Any:
        if is_async:
            return AsyncKafkaSender(
                {"bootstrap_servers": self._kafka.address, "request_timeout_ms": self._timeout_ms}
            )
        return KafkaSender({**self._kafka.client, "message.timeout.ms": self._timeout_ms})

    def count(self) -> int:
        return self._topic.size(self.queue)

    def consumer(self, once: Once, handler: Any, **options: Any) -> Any:
        # The newer protocol of groups joins without a delay.
        group = {"group.id": "shop", "group.protocol": "consumer"}
        config = {**self._kafka.client, **group, "auto.offset.reset": "earliest"}
        return KafkaConsumer(once, handler, self.queue, config=config, **options)

    def is_drained(self) -> bool:
        return self._topic.is_done()

    @contextmanager
    def cut_off(self) -> Iterator[Way]:
        with require(KafkaMock) as mock:
            self._kafka, self._timeout_ms = mock, 2_000
            yield Way(mock)


class RabbitTarget(Target):
    missing = "no-such-queue"

    def __init__(self) -> None:
        super().__init__()
        self.url = rabbitmq().url
        self._queues = RabbitQueues(self.url)
        with channel_to(self.url) as channel:
            channel.queue_declare(self.queue, durable=True, arguments=QUORUM)

    def sender(self, *, is_async: bool) -> Any:
        return AsyncRabbitSender(self.url) if is_async else RabbitSender(self.url)

    def count(self) -> int:
        with channel_to(rabbitmq().url) as channel:
            return waiting(channel, self.queue)

    def consumer(self, once: Once, handler: Any, **options: Any) -> Any:
        return self._queues.consumer(once, self.queue, handler, **options)

    def is_drained(self) -> bool:
        return self._queues.is_drained(self.queue)

    @contextmanager
    def cut_off(self) -> Iterator[Way]:
        with Proxy(rabbitmq().port) as proxy:
            self.url = rabbitmq().url.replace(str(rabbitmq().port), str(proxy.port))
            yield Way(proxy)


class StreamTarget(Target):
    def __init__(self) -> None:
        super().__init__()
        self._url = valkey().url()
        self._queues = StreamQueues(self._url)

    @property
    def missing(self) -> str:
        """A key that holds something else: a stream that is not there would be made."""
        name = processes.fresh_name("hash")
        with redis.Redis.from_url(self._url) as client:
            client.hset(name, "field", "value")
        return name

    def sender(self, *, is_async: bool) -> Any:
        return AsyncRedisStreamSender(self._url) if is_async else RedisStreamSender(self._url)

    def count(self) -> int:
        with redis.Redis.from_url(valkey().url()) as client:
            length: Any = client.xlen(self.queue)
        return int(length)

    def consumer(self, once: Once, handler: Any, **options: Any) -> Any:
        return self._queues.consumer(once, self.queue, handler, **options)

    def is_drained(self) -> bool:
        return self._queues.is_drained(self.queue)

    @contextmanager
    def cut_off(self) -> Iterator[Way]:
        with Proxy(valkey().port) as proxy:
            self._url = self._url.replace(str(valkey().port), str(proxy.port))
            yield Way(proxy)


TARGETS: dict[str, type[Target]] = {
    "sqs": SqsTarget,
    "sqs-fifo": SqsFifoTarget,
    "kafka": KafkaTarget,
    "rabbitmq": RabbitTarget,
    "redis-streams": StreamTarget,
}
