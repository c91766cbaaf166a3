"""The ids of the topics that a consumer reads, so that one that is created again is noticed.

A topic that is deleted and created under the same name begins at offset 0, and the client, which
goes by names, goes on where it was in the old one: what the new one has before that would be
skipped. So the ids are asked for again and again. When one has changed, the group is set back to
the beginning of that topic: a message that is received twice does no harm, and one that never is
does. Clusters before Kafka 2.8 have no ids, and nothing is noticed there.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Consumer, TopicPartition

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.kafka.confluent_errors import check_error
from oncekey.queues.kafka.confluent_topics import ConfluentTopics
from oncekey.queues.kafka.kafka_settings import KafkaSettings


class CreatedAgain(BrokerUnavailable):
    """A topic was created again. Whoever joins the group anew reads it from its beginning."""


class TopicIds:
    """The ids of a consumer's topics at its start."""

    def __init__(
        self, topics: ConfluentTopics, settings: KafkaSettings, *, ends: frozenset[str]
    ) -> None:
        """The consumer ends when one of the topics in `ends` is created again."""
        self._topics = topics
        self._timeout = settings.ask_timeout
        self._ends = ends
        self._known = {topic: topics.identity(topic) for topic in settings.consumed}

    def __getitem__(self, topic: str) -> str | None:
        """The id that a topic had; None if the cluster does not tell."""
        return self._known[topic]

    def check(self, consumer: Consumer, forget: Callable[[str], None]) -> None:
        """Raise if a topic is another one now, after the group was set back.

        `forget` is called first, and makes sure that no offset of the old topic is committed later.
        """
        for topic, known in self._known.items():
            if known is None:
                continue
            found = self._topics.identity(topic)
            if found is None:
                raise BrokerUnavailable(f"Kafka does not know the topic {topic!r} any more")
            if found != known:
                forget(topic)
                self._set_back(consumer, topic)
                self._raise(topic, found)

    def _set_back(self, consumer: Consumer, topic: str) -> None:
        """Commit the beginning of all partitions, whoever has them: their member may be gone."""
        numbers = consumer.list_topics(topic, timeout=self._timeout).topics[topic].partitions
        if not numbers:
            raise BrokerUnavailable(f"Kafka does not tell the partitions of {topic}")
        offsets = [TopicPartition(topic, number, 0) for number in numbers]
        for each in consumer.commit(offsets=offsets, asynchronous=False) or ():
            check_error(each)

    def _raise(self, topic: str, found: str) -> None:
        if topic in self._ends:
            raise ConfigurationError(
                f"the topic {topic!r} was created again while it was consumed; start the consumer "
                "again, so that new messages are not taken for old ones"
            )
        self._known[topic] = found
        raise CreatedAgain(f"the topic {topic!r} was created again, and is read from its beginning")
