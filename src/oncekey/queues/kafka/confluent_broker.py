"""Kafka as a broker for consumers in threads, over confluent-kafka.

The consumer's threads take messages and say what became of them, under a lock; the client itself is
used by the thread of the group's member alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from oncekey.queues.broker import Settled
from oncekey.queues.broker_identity import identity_of
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.kafka.confluent_member import GroupMember
from oncekey.queues.kafka.confluent_redrive import redrive
from oncekey.queues.kafka.confluent_topics import ConfluentTopics
from oncekey.queues.kafka.confluent_values import connection_options
from oncekey.queues.kafka.kafka_settings import ENDS_WITHOUT_OFFSET, WAIT_MAX_S, KafkaSettings
from oncekey.queues.kafka.partition_work import GIVEN_UP, PartitionWork
from oncekey.queues.kafka.topic_ids import TopicIds
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import GoOn, to_the_end


class ConfluentBroker:
    """One topic of Kafka, with its retry, dead-letter and park topics."""

    def __init__(
        self, settings: KafkaSettings, config: Mapping[str, Any], *, needs_identity: bool = False
    ) -> None:
        """`config` is that of confluent-kafka's Consumer, which `check_config` has accepted."""
        self._settings = settings
        self._config = dict(config)
        self._needs_identity = needs_identity
        self._work = PartitionWork(settings)
        self._changed = threading.Condition()
        self._ids: TopicIds | None = None
        self._facts: BrokerFacts | None = None
        self._member: GroupMember | None = None

    def facts(self) -> BrokerFacts:
        if self._facts is None:
            settings = self._settings
            connection = connection_options(self._config)
            topics = ConfluentTopics(connection, settings.ask_timeout)
            topics.check([settings.topic, *settings.written])
            self._ids = TopicIds(topics, settings, ends=self._ends)
            identity = self._ids[settings.topic] if self._needs_identity else None
            self._work.identity = identity
            retention = topics.retention([settings.topic, *settings.written])
            is_ordered = settings.order != "none"
            broker = identity_of("kafka", cluster=topics.cluster_id())
            self._facts = BrokerFacts(
                settings.topic, identity, retention, ordered=is_ordered, broker=broker
            )
        return self._facts

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        member = self._joined()
        until = time.monotonic() + min(wait, WAIT_MAX_S)
        with self._changed:
            if most:
                member.want(until)
            while True:
                member.raise_trouble()
                taken = self._work.take(most) if most and member.is_checked else []
                left = until - time.monotonic()
                if taken or left <= 0 or member.is_closing:
                    return taken
                ready_in = self._work.next_wait() if member.is_checked else None
                self._changed.wait(left if ready_in is None else min(left, ready_in))

    def settle(self, settled: Sequence[Settled]) -> None:
        with self._changed:
            forwards = self._work.settle(settled)
            member = self._member
            if member is not None:
                member.forward(forwards)
            else:
                for forward in forwards:
                    self._work.written(forward, GIVEN_UP)
            self._changed.notify_all()

    def extend(self, messages: Sequence[Message], seconds: float) -> None:
        """Kafka has no deadline for a message; the member stays in its group by polling."""

    def redrive(self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end) -> int:
        return redrive(self._settings, self._config, most, id, parked, go_on)

    def close(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            member.close()

    def _joined(self) -> GroupMember:
        """Return the member of the group; the first call joins, and so does one after a fault."""
        if self._member is not None and self._member.is_lost:
            self.close()
        if self._member is None:
            self.facts()
            assert self._ids is not None
            self._member = GroupMember(
                self._settings, self._config, self._work, self._changed, self._ids.check
            )
        return self._member

    @property
    def _ends(self) -> frozenset[str]:
        """The topics that cannot be gone on with after they were created again: one whose id is in
        the keys, and all where a partition without a valid offset is to end the consumer."""
        if self._config["auto.offset.reset"] == ENDS_WITHOUT_OFFSET:
            return frozenset(self._settings.consumed)
        return frozenset([self._settings.topic] if self._needs_identity else ())
