"""What a cluster says about topics, asked by aiokafka.

Its administrator's client asks by an old version of the request, whose answer has no topic ids. So
this module has the version of the request that Kafka 2.8 has brought, written with aiokafka's own
types, and sends it by its `AIOKafkaClient`, which agrees with each broker on a version.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaClient
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.broker_faults import is_fault, reason_of
from oncekey.queues.kafka.aiokafka_client import connection_options, start, unavailable
from oncekey.queues.kafka.settings import (
    missing_topics,
    topic_patience,
)

_log = logging.getLogger("oncekey")
_PAUSE_S: Final = 0.1
_METADATA: Final = 3  # Kafka's number of the request
_WITH_IDS: Final = 10  # the first version of it whose answer has topic ids
_UNKNOWN_TOPIC: Final = 3
_NO_ID: Final = (0, 0)  # of a cluster whose topics have none


# --- the ids of topics ----------------------------------------------------------------------------


class _Topics(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = _METADATA
    API_VERSION = _WITH_IDS
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString()),
                ("port", Int32),
                ("rack", CompactString()),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString()),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString()),
                ("id_high", Int64),
                ("id_low", Int64),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("in_sync", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _AskTopics(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = _METADATA
    API_VERSION = _WITH_IDS
    RESPONSE_TYPE = _Topics
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("id_high", Int64),
                ("id_low", Int64),
                ("name", CompactString()),
                ("tags", TaggedFields),
            ),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_operations", Boolean),
        ("include_topic_operations", Boolean),
        ("tags", TaggedFields),
    )


class _TopicsRequest(Request[_AskTopics]):  # type: ignore[misc]
    API_KEY = _METADATA

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics = list(topics)

    def build(self, request_struct_class: Any) -> Any:
        topics: list[Any] = [(*_NO_ID, topic, {}) for topic in self._topics]
        return request_struct_class(topics, False, False, False, {})


class AiokafkaIds:
    """Asks for the ids of topics, over connections of its own; `close` ends them."""

    def __init__(self, config: Mapping[str, Any], seconds: float) -> None:
        self._config = connection_options(config)
        self._seconds = seconds
        self._client: Any = None
        self.partitions: dict[str, list[int]] = {}  # of the topics that were asked for

    async def ids(self, topics: Sequence[str]) -> dict[str, str | None]:
        """Return the id of each topic, which another topic of the same name never has; None if the
        cluster (before Kafka 2.8) has none, or has no such topic. Raises BrokerUnavailable if it
        does not answer."""
        if not topics:
            return {}
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._ask(topics)
        except NotImplementedError:  # no broker's version of the request is the one here
            return dict.fromkeys(topics)
        except Exception as error:
            await self.close()  # the next one begins anew, with all brokers that it was given
            if not is_fault(error):
                raise
            raise unavailable(error) from error
        found = {each[1]: each for each in answer.topics}
        self.partitions = {name: [part[1] for part in each[5]] for name, each in found.items()}
        return {topic: _id_of(found.get(topic)) for topic in topics}

    async def _ask(self, topics: Sequence[str]) -> Any:
        if self._client is None:
            milliseconds = int(self._seconds * 1000)
            client = AIOKafkaClient(**self._config, request_timeout_ms=milliseconds)
            try:
                await start(client.bootstrap())
            except BaseException:
                await client.close()
                raise
            self._client = client
        return await self._client.send(self._client.get_random_node(), _TopicsRequest(topics))

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            await client.close()
        except Exception as error:
            if not is_fault(error):
                raise
            _log.warning("a client of Kafka did not close: %s", reason_of(error))


def _id_of(topic: tuple[Any, ...] | None) -> str | None:
    if topic is None or topic[0] == _UNKNOWN_TOPIC:
        return None
    error, name, *id = topic[:4]
    if error:
        raise BrokerUnavailable(f"Kafka does not tell the id of the topic {name!r}: error {error}")
    return "".join(f"{part & (1 << 64) - 1:016x}" for part in id) if tuple(id) != _NO_ID else None


# --- what the cluster says ------------------------------------------------------------------------


async def ask(
    config: Mapping[str, Any], topics: Sequence[str], seconds: float
) -> tuple[float | None, str | None]:
    """Check that topics exist, and return for how many seconds the longest of them keeps a message
    (math.inf for ever), and the cluster's id; None for what it does not say."""
    milliseconds = int(seconds * 1000)
    admin = AIOKafkaAdminClient(**connection_options(config), request_timeout_ms=milliseconds)
    try:
        try:
            await start(admin.start())
            await _check(admin, topics, seconds)
            cluster = (await admin.describe_cluster()).get("cluster_id")
            return await _retention(admin, topics), cluster
        finally:
            await admin.close()
    except Exception as error:
        if not is_fault(error):
            raise
        raise unavailable(error) from error


async def _check(admin: Any, topics: Sequence[str], seconds: float) -> None:
    """Raise ConfigurationError for topics that do not exist: see `ConfluentTopics.check`."""
    began = time.monotonic()
    while True:
        found = {each["topic"]: each["error_code"] for each in await admin.describe_topics(topics)}
        codes = {topic: code for topic in topics if (code := found.get(topic, -1))}
        if not codes:
            return
        if time.monotonic() - began >= topic_patience(codes.values(), seconds):
            raise missing_topics(codes)
        await asyncio.sleep(_PAUSE_S)


async def _retention(admin: Any, topics: Sequence[str]) -> float | None:
    names = {"retention.ms": None, "cleanup.policy": None}
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic, names) for topic in topics]
    try:
        answers = await admin.describe_configs(resources)
    except KafkaError:
        return None
    kept = []
    for answer in answers:
        for resource in answer.to_object()["resources"]:
            values = {
                each["config_names"]: each["config_value"] for each in resource["config_entries"]
            }
            kept.append(_seconds(values))
    return max(kept, default=None)


def _seconds(values: Mapping[str, str]) -> float:
    kept = int(values.get("retention.ms", "-1"))
    is_deleted = "delete" in values.get("cleanup.policy", "")
    return kept / 1000 if kept >= 0 and is_deleted else math.inf
