"""The ids of the topics that a consumer reads, so that one that is created again is noticed.

A topic that is deleted and created under the same name begins at offset 0, and the clients, which
go by names, go on where they were in the old one: what the new one has before that would be
skipped. So the ids are asked for again and again. When one has changed, the group is set back to
the beginning of that topic: a message that is received twice does no harm, and one that never is
does. Clusters before Kafka 2.8 have no ids, and nothing is noticed there. This module asks nothing
itself; how a client asks is in confluent_topics.py and aiokafka_topics.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.kafka.kafka_settings import ENDS_WITHOUT_OFFSET, KafkaSettings


class CreatedAgain(BrokerUnavailable):
    """A topic was created again. Whoever joins the group anew reads it from its beginning."""


class TopicIds:
    """The ids of a consumer's topics at its start; None for a topic whose cluster has no ids."""

    def __init__(self, known: Mapping[str, str | None], *, ends: frozenset[str]) -> None:
        """The consumer ends when one of the topics in `ends` is created again."""
        self._known = dict(known)
        self._ends = ends

    def __getitem__(self, topic: str) -> str | None:
        return self._known[topic]

    @property
    def asked(self) -> list[str]:
        """The topics whose ids are to be asked for again."""
        return [topic for topic, known in self._known.items() if known is not None]

    def has_changed(self, topic: str, found: str | None) -> bool:
        """Return whether a topic is another one now; `found` is the id that it has, or None if the
        cluster does not know it any more, which raises."""
        if found is None:
            raise BrokerUnavailable(f"Kafka does not know the topic {topic!r} any more")
        return found != self._known[topic]

    def created_again(self, topic: str, found: str) -> NoReturn:
        """Raise what becomes of the consumer, after the group was set back."""
        if topic in self._ends:
            raise ConfigurationError(
                f"the topic {topic!r} was created again while it was consumed; start the consumer "
                "again, so that new messages are not taken for old ones"
            )
        self._known[topic] = found
        raise CreatedAgain(f"the topic {topic!r} was created again, and is read from its beginning")


def ending_topics(settings: KafkaSettings, reset: str, *, has_keys: bool) -> frozenset[str]:
    """Return the topics that cannot be gone on with after they were created again: one whose id is
    in the keys, and all where a partition without a valid offset is to end the consumer."""
    if reset in ENDS_WITHOUT_OFFSET:
        return frozenset(settings.consumed)
    return frozenset([settings.topic] if has_keys else ())
