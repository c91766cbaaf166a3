"""Kafka as a broker for consumers in threads, over confluent-kafka.

The consumer's threads take messages and say what became of them, under a lock; the client itself is
used by the thread of the group's member alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from oncekey.queues.broker import BrokerUnavailable, Settled
from oncekey.queues.broker_identity import identity_of
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.kafka.confluent_errors import check_error
from oncekey.queues.kafka.confluent_member import GroupMember
from oncekey.queues.kafka.confluent_redrive import redrive
from oncekey.queues.kafka.confluent_topics import ConfluentTopics
from oncekey.queues.kafka.confluent_values import connection_options
from oncekey.queues.kafka.kafka_settings import WAIT_MAX_S, KafkaSettings
from oncekey.queues.kafka.partition_work import GIVEN_UP, PartitionWork
from oncekey.queues.kafka.topic_ids import TopicIds, ending_topics
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
        self._topics: ConfluentTopics | None = None
        self._facts: BrokerFacts | None = None
        self._member: GroupMember | None = None

    def facts(self) -> BrokerFacts:
        if self._facts is None:
            settings = self._settings
            connection = connection_options(self._config)
            topics = ConfluentTopics(connection, settings.ask_timeout)
            topics.check([settings.topic, *settings.written])
            reset, has_keys = self._config["auto.offset.reset"], self._needs_identity
            ids = {topic: topics.identity(topic) for topic in settings.consumed}
            self._ids = TopicIds(ids, ends=ending_topics(settings, reset, has_keys=has_keys))
            self._topics = topics
            identity = self._ids[settings.topic] if has_keys else None
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
            self._member = GroupMember(
                self._settings, self._config, self._work, self._changed, self._check_topics
            )
        return self._member

    def _check_topics(self, consumer: Consumer, forget: Callable[[str], None]) -> None:
        """Raise if a topic is another one now, after the group was set back.

        `forget` is called first, and makes sure that no offset of the old topic is committed later.
        """
        assert self._ids is not None
        assert self._topics is not None
        for topic in self._ids.asked:
            found = self._topics.identity(topic)
            if self._ids.has_changed(topic, found):
                forget(topic)
                self._set_back(consumer, topic)
                self._ids.created_again(topic, str(found))

    def _set_back(self, consumer: Consumer, topic: str) -> None:
        """Commit the beginning of all partitions, whoever has them: their member may be gone."""
        seconds = self._settings.ask_timeout
        numbers = consumer.list_topics(topic, timeout=seconds).topics[topic].partitions
        if not numbers:
            raise BrokerUnavailable(f"Kafka does not tell the partitions of {topic}")
        offsets = [TopicPartition(topic, number, 0) for number in numbers]
        for each in consumer.commit(offsets=offsets, asynchronous=False) or ():
            check_error(each)
