"""What a Kafka consumer does, whichever client it has.

    PartitionWork   what is done with records and dispositions
    MemberState     how its member of the group fares: what failed, and what is due when
    TopicIds        whether a topic is still the one that it was at the start

The two brokers drive them: they report what the client received, what was settled and what was
written to another topic, and do what is returned. This module waits for nothing and knows no
client; the sync broker holds a lock around every call.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.queues.broker import BrokerUnavailable, Settled
from oncekey.queues.broker_faults import is_fault
from oncekey.queues.broker_identity import identity_of
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.disposition import Kind
from oncekey.queues.kafka.assigned_partitions import AssignedPartitions, PauseChange
from oncekey.queues.kafka.message import (
    KafkaRecord,
    OutgoingRecord,
    ReceivedRecord,
    by_disposition,
    received,
    to_retry,
)
from oncekey.queues.kafka.order_queue import Entry, Partition
from oncekey.queues.kafka.settings import (
    CHECK_EVERY_S,
    CHECK_RETRY_S,
    COMMIT_RETRY_S,
    ENDS_WITHOUT_OFFSET,
    FORWARD_RETRY_S,
    PAUSE_AFTER_S,
    KafkaSettings,
)
from oncekey.queues.queue_message import Message

# Why a record was not written whose client has failed meanwhile.
GIVEN_UP: Final = "its client was given up; the message is delivered again"
_log = logging.getLogger("oncekey")
_AGAIN: Final = frozenset((Kind.HIDE, Kind.RETRY, Kind.GIVE_BACK))


class Forward(NamedTuple):
    """A record that the client is to write; `written` is then called, with the error if there was
    one: also for a partition that was lost, since messages in order wait for it."""

    record: OutgoingRecord
    entry: Entry[ReceivedRecord]


class PartitionWork:
    """The records of the assigned partitions, as messages of a consumer."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.identity: str | None = None
        self.was_set_back = False  # a partition has other messages than it had before
        self.now = now
        self._wall_clock = wall_clock
        self._assigned: AssignedPartitions[ReceivedRecord] = AssignedPartitions(
            max_uncommitted=settings.max_uncommitted, stuck_after=settings.stuck_after
        )
        self._out: dict[int, tuple[Message, Entry[ReceivedRecord]]] = {}  # by id() of the message

    def facts(self, retention: float | None, cluster: str | None) -> BrokerFacts:
        """What the consumer is to know, by what the cluster says of itself and its topics."""
        return BrokerFacts(
            self.settings.topic,
            self.identity,
            retention,
            ordered=self.settings.order != "none",
            broker=identity_of("kafka", cluster=cluster),
        )

    # --- the group ------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[Partition]) -> None:
        self._assigned.assign(partitions)

    def begin_revoke(self, partitions: Collection[Partition]) -> None:
        """Take no more of these partitions. What runs may finish until `end`."""
        self._assigned.stop_taking(partitions)

    def is_idle(self, partitions: Iterable[Partition]) -> bool:
        return self._assigned.is_idle(partitions)

    def end(self, partitions: Collection[Partition]) -> None:
        """Forget partitions: nothing of them is committed any more."""
        self._assigned.end(partitions)

    @property
    def partitions(self) -> list[Partition]:
        return self._assigned.partitions

    def commits(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, int]:
        """Return the offsets to commit; they count as committed from now on."""
        return self._assigned.commits(partitions)

    def not_committed(self, partitions: Iterable[Partition]) -> None:
        self._assigned.not_committed(partitions)

    def pause_all(self, paused: bool) -> None:
        self._assigned.all_paused = paused

    def pause_changes(self) -> PauseChange:
        return self._assigned.pause_changes()

    # --- messages -------------------------------------------------------------------------------

    def receive(self, records: Iterable[KafkaRecord]) -> None:
        """Add the records that the client has fetched."""
        now = self.now()
        for record in records:
            source = received(record, self.settings, self.identity)
            wait = source.due - self._wall_clock() if source.due else 0.0
            group = source.message.order_group
            due = now + max(0.0, wait)
            if not self._assigned.receive(record.position, source, group, due, now):
                self.was_set_back = True
                _log.warning(
                    "partition %d of %s begins again at %d: its topic was created again, or its "
                    "broker has lost messages",
                    record.position.partition,
                    record.position.topic,
                    record.position.offset,
                )

    def take(self, most: int) -> list[Message]:
        """Return messages for handlers; each comes back by `settle`."""
        return [self._as_message(entry) for entry in self._assigned.take(most, self.now())]

    def _as_message(self, entry: Entry[ReceivedRecord]) -> Message:
        message = entry.item.message
        if entry.tries > 1:
            count = message.receive_count + entry.tries - 1
            message = dataclasses.replace(message, receive_count=count)
        self._out[id(message)] = message, entry
        return message

    def next_wait(self) -> float | None:
        """Return in how many seconds a message can be taken; None if that needs a new record."""
        now = self.now()
        when = self._assigned.next_time(now)
        return None if when is None else max(0.0, when - now)

    def settle(self, settled: Sequence[Settled]) -> list[Forward]:
        """Do what dispositions say; return what is to be written before the offset may pass."""
        forwards: list[Forward] = []
        now = self.now()
        for message, disposition in settled:
            _, entry = self._out.pop(id(message), (None, None))
            if entry is None:
                continue
            if disposition.kind in _AGAIN:
                self._assigned.hold(entry, now + disposition.seconds, now)
                continue
            record = by_disposition(entry.item, self.settings, self.identity, disposition)
            if record is None:
                self._assigned.finish(entry, now)
            else:
                forwards.append(Forward(record, entry))
        return forwards + self._stuck(now)

    def _stuck(self, now: float) -> list[Forward]:
        """Return the messages that are to go on in the retry topic."""
        if self.settings.retry_topic is None:
            return []
        forwards = []
        for entry in self._assigned.take_stuck(now):
            due = self._wall_clock() + max(0.0, entry.not_before - now)
            tries = entry.item.message.receive_count + entry.tries - 1
            record = to_retry(entry.item, self.settings, self.identity, due, tries)
            _log.warning(
                "message %s of %s would hold back its partition and goes to %s",
                entry.item.message.delivery_id,
                self.settings.topic,
                record.topic,
            )
            forwards.append(Forward(record, entry))
        return forwards

    def stuck(self) -> list[Forward]:
        return self._stuck(self.now())

    def written(self, forward: Forward, error: object) -> None:
        """Note that a record was written to its topic by all replicas, or why it was not."""
        now = self.now()
        if error is None:
            self._assigned.finish(forward.entry, now)
            return
        _log.warning(
            "message %s of %s could not be written to %s, and stays: %s",
            forward.entry.item.message.delivery_id,
            self.settings.topic,
            forward.record.topic,
            error,
        )
        entry = forward.entry
        entry.stays_until = now + FORWARD_RETRY_S
        # A try that is due later still is: it was only to wait elsewhere.
        self._assigned.hold(entry, max(entry.not_before, entry.stays_until), now)


