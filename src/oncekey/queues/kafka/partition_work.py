"""What a Kafka consumer does with records and dispositions, whichever client it has.

The two brokers drive it: they tell it what the client received, what was settled and what was
written to another topic, and do what it returns. It waits for nothing and knows no client; the
sync broker holds a lock around every call.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from oncekey.queues.broker import Settled
from oncekey.queues.disposition import Kind
from oncekey.queues.kafka.assigned_partitions import AssignedPartitions, PauseChange
from oncekey.queues.kafka.kafka_records import (
    ForwardedRecord,
    KafkaRecord,
    ReceivedRecord,
    by_disposition,
    received,
    to_retry,
)
from oncekey.queues.kafka.kafka_settings import FORWARD_RETRY_S, KafkaSettings
from oncekey.queues.kafka.order_queue import Entry, Partition
from oncekey.queues.queue_message import Message

# Why a record was not written whose client has failed meanwhile.
GIVEN_UP: Final = "its client was given up; the message is delivered again"
_log = logging.getLogger("oncekey")
_AGAIN: Final = frozenset((Kind.HIDE, Kind.RETRY, Kind.GIVE_BACK))


class Forward(NamedTuple):
    """A record that the client is to write; `written` is told whether it was, durably. It must be
    told in any case, also of a partition that was lost: messages in order wait for it."""

    record: ForwardedRecord
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
        self._now = now
        self._wall_clock = wall_clock
        self._assigned: AssignedPartitions[ReceivedRecord] = AssignedPartitions(
            max_uncommitted=settings.max_uncommitted, stuck_after=settings.stuck_after
        )
        self._out: dict[int, tuple[Message, Entry[ReceivedRecord]]] = {}  # by id() of the message

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
        now = self._now()
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
        return [self._as_message(entry) for entry in self._assigned.take(most, self._now())]

    def _as_message(self, entry: Entry[ReceivedRecord]) -> Message:
        message = entry.item.message
        if entry.tries > 1:
            count = message.receive_count + entry.tries - 1
            message = dataclasses.replace(message, receive_count=count)
        self._out[id(message)] = message, entry
        return message

    def next_wait(self) -> float | None:
        """Return in how many seconds a message can be taken; None if that needs a new record."""
        now = self._now()
        when = self._assigned.next_time(now)
        return None if when is None else max(0.0, when - now)

    def settle(self, settled: Sequence[Settled]) -> list[Forward]:
        """Do what dispositions say; return what is to be written before the offset may pass."""
        forwards: list[Forward] = []
        now = self._now()
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
        return self._stuck(self._now())

    def written(self, forward: Forward, error: object) -> None:
        """Note that a record was written to its topic by all replicas, or why it was not."""
        now = self._now()
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
