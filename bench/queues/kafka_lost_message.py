"""`python -m bench.queues.kafka_lost_message`: a failed message before good ones, and then a kill.

Four orders are sent to one partition of a real broker. The handler of the first one raises, those
of the others succeed; then the consumer's process is killed, and a new process of the same group
consumes, with a handler that succeeds always, until everything is committed. Every order must have
been handled. idemkit runs by the loop that its documentation has. Both guard on PostgreSQL.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from idemkit.backends.postgres import PostgresBackend, init_pg
from idemkit.contrib.kafka import kafka_consumer
from tests.support.servers.kafka_server import KafkaServer

from bench.postgres import server as postgres_servers
from oncekey import Once
from oncekey.queues.kafka import KafkaConsumer

ORDERS = ["a", "b", "c", "d"]
FAILS = "a"
SECONDS = 60.0


def handle(order: str, effects: str, fails: bool) -> None:
    if fails and order == FAILS:
        raise ValueError("this order cannot be shipped yet")
    with Path(effects).open("a") as file:
        file.write(f"{order}\n")


def consume_with_oncekey(given: dict[str, Any]) -> None:
    def handler(message: Any) -> None:
        handle(message.json()["order"], given["effects"], given["fails"])

    consumer = KafkaConsumer(
        Once(given["oncekey"]),
        handler,
        given["topic"],
        name="shop",
        key="json:$.order",
        config=given["config"],
        order="none",
        retry_safe=True,
        backoff="5m",
        stuck_after="1h",
    )
    consumer.run()


def consume_with_idemkit(given: dict[str, Any]) -> None:
    warnings.filterwarnings("ignore")
    backend = PostgresBackend.from_url(given["idemkit"], min_size=1, max_size=2)
    guard = kafka_consumer(backend=backend, group_id=given["config"]["group.id"])

    @guard.handle
    def process(record: Any) -> None:
        handle(json.loads(record.value())["order"], given["effects"], given["fails"])

    consumer = Consumer({**given["config"], "enable.auto.commit": False})
    consumer.subscribe([given["topic"]])
    while True:  # the loop in the docstring of idemkit.contrib.kafka
        record = consumer.poll(1.0)
        if record is None or record.error():
            continue
        result = guard.dispatch_sync(record)
        if result.action.value == "ack":
            consumer.commit(message=record, asynchronous=False)


LOOPS = {"oncekey": consume_with_oncekey, "idemkit": consume_with_idemkit}


def run(name: str, client: dict[str, Any], databases: dict[str, str], folder: Path) -> list[str]:
    """Let one library's consumers do it; return the orders that were handled."""
    topic, effects = f"orders-{name}", folder / name
    config = {
        **client,
        "group.id": f"shop-{name}",
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 2_000,
    }
    given = {"topic": topic, "config": config, "effects": str(effects), **databases}
    producer = Producer({**client, "acks": "all"})
    producer.list_topics(topic, timeout=30)  # which creates it
    for order in ORDERS:
        producer.produce(topic, json.dumps({"order": order}).encode(), partition=0)
    producer.flush(SECONDS)

    first = start(name, {**given, "fails": True})
    wait_until(lambda: effects.exists() and len(effects.read_text().split()) >= 3)
    time.sleep(1)  # time enough for a loop to commit what it is going to
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = start(name, {**given, "fails": False})
    asking = Consumer({**config, "enable.auto.commit": False})
    partition = [TopicPartition(topic, 0)]
    try:
        wait_until(lambda: asking.committed(partition, timeout=10)[0].offset == len(ORDERS))
        time.sleep(1)  # time enough to handle what was not committed
    finally:
        second.send_signal(signal.SIGKILL)
        second.wait()
        asking.close()
    return effects.read_text().split()


def start(name: str, given: dict[str, Any]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.queues.kafka_lost_message", name, json.dumps(given)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def wait_until(condition: Any) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the consumer did not come that far")
        time.sleep(0.05)


def main() -> int:
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres_servers.started() as database,
        KafkaServer() as broker,
    ):
        databases = {name: database.create_database(name) for name in LOOPS}
        asyncio.run(init_pg(databases["idemkit"]))
        for name in LOOPS:
            handled = run(name, broker.client, databases, Path(folder))
            lost = sorted(set(ORDERS) - set(handled))
            verdict = f"LOST {', '.join(lost)}" if lost else "nothing lost"
            print(f"{name:8} handled {' '.join(handled)}: {verdict}, all offsets committed")
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 2:
        LOOPS[sys.argv[1]](json.loads(sys.argv[2]))
    else:
        sys.exit(main())
