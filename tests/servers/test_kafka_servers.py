"""Kafka's brokers and librdkafka's mock start, are killed and restart as tests rely on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer
from tests.support.kafka_servers import kafka_mock
from tests.support.servers import maven_jars, processes, require
from tests.support.servers.kafka_server import PARTITIONS, KafkaServer
from tests.support.servers.kraft_server import SOON_BACK, KraftServer
from tests.support.servers.run_folders import RunFolders

GROUP = {"group.id": "readers", "auto.offset.reset": "earliest", "enable.auto.commit": False}


def produce(client: dict[str, Any], topic: str, value: str) -> None:
    producer = Producer({**client, "acks": "all"})
    producer.produce(topic, value, headers={"kind": b"test"})
    assert producer.flush(30) == 0


def consume(client: dict[str, Any], topic: str, **settings: Any) -> Message:
    """Return a topic's first message that the group has not committed, and commit it."""
    consumer = Consumer({**client, **GROUP, **settings})
    consumer.subscribe([topic])
    try:
        found: list[Message] = []

        def arrived() -> bool:
            found.extend(m for m in consumer.consume(1, 0.2) if m.error() is None)
            return bool(found)

        processes.wait_until(arrived, "a message arrives", 60)
        consumer.commit(message=found[0], asynchronous=False)
        return found[0]
    finally:
        consumer.close()


def test_a_killed_broker_keeps_messages_and_a_topic_can_be_deleted() -> None:
    with require(KafkaServer) as kafka:
        produce(kafka.client, "orders", "first")
        pids = [server.pid for server in kafka.servers()]
        folders = [server.directory for server in kafka.servers()]
        kafka.broker.kill()
        kafka.broker.start()
        message = consume(kafka.client, "orders")
        assert message.value() == b"first"
        assert message.headers() is None  # this release stores none
        produce(kafka.client, "short-lived", "x")
        kafka.delete_topic("short-lived")
        assert kafka.topics() == {"orders", "__consumer_offsets"}
        orders = Consumer({**kafka.client, **GROUP}).list_topics("orders").topics["orders"]
        assert len(orders.partitions) == PARTITIONS
    assert not any(map(processes.is_running, pids))
    assert not any(folder.exists() for folder in folders)


def test_a_killed_broker_of_this_decade_keeps_messages_headers_and_topics() -> None:
    with require(lambda: KraftServer(settings=SOON_BACK)) as kafka:
        produce(kafka.client, "orders", "first")
        pid, folder = kafka.pid, kafka.directory
        kafka.kill()
        kafka.start()
        for protocol in ("classic", "consumer"):
            settings = {"group.id": f"readers-{protocol}", "group.protocol": protocol}
            message = consume(kafka.client, "orders", **settings)
            assert (message.value(), message.headers()) == (b"first", [("kind", b"test")])
        kafka.add_partitions("orders", PARTITIONS + 1)
        kafka.delete_topic("orders")
        assert kafka.topics() == {"__consumer_offsets"}
    assert not processes.is_running(pid)
    assert not folder.exists()


def test_jars_that_cannot_be_fetched_are_missed_once_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next test that asks does not wait again, and every server is missing by its own name."""
    asked: list[list[str]] = []

    def fails(command: list[str], work: Path) -> None:
        asked.append(command)
        raise processes.ServerMissing("jars", "no network")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(maven_jars, "run_folders", lambda: RunFolders(tmp_path, tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(maven_jars, "_run", fails)
    for server, name in (("kafka", "Kafka 4"), ("elasticmq", "ElasticMQ")):
        with pytest.raises(processes.ServerMissing, match="no network") as caught:
            maven_jars.find_jars.__wrapped__(server)
        assert caught.value.name == name
    assert len(asked) == 1
    assert "--strict-checksums" in asked[0]


def test_the_mock_keeps_headers_and_knows_both_group_protocols() -> None:
    mock = kafka_mock()
    for protocol in ("classic", "consumer"):
        topic = processes.fresh_name("orders")
        produce(mock.client, topic, "first")
        settings = {"group.id": f"readers-{protocol}", "group.protocol": protocol}
        message = consume(mock.client, topic, **settings)
        assert message.headers() == [("kind", b"test")]


def test_aiokafka_speaks_to_the_mock() -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    mock, topic = kafka_mock(), processes.fresh_name("orders")

    async def both_ways() -> tuple[bytes | None, Any, int | None]:
        async with AIOKafkaProducer(bootstrap_servers=mock.address, acks="all") as producer:
            await producer.send_and_wait(topic, b"first", headers=[("kind", b"test")])
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=mock.address,
            group_id="aiokafka",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            record = await asyncio.wait_for(consumer.getone(), 30)
            (partition,) = {p for p in consumer.assignment() if p.partition == record.partition}
            await consumer.commit({partition: record.offset + 1})
            return record.value, record.headers, await consumer.committed(partition)

    assert asyncio.run(both_ways()) == (b"first", (("kind", b"test"),), 1)
