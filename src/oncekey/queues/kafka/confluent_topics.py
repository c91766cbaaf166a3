"""What a cluster tells about topics, asked by confluent-kafka.

Old brokers, and librdkafka's mock, cannot be asked for some of it: that is None here, and whoever
needs it refuses to begin. This module writes nothing; a broker that creates topics by itself does
so when it is asked for one that it does not have.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the stubs hide two of them
    AdminClient,
    ConfigResource,
    ResourceType,
)

from oncekey.queues.broker import BrokerUnavailable, LoginRefused
from oncekey.queues.kafka.confluent_errors import code_of, unavailable
from oncekey.queues.kafka.kafka_settings import missing_topics, topic_patience

_PAUSE_S: Final = 0.1
_CRITICAL: Final = 2  # of syslog's levels
# The cluster has no ids to tell, or no such topic any more.
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
        ever, None if the cluster does not tell."""
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
