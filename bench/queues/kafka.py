"""Kafka with confluent-kafka, from threads of one process.

The bare loop polls batches, handles each with a bounded number of threads and commits behind it.
idemkit's loop is the one its documentation has: a message at a time, each committed by itself.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import Consumer, Message, Producer
from idemkit.backends.postgres import PostgresBackend
from idemkit.contrib.kafka import kafka_consumer
from idemkit.core.sync_bridge import run_sync

from bench.postgres import load
from bench.queues.meter import Meter
from oncekey import Once, Policy
from oncekey.queues.kafka import KafkaConsumer

BATCH = 64
FLUSH_S = 30
POLICY = Policy(lease="30s", keep="24h")
_names = itertools.count()


class Topics:
    """A broker, and the databases of those who guard."""

    def __init__(self, client: dict[str, Any], database: str, peer_database: str) -> None:
        self.client = client
        self.database = database
        self.peer_database = peer_database

    def bare(self, concurrency: int, seconds: float) -> float:
        """The loop without a guard."""
        meter = Meter(seconds)
        with ThreadPoolExecutor(concurrency) as pool:
            self._loop(meter, lambda messages: list(pool.map(meter.handle, messages)))
        return meter.us

    def one_at_a_time(self, seconds: float, messages: int) -> float:
        """The loop with a guard around each message, one after the other."""
        meter = Meter(seconds, messages)
        with Once(self.database, policy=POLICY) as once:

            def handle_all(batch: list[Message]) -> None:
                for message in batch:
                    key, body = message.key(), message.value()
                    assert key is not None
                    once.run("one", key.decode(), meter.handle, request=body)

            self._loop(meter, handle_all)
        return meter.us

    def peer(self, seconds: float, messages: int) -> float:
        meter = Meter(seconds, messages)
        backend = PostgresBackend.from_url(self.peer_database, min_size=1, max_size=4)
        # The topic is new in every slice, and so are its offsets, which are idemkit's keys.
        guard = kafka_consumer(backend=backend, group_id="bench", max_poll_interval_seconds=300)
        guard.handle(meter.handle)

        def handle_all(batch: list[Message], consumer: Consumer) -> None:
            for message in batch:
                if guard.dispatch_sync(message).action.value == "ack":
                    consumer.commit(message=message, asynchronous=False)

        try:
            self._loop(meter, handle_all, batch=1, commits=False)
        finally:
            run_sync(backend.aclose())
        return meter.us

    def guarded(self, concurrency: int, batch: int, seconds: float) -> float:
        meter = Meter(seconds)
        topic = self._filled(meter.messages)
        with Once(self.database, policy=POLICY) as once:
            consumer = KafkaConsumer(
                once,
                meter.handle,
                topic,
                name="bench",
                key="json:$.order",
                config=self._config(),
                order="none",
                retry_safe=True,
                concurrency=concurrency,
                batch=batch,
            )
            running = threading.Thread(target=consumer.run)
            running.start()
            try:
                meter.wait()
            finally:
                consumer.stop()
                running.join()
        return meter.us

    def _config(self) -> dict[str, Any]:
        return {
            **self.client,
            "group.id": f"bench-{next(_names)}",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
        }

    def _filled(self, messages: int) -> str:
        """A topic with so many messages, each with a key of its own."""
        topic = f"bench-{os.getpid()}-{next(_names)}"
        producer = Producer({**self.client, "acks": "all", "linger.ms": 50})
        producer.list_topics(topic, timeout=30)  # which creates it
        for _ in range(messages):
            key = load.fresh_key()
            producer.produce(topic, f'{{"order": "{key}"}}'.encode(), key=key.encode())
            producer.poll(0)
        if producer.flush(FLUSH_S):
            raise RuntimeError("not every message was taken by the broker")
        return topic

    def _loop(
        self,
        meter: Meter,
        handle_all: Callable[..., object],
        *,
        batch: int = BATCH,
        commits: bool = True,
    ) -> None:
        topic = self._filled(meter.messages)
        consumer = Consumer({**self._config(), "enable.auto.commit": False})
        consumer.subscribe([topic])
        try:
            while not meter.done.is_set():
                messages = [m for m in consumer.consume(batch, 0.2) if m.error() is None]
                if not messages:
                    continue
                if commits:
                    handle_all(messages)
                    consumer.commit(asynchronous=True)
                else:
                    handle_all(messages, consumer)
        finally:
            consumer.close()
