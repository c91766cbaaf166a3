"""Kafka that a run shares: the real broker and librdkafka's mock, each started by its first test.

A test that kills or pauses one starts its own. Topics and groups are named anew by each test, so
that tests do not see each other's messages.
"""

from __future__ import annotations

import functools

from tests.support.servers.kafka_server import KafkaMock, KafkaServer
from tests.support.servers.requirements import require
from tests.support.servers.server_lifetime import started


def kafka() -> KafkaServer:
    """The shared real broker, Apache Kafka 0.9.0.1."""
    return require(_kafka)


def kafka_mock() -> KafkaMock:
    """The shared mock cluster of librdkafka."""
    return require(_kafka_mock)


def quick_kafka_mock() -> KafkaMock:
    """The shared mock cluster whose groups begin without a delay."""
    return require(_quick_kafka_mock)


@functools.cache
def _kafka() -> KafkaServer:
    return started(KafkaServer())


@functools.cache
def _kafka_mock() -> KafkaMock:
    return started(KafkaMock())


@functools.cache
def _quick_kafka_mock() -> KafkaMock:
    return started(KafkaMock(is_quick=True))
