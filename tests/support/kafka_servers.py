"""Kafka that a run shares, each started by its first test.

The real broker is Kafka 4.1, whose jars come from Maven. Where they cannot be had, Kafka 0.9 is in
its place, and librdkafka's mock for what that one is too old for; tests that need the new one are
skipped by name. A test that kills or pauses a broker starts its own. Topics and groups are named
anew by each test, so that tests do not see each other's messages.
"""

from __future__ import annotations

import functools

from tests.support.servers.kafka_server import KafkaMock, KafkaServer
from tests.support.servers.kraft_server import KraftServer
from tests.support.servers.processes import ServerMissing
from tests.support.servers.requirements import require
from tests.support.servers.server_lifetime import started
from tests.support.servers.shared_servers import shared_by_the_run


def kafka() -> KraftServer | KafkaServer:
    """The shared real broker: Kafka 4.1, or 0.9 where Maven is not reached."""
    return modern_kafka() if has_modern_kafka() else old_kafka()


def headers_kafka() -> KraftServer | KafkaMock:
    """The shared broker whose messages have headers: Kafka 4.1, or the mock."""
    return modern_kafka() if has_modern_kafka() else kafka_mock()


def modern_kafka() -> KraftServer:
    """The shared Kafka 4.1; a test that asks for it is skipped where it is missing."""
    return require(_modern_kafka)


def old_kafka() -> KafkaServer:
    """The shared Kafka 0.9.0.1, for what an old broker cannot do."""
    return require(_old_kafka)


def kafka_mock() -> KafkaMock:
    """The shared mock cluster of librdkafka."""
    return require(_kafka_mock)


def quick_kafka_mock() -> KafkaMock:
    """The shared mock cluster whose groups begin without a delay."""
    return require(_quick_kafka_mock)


@functools.cache
def has_modern_kafka() -> bool:
    try:
        _modern_kafka()
    except ServerMissing:
        return False
    return True


@functools.cache
def _modern_kafka() -> KraftServer:
    return shared_by_the_run("kraft", KraftServer)


@functools.cache
def _old_kafka() -> KafkaServer:
    return shared_by_the_run("kafka", KafkaServer)


@functools.cache
def _kafka_mock() -> KafkaMock:
    return started(KafkaMock())


@functools.cache
def _quick_kafka_mock() -> KafkaMock:
    return started(KafkaMock(is_quick=True))
