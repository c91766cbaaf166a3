"""What the rest of this package has to know about confluent-kafka: its values, what its errors mean
for a consumer, the offsets of whole topics, and what a cluster says about topics.

Old brokers, and librdkafka's mock, cannot be asked for some of the last: that is None here, and
whoever needs it refuses to begin. Nothing is written here; a broker that creates topics by itself
does so when it is asked for one that it does not have.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the stubs hide two of them
    AdminClient,
    ConfigResource,
    ResourceType,
)

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.queues.broker import BrokerUnavailable, LoginRefused
from oncekey.queues.broker_faults import is_fault, reason_of
from oncekey.queues.kafka.message import KafkaRecord
from oncekey.queues.kafka.order_queue import Partition, Position
from oncekey.queues.kafka.settings import missing_topics, topic_patience

_CONNECTION: Final = (
    "bootstrap.", "metadata.broker.list", "security.", "sasl.", "ssl.", "socket.", "client.",
    "broker.address.", "broker.version.", "api.version.", "reconnect.", "log_level", "logger",
    "enable.ssl.", "oauth_cb", "https.", "debug",
)  # fmt: skip
# A consumer that gets one of these would get it for ever.
FINAL: Final = frozenset(
    (
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._FATAL,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    )
)
_PAUSE_S: Final = 0.1
_CRITICAL: Final = 2  # of syslog's levels
# The cluster has no ids, or no such topic any more.
_NO_IDENTITY: Final = frozenset(
    (
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    )
)
_LOGIN: Final = frozenset((KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED))
_AWAY: Final = frozenset(
    (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
)


def connection_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of a consumer that another client of the same cluster needs too."""
    return {name: value for name, value in config.items() if name.startswith(_CONNECTION)}


def stores_headers(config: Mapping[str, Any]) -> bool:
    """False if the options say that the brokers are older than Kafka 0.11, whose messages have
    no headers; the client drops them without an error then."""
    return str(config.get("api.version.request", True)).lower() not in ("false", "0")


def record_of(message: Message) -> KafkaRecord:
    position = Position(message.topic() or "", message.partition() or 0, message.offset() or 0)
    found = message.headers() or []
    pairs = found.items() if isinstance(found, dict) else found
    headers = [(name, _bytes(value)) for name, value in pairs]
    return KafkaRecord(position, _bytes(message.key()), _bytes(message.value()), headers, message)


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def names_of(partitions: Iterable[TopicPartition]) -> list[Partition]:
    return [(each.topic, each.partition) for each in partitions]


def partitions_of(names: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in names]