class MemberState:
    """How one member of the group fares: what has failed, and what is due when.

    failure      ends the member, and is raised always
    is_lost      it was raised, and another member may do better
    is_checked   False while a topic may be another one than at the start: nothing is taken then
    """

    def __init__(self, work: PartitionWork) -> None:
        self.failure: BaseException | None = None
        self.is_lost = False
        self.is_checked = True
        self._work = work
        self._trouble: OncekeyError | None = None  # raised once
        self._wanted_at = work.now()
        self._commit_after = self._checked_at = self._check_after = 0.0

    # --- what has failed ------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        self.failure = self.failure or error

    def note(self, trouble: OncekeyError) -> None:
        self._trouble = trouble

    def raise_trouble(self) -> None:
        if self.failure is not None:
            self.is_lost = is_fault(self.failure)
            raise self.failure
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    # --- messages, pauses and commits -----------------------------------------------------------

    def want(self, until: float) -> None:
        """Messages are wanted until then, so no partition needs to be paused."""
        self._wanted_at = max(self._wanted_at, until)

    def receive(self, records: Sequence[KafkaRecord]) -> None:
        """Add the records that the client has fetched. Where keys have the topic's id, none is
        taken before the id was asked for again."""
        self._work.receive(records)
        if self._work.was_set_back or (records and self._work.identity is not None):
            self._work.was_set_back = self.is_checked = False

    def take(self, most: int) -> list[Message]:
        return self._work.take(most) if most and self.is_checked else []

    def next_wait(self) -> float | None:
        return self._work.next_wait() if self.is_checked else None

    def pause_changes(self) -> PauseChange:
        self._work.pause_all(self._work.now() - self._wanted_at > PAUSE_AFTER_S)
        return self._work.pause_changes()

    @property
    def may_commit(self) -> bool:
        return self._work.now() >= self._commit_after

    def not_committed(self, partitions: Iterable[Partition]) -> None:
        self._work.not_committed(partitions)
        self._commit_after = self._work.now() + COMMIT_RETRY_S

    # --- the topics -----------------------------------------------------------------------------

    def check_is_due(self, *, has_news: bool = True) -> bool:
        """True if the ids of the topics are to be asked for: now and then, and before messages are
        taken after partitions were assigned or set back."""
        now = self._work.now()
        is_late = has_news and now >= self._checked_at + CHECK_EVERY_S
        return now >= self._check_after and (is_late or not self.is_checked)

    def checked(self, began: float) -> None:
        self._checked_at, self.is_checked = began, True

    def not_checked(self, trouble: OncekeyError) -> None:
        self._trouble, self._check_after = trouble, self._work.now() + CHECK_RETRY_S


class CreatedAgain(BrokerUnavailable):
    """A topic was created again. Whoever joins the group anew reads it from its beginning."""


class TopicIds:
    """The ids of a consumer's topics at its start; None for a topic whose cluster has no ids.

    A topic that is deleted and created under the same name begins at offset 0, and the clients,
    which go by names, go on where they were in the old one: what the new one has before that would
    be skipped. So the ids are asked for again and again. When one has changed, the group is set
    back to the beginning of that topic: a message that is received twice does no harm, and one that
    never is does. Clusters before Kafka 2.8 have no ids, and nothing is noticed there.
    """

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
