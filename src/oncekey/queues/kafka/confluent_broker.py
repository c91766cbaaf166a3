"""Kafka for threads, over confluent-kafka: `KafkaConsumer` and its broker.

The consumer's threads take messages and say what became of them, under a lock; the client itself is
used by the thread of the group's member alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer as Client

from oncekey.engine.once import Once
from oncekey.queues.blocking.consumer import Consumer
from oncekey.queues.broker import Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.kafka.confluent_client import ConfluentTopics, connection_options, set_back
from oncekey.queues.kafka.confluent_member import GroupMember
from oncekey.queues.kafka.confluent_sender import redrive
from oncekey.queues.kafka.program import GIVEN_UP, PartitionWork, TopicIds, ending_topics
from oncekey.queues.kafka.settings import CONFLUENT, WAIT_MAX_S, KafkaSettings, settings_of
from oncekey.queues.message_key import DELIVERY, KeyChoice
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import GoOn, to_the_end


class KafkaConsumer(Consumer):
    """Consumes a topic of Kafka in threads: calls `handler(message)` once for each key.

    An offset is committed only past messages whose outcome is stored, or which were written to
    another topic by all replicas. `run` blocks until `stop` is called.
    """

    def __init__(
        self,
        once: Once,
        handler: Callable[..., Any],
        topic: str,
        *,
        name: str,
        key: KeyChoice,
        config: Mapping[str, Any],
        **options: Any,
    ) -> None:
        """
        config   options of confluent-kafka's Consumer; `auto.offset.reset` must be among them
        key      where the key of a message is: "header:NAME", "json:$.path", a function, "delivery"

        The options of this class are the fields of `KafkaSettings`: `order`, the topics that it
        writes to, and its limits. Those of every consumer are in `ConsumerSettings`.
        """
        settings = settings_of(topic, config, name, CONFLUENT, options)
        broker = ConfluentBroker(settings, config, needs_identity=key == DELIVERY)
        super().__init__(once, handler, broker, name=name, key=key, **options)


class ConfluentBroker:
    """One topic of Kafka, with its retry, dead-letter and park topics."""

    def __init__(
        self, settings: KafkaSettings, config: Mapping[str, Any], *, needs_identity: bool = False
    ) -> None:
        """`config` is that of confluent-kafka's Consumer, which `settings_of` has accepted."""
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
            self._work.identity = ids[settings.topic] if has_keys else None
            retention = topics.retention([settings.topic, *settings.written])
            self._facts = self._work.facts(retention, topics.cluster_id())
        return self._facts

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        member = self._joined()
        until = time.monotonic() + min(wait, WAIT_MAX_S)
        with self._changed:
            if most:
                member.state.want(until)
            while True:
                member.state.raise_trouble()
                taken = member.state.take(most)
                left = until - time.monotonic()
                if taken or left <= 0 or member.is_closing:
                    return taken
                ready_in = member.state.next_wait()
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
        if self._member is not None and self._member.state.is_lost:
            self.close()
        if self._member is None:
            self.facts()
            self._member = GroupMember(
                self._settings, self._config, self._work, self._changed, self._check_topics
            )
        return self._member

    def _check_topics(self, consumer: Client, forget: Callable[[str], None]) -> None:
        """Raise if a topic is another one now, after the group was set back.

        `forget` is called first, and makes sure that no offset of the old topic is committed later.
        """
        assert self._ids is not None
        assert self._topics is not None
        for topic in self._ids.asked:
            found = self._topics.identity(topic)
            if self._ids.has_changed(topic, found):
                forget(topic)
                set_back(consumer, topic, self._settings.ask_timeout)
                self._ids.created_again(topic, str(found))
