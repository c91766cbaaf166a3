"""One member of a consumer group, over confluent-kafka: a thread that polls without a pause.

The group keeps its member however long handlers run, because they run elsewhere. The rebalance
callbacks, commits and pauses happen in the thread that polls, so that nothing is committed for a
partition after it was taken away. What is done with a record is decided in program.py.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

from oncekey.core.errors import OncekeyError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.broker_faults import is_fault, reason_of
from oncekey.queues.kafka.confluent_client import (
    FINAL,
    connection_options,
    failure_of,
    names_of,
    not_made,
    offsets_of,
    partitions_of,
    pin_the_end,
    record_of,
    refused,
    unavailable,
)
from oncekey.queues.kafka.order_queue import Partition
from oncekey.queues.kafka.program import GIVEN_UP, CreatedAgain, Forward, MemberState, PartitionWork
from oncekey.queues.kafka.settings import (
    FETCH_MAX,
    FORWARD_MAX_BYTES,
    FORWARD_TIMEOUT_S,
    POLL_S,
    SKIPS_TO_END,
    KafkaSettings,
    client_reset,
)

_log = logging.getLogger("oncekey")


class GroupMember:
    """The thread and the clients of one consumer; its broker shares the work and the lock.

    changed       guards the work and the fields here
    check_topics  is called after partitions were assigned or set back, and no message is taken
                  before it has returned; also now and then, and where keys have the topic's id,
                  whenever messages have come. Raises if a topic is another one than at the start
    """

    def __init__(
        self,
        settings: KafkaSettings,
        config: Mapping[str, Any],
        work: PartitionWork,
        changed: threading.Condition,
        check_topics: Callable[[Consumer, Callable[[str], None]], None],
    ) -> None:
        self._settings = settings
        self._work = work
        self._changed = changed
        self._check_topics = check_topics
        self._skips_to_end = config["auto.offset.reset"] == SKIPS_TO_END
        self.state = MemberState(work)
        self._has_left = False
        self._unwritten: dict[int, Forward] = {}  # that the producer has not reported on
        self._has_news = False  # since the topics were checked
        self._closing = threading.Event()
        try:
            self._producer = _producer(config)
            self._consumer = _consumer(config, settings.group, self._on_error, self._on_commit)
        except Exception as error:
            raise not_made(error) from error
        name = f"oncekey-kafka-{settings.group}"
        self._thread = threading.Thread(target=self._poll, name=name, daemon=True)
        try:
            self._consumer.subscribe(
                settings.consumed,
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            self._thread.start()
        except BaseException:
            self._leave()
            raise

    # --- for the broker, which holds the lock ---------------------------------------------------

    @property
    def is_closing(self) -> bool:
        return self._closing.is_set()

    def forward(self, forwards: Iterable[Forward]) -> None:
        """Begin to write records to other topics; the thread hears how it ended."""
        for forward in forwards:
            topic, key, value, headers = forward.record
            self._unwritten[id(forward)] = forward
            try:
                if self._has_left:
                    raise BrokerUnavailable(GIVEN_UP)
                self._producer.produce(
                    *(topic, value, key),
                    headers=list(headers),
                    on_delivery=self._report(forward),
                )
            except Exception as error:
                self._note_written(forward, reason_of(error))

    def _note_written(self, forward: Forward, error: object) -> None:
        if self._unwritten.pop(id(forward), None) is not None:
            self._work.written(forward, error)
            self._changed.notify_all()

    def close(self) -> None:
        """Leave the group, without the lock. Whoever calls has waited for the handlers."""
        self._closing.set()
        self._thread.join()

    # --- the thread -----------------------------------------------------------------------------

    def _poll(self) -> None:
        try:
            while not self._closing.is_set():
                first = self._consumer.poll(POLL_S)
                if first is not None:
                    self._received([first, *self._consumer.consume(FETCH_MAX - 1, 0)])
                self._producer.poll(0)
                self._check()
                self._advance()
        except BaseException as error:  # the thread that receives raises it
            self._fail(failure_of(error))
        finally:
            self._leave()

    def _received(self, polled: Sequence[Message]) -> None:
        records = []
        for message in polled:
            error = message.error()
            if error is None:
                records.append(record_of(message))
            elif error.code() != KafkaError._PARTITION_EOF:
                self._on_error(error)
        with self._changed:
            self.state.receive(records)
            self._has_news = self._has_news or bool(records)
            self._changed.notify_all()

    def _check(self) -> None:
        """Check the topics, without the lock; if their brokers do not answer, ask again."""
        if not self.state.check_is_due(has_news=self._has_news):
            return
        began = time.monotonic()
        try:
            self._check_topics(self._consumer, self._forget)
        except Exception as error:
            if isinstance(error, CreatedAgain) or not is_fault(error):
                raise
            trouble = error if isinstance(error, OncekeyError) else unavailable(error)
            with self._changed:
                self.state.not_checked(trouble)
                self._changed.notify_all()
            return
        self._has_news = False
        with self._changed:
            self.state.checked(began)
            self._changed.notify_all()

    def _forget(self, topic: str) -> None:
        with self._changed:
            self._work.end([each for each in self._work.partitions if each[0] == topic])

    def _advance(self) -> None:
        """Commit what may be committed, and pause and resume partitions."""
        with self._changed:
            self.forward(self._work.stuck())
            changes = self.state.pause_changes()
            offsets = self._work.commits() if self.state.may_commit else {}
        if changes.pause:
            self._consumer.pause(partitions_of(changes.pause))
        if changes.resume:
            self._consumer.resume(partitions_of(changes.resume))
        if offsets:
            self._has_news = True
            self._consumer.commit(offsets=offsets_of(offsets), asynchronous=True)

    def _leave(self) -> None:
        """Write what is on its way, and leave the group; a revocation commits what is done."""
        self._end_client(lambda: self._producer.flush(FORWARD_TIMEOUT_S))
        if not self._end_client(self._consumer.close):
            # One that had not even begun to close would stay a member of its group, with partitions
            # that nobody consumes. Any other is closed already, and says so.
            with suppress(Exception):
                self._consumer.close()
        with self._changed:
            self._has_left = True
            self._work.end(self._work.partitions)
            for forward in list(self._unwritten.values()):
                self._note_written(forward, GIVEN_UP)
            self._changed.notify_all()

    def _end_client(self, call: Callable[[], object]) -> bool:
        """Make one of the last calls of a client; False if it failed, which is logged."""
        try:
            call()
        except Exception as error:
            topic, reason = self._settings.topic, reason_of(error)
            _log.warning("the Kafka consumer of %s did not close: %s", topic, reason)
            return False
        return True

    def _report(self, forward: Forward) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, message: Message) -> None:
            with self._changed:
                self._note_written(forward, error)

        return report

    # --- callbacks of the client, in the thread -------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._skips_to_end:
            pin_the_end(self._consumer, self._settings.topic, self._settings.ask_timeout)
        with self._changed:
            self._work.assign(names_of(partitions))
            self.state.is_checked = False

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Let what runs finish for a while, and commit what is done, before another member has the
        partitions. What still runs then is the other member's to find in flight."""
        names = names_of(partitions)
        with self._changed:
            self._work.begin_revoke(names)
        self._wait_until_idle(names)
        with self._changed:
            offsets = self._work.commits(names)
            self._work.end(names)
        if offsets:
            try:
                self._consumer.commit(offsets=offsets_of(offsets), asynchronous=False)
            except Exception as error:
                # They are delivered again, and the store knows how they ended.
                reason = reason_of(error)
                _log.warning("offsets of revoked partitions were not committed: %s", reason)

    def _wait_until_idle(self, names: list[Partition]) -> None:
        until = time.monotonic() + self._settings.revoke_timeout
        while time.monotonic() < until:
            with self._changed:
                if self._work.is_idle(names) or self._closing.is_set():
                    return
                self._changed.wait(POLL_S)
            self._producer.poll(0)  # what goes to another topic is done when that has it

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget partitions that are another member's already: nothing is committed."""
        names = names_of(partitions)
        _log.warning("lost %s to another member of the group", names)
        with self._changed:
            self._work.end(names)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        failed = [each for each in partitions if error is not None or each.error is not None]
        if failed and (error is None or error.code() != KafkaError._NO_OFFSET):
            _log.warning("Kafka did not take offsets: %s", error or failed[0].error)
            with self._changed:
                self.state.not_committed(names_of(failed))

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() in FINAL:
            self._fail(refused(error))
            return
        with self._changed:
            self.state.note(unavailable(error))
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self.state.fail(error)
            self._changed.notify_all()
        self._closing.set()


def _producer(config: Mapping[str, Any]) -> Producer:
    return Producer(
        {
            **connection_options(config),
            "acks": "all",
            "message.timeout.ms": int(FORWARD_TIMEOUT_S * 1000),
            "message.max.bytes": FORWARD_MAX_BYTES,
        }
    )


def _consumer(
    config: Mapping[str, Any],
    group: str,
    on_error: Callable[[KafkaError], None],
    on_commit: Callable[[KafkaError | None, list[TopicPartition]], None],
) -> Consumer:
    options = {
        "error_cb": on_error,
        **config,
        "auto.offset.reset": client_reset(config["auto.offset.reset"]),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "on_commit": on_commit,
    }
    return Consumer(options)
