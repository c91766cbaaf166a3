"""Consumers on confluent-kafka and on aiokafka behind one interface, for tests that hold for both.

The options are those of confluent-kafka; aiokafka gets them under its own names. All consumers of
one object share one store, whose clock stands still, so that no lease ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.queues.kafka_topics import SECONDS, Handler, Topic, consumer_of, running
from tests.queues.running_consumer import stop_consumer

from oncekey import AsyncOnce, Once, Policy
from oncekey.queues.kafka import AsyncKafkaConsumer
from oncekey.queues.queue_message import Message
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing import FakeClock

POLICY = Policy(lease="2s")
_RENAMED = {"topic.metadata.refresh.interval.ms": "metadata_max_age_ms"}


class ConfluentClients:
    """Each consumer runs in a thread of its own."""

    def __init__(self) -> None:
        self._once = Once(MemoryStore(clock=FakeClock().wall), policy=POLICY)

    def consumer(self, topic: Topic, handler: Handler, **options: Any) -> Any:
        return consumer_of(topic, self._once, handler, **options)

    def running(self, consumer: Any) -> Any:
        return running(consumer)

    def stop_fetching(self, consumer: Any) -> None:
        self._between_polls(consumer, lambda client: client.pause(client.assignment()))

    def fetch_again(self, consumer: Any) -> None:
        self._between_polls(consumer, lambda client: client.resume(client.assignment()))

    def _between_polls(self, consumer: Any, call: Callable[[Any], object]) -> None:
        """Make a call in the thread that polls: from another one it may wait for minutes, because
        confluent-kafka (since 2.16) lets one thread in at a time, and polling takes its turn."""
        member, is_made = consumer.broker._member, threading.Event()

        def advance() -> None:
            del member._advance  # from the next round on it is that of the class again
            call(member._consumer)
            is_made.set()
            member._advance()

        member._advance = advance
        assert is_made.wait(SECONDS)

    def close(self) -> None:
        self._once.close()


class AiokafkaClients:
    """All consumers run in one event loop, which has a thread; handlers run in other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._once = self._run(self._open())

    async def _open(self) -> AsyncOnce:
        return AsyncOnce(AsyncMemoryStore(clock=FakeClock().wall), policy=POLICY)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(SECONDS)

    def consumer(self, topic: Topic, handler: Handler, **options: Any) -> AsyncKafkaConsumer:
        async def awaited(message: Message) -> object:
            return await asyncio.to_thread(handler, message)

        given = {
            "name": "shipping",
            "key": "json:$.order",
            "retry_safe": True,
            "backoff": "50ms",
            **options,
            "config": aiokafka_config(options.get("config", topic.config)),
        }
        return AsyncKafkaConsumer(self._once, awaited, topic.name, **given)

    @contextmanager
    def running(self, consumer: AsyncKafkaConsumer) -> Iterator[AsyncKafkaConsumer]:
        run = asyncio.run_coroutine_threadsafe(consumer.run(), self._loop)
        try:
            yield consumer
        finally:
            stop_consumer(consumer, self._loop)
            error = run.exception(SECONDS)
        if error is not None:
            raise error

    def stop_fetching(self, consumer: Any) -> None:
        self._run(self._each(consumer, "pause"))

    def fetch_again(self, consumer: Any) -> None:
        self._run(self._each(consumer, "resume"))

    async def _each(self, consumer: Any, action: str) -> None:
        client = consumer.broker._consumer
        getattr(client, action)(*client.assignment())

    def close(self) -> None:
        self._run(self._once.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()


def aiokafka_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options of confluent-kafka as aiokafka has them."""
    own = {name: value for name, value in config.items() if name != "log_level"}
    return {_RENAMED.get(name, name.replace(".", "_")): value for name, value in own.items()}


CLIENTS: dict[str, Any] = {"confluent": ConfluentClients, "aiokafka": AiokafkaClients}