def offsets_of(offsets: Mapping[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]


# --- errors ---------------------------------------------------------------------------------------


def refused(error: object) -> ConfigurationError:
    return ConfigurationError(f"Kafka refuses this consumer: {error}")


def failure_of(error: BaseException) -> BaseException:
    """What the end of the thread means for the consumer: a refusal ends it, and after anything else
    its broker joins the group anew."""
    if isinstance(error, OncekeyError) or not is_fault(error):
        return error
    return refused(error) if code_of(error) in FINAL else unavailable(error)


def not_made(error: Exception) -> OncekeyError:
    """What it means that a client could not be made: nothing was asked of Kafka yet."""
    is_wrong = isinstance(error, (TypeError, ValueError))
    if is_wrong or code_of(error) == KafkaError._INVALID_ARG:
        return ConfigurationError(f"config= is not what confluent-kafka takes: {error}")
    return unavailable(error)


def code_of(error: object) -> int | None:
    """The code of an error of Kafka or of its client; None for any other one."""
    found = _found(error)
    return found.code() if isinstance(found, KafkaError) else None


def unavailable(error: BaseException | KafkaError) -> BrokerUnavailable:
    """The error with its text alone: in full it is KafkaError{code=...,val=...,str="..."}."""
    found = _found(error)
    text = found.str() if isinstance(found, KafkaError) else reason_of(found)
    return BrokerUnavailable(f"Kafka does not answer as it should: {text}")


def _found(error: Any) -> Any:
    return error.args[0] if isinstance(error, KafkaException) and _has_code(error) else error


def _has_code(error: KafkaException) -> bool:
    return bool(error.args) and isinstance(error.args[0], KafkaError)


# --- offsets of whole topics ----------------------------------------------------------------------


def pin_the_end(consumer: Consumer, topic: str, seconds: float) -> None:
    """Commit where a new group begins: at the end of all partitions of the topic, whoever has
    them. A group that has any offset has begun, so a partition without one was added later, and is
    read from its beginning, by the client's own setting."""
    partitions = _partitions(consumer, topic, seconds)
    if _has_begun(consumer, partitions, seconds):
        return
    ends = []
    for each in partitions:
        _, end = consumer.get_watermark_offsets(each, timeout=seconds)
        ends.append(TopicPartition(topic, each.partition, end))
    if not _has_begun(consumer, partitions, seconds):  # another member may have been faster
        _commit(consumer, ends)


def set_back(consumer: Consumer, topic: str, seconds: float) -> None:
    """Commit the beginning of all partitions, whoever has them: their member may be gone."""
    partitions = _partitions(consumer, topic, seconds)
    _commit(consumer, [TopicPartition(topic, each.partition, 0) for each in partitions])


def _partitions(consumer: Consumer, topic: str, seconds: float) -> list[TopicPartition]:
    numbers = consumer.list_topics(topic, timeout=seconds).topics[topic].partitions
    if not numbers:
        raise BrokerUnavailable(f"Kafka does not tell the partitions of {topic}")
    return [TopicPartition(topic, number) for number in numbers]


def _has_begun(consumer: Consumer, partitions: list[TopicPartition], seconds: float) -> bool:
    asked = consumer.committed(partitions, timeout=seconds)
    for each in asked:
        _check_error(each)
    return any(each.offset >= 0 for each in asked)


def _commit(consumer: Consumer, offsets: list[TopicPartition]) -> None:
    for each in consumer.commit(offsets=offsets, asynchronous=False) or ():
        _check_error(each)


def _check_error(partition: TopicPartition) -> None:
    if partition.error is not None:
        raise KafkaException(partition.error)


# --- questions ------------------------------------------------------------------------------------


class ConfluentTopics:
    """Questions to the cluster; each takes `timeout` seconds at most."""

    def __init__(self, config: Mapping[str, Any], timeout: float) -> None:
        # What it cannot do is raised; the client would also write a line for each connection that
        # is refused, every 50 ms.
        options: dict[str, Any] = {"log_level": _CRITICAL, "error_cb": self._note, **config}
        self._admin = AdminClient(options)
        self._timeout = timeout
        self._refused: KafkaError | None = None
        self._is_modern = False  # it has a controller that answers; it was asked for once

    def _note(self, error: KafkaError) -> None:
        """A callback of the client: the calls themselves only say that nobody has answered."""
        if error.code() in _LOGIN:
            self._refused = error

    def _unavailable(self, error: Exception) -> BrokerUnavailable:
        if self._refused is None:
            return unavailable(error)
        return LoginRefused(f"Kafka refuses the login: {self._refused.str()}")

    def check(self, topics: Sequence[str]) -> None:
        """Raise ConfigurationError for topics that do not exist, and that the broker does not
        create when it is asked for them."""
        began = time.monotonic()
        while codes := {topic: code for topic in topics if (code := self._missing(topic))}:
            if time.monotonic() - began >= topic_patience(codes.values(), self._timeout):
                raise missing_topics(codes)
            time.sleep(_PAUSE_S)

    def _missing(self, topic: str) -> int:
        """Return Kafka's code of a topic that is not there; 0 if it is."""
        try:
            found = self._admin.list_topics(topic, timeout=self._timeout).topics[topic]
        except Exception as error:
            raise self._unavailable(error) from error
        if found.error is not None:
            return int(found.error.code())
        return 0 if found.partitions else KafkaError.LEADER_NOT_AVAILABLE

    def identity(self, topic: str) -> str | None:
        """Return the topic's id, which another topic of the same name never has; None if the
        cluster (before Kafka 2.8) has none. Raises BrokerUnavailable if it does not answer."""
        if not self._has_controller():
            return None
        topics = TopicCollection([topic])
        try:
            asked = self._admin.describe_topics(topics, request_timeout=self._timeout)
            found = asked[topic].result().topic_id
        except Exception as error:
            if code_of(error) in _NO_IDENTITY:
                return None
            raise unavailable(error) from error
        # A cluster without ids answers with zeros.
        text = str(found) if found is not None else ""
        return text if text.strip("A0-") else None

    def retention(self, topics: Sequence[str]) -> float | None:
        """Return for how many seconds the longest of these topics keeps a message; math.inf for
        ever, None if the cluster does not say."""
        if not self._has_controller():
            return None
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        try:
            asked = self._admin.describe_configs(resources, request_timeout=self._timeout)
            return max(_retention(answer.result()) for answer in asked.values())
        except Exception as error:
            if code_of(error) in _AWAY or not isinstance(error, KafkaException):
                raise unavailable(error) from error  # `keep` would be checked against nothing
            return None

    def cluster_id(self) -> str | None:
        """Return the id that the cluster was given when it was made; None before Kafka 0.10.1."""
        found: str | None = self._cluster().cluster_id
        return found

    def _cluster(self) -> Any:
        try:
            return self._admin.list_topics(timeout=self._timeout)
        except Exception as error:
            raise self._unavailable(error) from error

    def _has_controller(self) -> bool:
        if not self._is_modern:
            cluster = self._cluster()
            is_there = cluster.controller_id in cluster.brokers
            self._is_modern = is_there and cluster.cluster_id is not None
        return self._is_modern


def _retention(configs: Mapping[str, Any]) -> float:
    policy, kept = configs["cleanup.policy"].value, int(configs["retention.ms"].value)
    return math.inf if kept < 0 or "delete" not in policy else kept / 1000
