"""Kafka for event loops, over aiokafka: `AsyncKafkaConsumer` and its broker.

A task polls without a pause, so that the group keeps its member however long handlers run; it also
commits and pauses. The rebalance listener is awaited by aiokafka before it joins the group again.
What is done with a record is decided in program.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    ProducerClosed,
)

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.engine.async_once import AsyncOnce
from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.broker import BrokerUnavailable, Settled
from oncekey.queues.broker_faults import CUT_OFF_S, is_cancelled, is_fault, reason_of
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.kafka.aiokafka_client import (
    is_put_out,
    names_of,
    new_clients,
    offsets_of,
    partitions_of,
    pin_the_end,
    record_of,
    set_back,
    start,
    stop,
    unavailable,
)
from oncekey.queues.kafka.aiokafka_sender import redrive
from oncekey.queues.kafka.aiokafka_topics import AiokafkaIds, ask
from oncekey.queues.kafka.order_queue import Partition
from oncekey.queues.kafka.program import (
    GIVEN_UP,
    CreatedAgain,
    Forward,
    MemberState,
    PartitionWork,
    TopicIds,
    ending_topics,
)
from oncekey.queues.kafka.settings import (
    AIOKAFKA,
    FETCH_MAX,
    FORWARD_TIMEOUT_S,
    POLL_S,
    SKIPS_TO_END,
    WAIT_MAX_S,
    KafkaSettings,
    settings_of,
)
from oncekey.queues.message_key import DELIVERY, KeyChoice
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import GoOn, to_the_end

_log = logging.getLogger("oncekey")


class AsyncKafkaConsumer(AsyncConsumer):
    """Consumes a topic of Kafka in an event loop: see `KafkaConsumer`."""

    def __init__(
        self,
        once: AsyncOnce,
        handler: Callable[..., Any],
        topic: str,
        *,
        name: str,
        key: KeyChoice,
        config: Mapping[str, Any],
        **options: Any,
    ) -> None:
        """
        config   options of AIOKafkaConsumer; `auto_offset_reset` must be among them
        key      where the key of a message is: "header:NAME", "json:$.path", a function, "delivery"

        The options of this class are the fields of `KafkaSettings`: `order`, the topics that it
        writes to, and its limits. Those of every consumer are in `ConsumerSettings`.
        """
        settings = settings_of(topic, config, name, AIOKAFKA, options)
        broker = AiokafkaBroker(settings, config, needs_identity=key == DELIVERY)
        super().__init__(once, handler, broker, name=name, key=key, **options)


class AiokafkaBroker:
    """One topic of Kafka, with its retry, dead-letter and park topics."""

    def __init__(
        self, settings: KafkaSettings, config: Mapping[str, Any], *, needs_identity: bool = False
    ) -> None:
        """`config` is that of AIOKafkaConsumer, which `settings_of` has accepted."""
        self._settings = settings
        self._config = dict(config)
        self._needs_identity = needs_identity
        self._work = PartitionWork(settings)
        self._asking = AiokafkaIds(config, settings.ask_timeout)
        self._ids: TopicIds | None = None
        self._facts: BrokerFacts | None = None
        self._consumer: AIOKafkaConsumer | None = None
        self._producer: AIOKafkaProducer | None = None
        self._poller: asyncio.Task[None] | None = None
        self._writes: set[asyncio.Task[str | None]] = set()
        self._changed = asyncio.Event()  # there may be messages to take
        self._settled = asyncio.Event()  # some may be done
        self._is_assigned = asyncio.Event()  # no assignment is half-way
        self._is_assigned.set()
        self._committing = asyncio.Lock()
        self._state = MemberState(self._work)

    # --- the port -------------------------------------------------------------------------------

    async def facts(self) -> BrokerFacts:
        if self._facts is None:
            settings = self._settings
            topics = [settings.topic, *settings.written]
            retention, cluster = await ask(self._config, topics, settings.ask_timeout)
            try:
                ids = await self._asking.ids(settings.consumed)
            finally:  # also if it is cancelled
                await self._asking.close()
            reset, has_keys = self._config["auto_offset_reset"], self._needs_identity
            self._ids = TopicIds(ids, ends=ending_topics(settings, reset, has_keys=has_keys))
            self._work.identity = ids[settings.topic] if has_keys else None
            self._facts = self._work.facts(retention, cluster)
        return self._facts

    async def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        await self._join()
        until = time.monotonic() + min(wait, WAIT_MAX_S)
        if most:
            self._state.want(until)
        while True:
            self._state.raise_trouble()
            self._changed.clear()
            taken = self._state.take(most)
            left = until - time.monotonic()
            if taken or left <= 0:
                return taken
            ready_in = self._state.next_wait()
            with suppress(TimeoutError):
                seconds = left if ready_in is None else min(left, ready_in)
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    async def settle(self, settled: Sequence[Settled]) -> None:
        self._forward(self._work.settle(settled))
        self._settled.set()
        self._changed.set()

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        """Kafka has no deadline for a message; the member stays in its group by polling."""

    async def redrive(
        self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end
    ) -> int:
        return await redrive(self._settings, self._config, most, id, parked, go_on)

    async def close(self) -> None:
        """Leave the group, after what is done was written and committed."""
        if self._poller is None:
            return
        try:
            await self._stop_polling()
            if self._writes:
                await asyncio.wait(self._writes, timeout=FORWARD_TIMEOUT_S)
            await self._commit(self._work.partitions)
        finally:  # also if it is cancelled, since the brokers do not answer
            await self._stop_clients()

    async def _drop(self) -> None:
        """Leave the group with clients that have failed. What they have under way is delivered
        again, and so is what was not committed."""
        await self._stop_polling()
        for write in self._writes:
            write.cancel()
        if self._writes:
            await asyncio.wait(self._writes)
        await self._stop_clients()
        self._state = MemberState(self._work)

    async def _stop_polling(self) -> None:
        assert self._poller is not None
        self._poller.cancel()
        await asyncio.wait((self._poller,))

    async def _stop_clients(self) -> None:
        self._work.end(self._work.partitions)
        stopping = [asyncio.ensure_future(stop(each)) for each in (self._consumer, self._producer)]
        stopping.append(asyncio.ensure_future(self._asking.close()))
        # Whoever was cancelled, since no broker answers, does not wait for them again.
        await asyncio.wait(stopping, timeout=CUT_OFF_S if is_cancelled() else None)
        for each in stopping:
            each.cancel()
        await asyncio.wait(stopping)
        self._poller = self._consumer = self._producer = None

    # --- the client -----------------------------------------------------------------------------

    async def _join(self) -> None:
        """Join the group; the first call does, and so does one after a fault."""
        if self._state.is_lost:
            await self._drop()
        if self._poller is not None:
            return
        await self.facts()
        producer, consumer = await new_clients(self._settings, self._config)
        try:
            await start(producer.start())
            await start(consumer.start())
            self._consumer, self._producer = consumer, producer
            consumer.subscribe(self._settings.consumed, listener=_Listener(self))
        except BaseException as error:
            self._consumer = self._producer = None
            await stop(producer)
            await stop(consumer)
            if not is_fault(error):
                raise
            raise unavailable(error) from error
        self._poller = asyncio.create_task(self._poll(consumer))

    async def _poll(self, consumer: AIOKafkaConsumer) -> None:
        while self._state.failure is None:
            try:
                fetched = await consumer.getmany(
                    timeout_ms=int(POLL_S * 1000), max_records=FETCH_MAX
                )
                if fetched:  # aiokafka does so before their assignment is complete here
                    await self._is_assigned.wait()
                    self._state.receive([record_of(r) for part in fetched.values() for r in part])
                    self._changed.set()
                await self._check(consumer)
                await self._advance(consumer)
            except (CreatedAgain, ConfigurationError) as error:
                self._fail(error)
            except NoOffsetForPartitionError as error:
                self._fail(ConfigurationError(f"Kafka refuses this consumer: {error!r}"))
            except BaseException as error:
                # aiokafka tries again after some of its errors, and raises others for ever.
                if not getattr(error, "retriable", False):
                    self._fail(error)
                    continue
                self._state.note(unavailable(error))
                self._changed.set()
                await asyncio.sleep(POLL_S)

    async def _check(self, consumer: AIOKafkaConsumer) -> None:
        """Ask for the ids of the topics, when it is time. Raises if a topic is another one than at
        the start, after the group was set back."""
        if not self._state.check_is_due():
            return
        began = time.monotonic()
        assert self._ids is not None
        try:
            for topic, found in (await self._asking.ids(self._ids.asked)).items():
                if self._ids.has_changed(topic, found):
                    self._work.end([each for each in self._work.partitions if each[0] == topic])
                    await set_back(consumer, topic, self._asking.partitions[topic])
                    self._ids.created_again(topic, str(found))
        except BrokerUnavailable as error:
            if isinstance(error, CreatedAgain):
                raise
            self._state.not_checked(error)
        else:
            self._state.checked(began)
        self._changed.set()

    async def _advance(self, consumer: AIOKafkaConsumer) -> None:
        """Commit what may be committed, and pause and resume partitions."""
        self._forward(self._work.stuck())
        changes = self._state.pause_changes()
        with suppress(IllegalStateError):  # one is not assigned any more
            consumer.pause(*partitions_of(changes.pause))
            consumer.resume(*partitions_of(changes.resume))
        if self._state.may_commit:
            await self._commit(self._work.partitions)

    async def _commit(self, partitions: Iterable[Partition]) -> None:
        """Commit what is done of partitions. aiokafka sends a failed commit again, for whichever
        member it is by then, so `revoked` waits for one that is under way."""
        async with self._committing:
            if not is_put_out(self._consumer) and (offsets := self._work.commits(partitions)):
                await self._commit_offsets(offsets)

    async def _commit_offsets(self, offsets: Mapping[Partition, int]) -> None:
        assert self._consumer is not None
        try:
            # aiokafka itself waits for its brokers for ever, and so would a stop.
            async with asyncio.timeout(self._settings.ask_timeout):
                await self._consumer.commit(offsets_of(offsets))
        except BaseException as error:
            self._check_client(error)
            # They are sent again, or their messages come again; the store knows how they ended.
            _log.warning("Kafka did not take offsets: %s", reason_of(error))
            self._state.not_committed(offsets)

    def _forward(self, forwards: Iterable[Forward]) -> None:
        """Begin to write records to other topics."""
        for forward in forwards:
            task = asyncio.get_running_loop().create_task(self._write(forward))
            self._writes.add(task)
            task.add_done_callback(partial(self._written, forward))

    async def _write(self, forward: Forward) -> str | None:
        """Write a record; returns why it could not be written, if it could not."""
        if self._producer is None:
            return GIVEN_UP
        topic, key, value, headers = forward.record
        try:
            async with asyncio.timeout(FORWARD_TIMEOUT_S):
                await self._producer.send_and_wait(topic, value, key=key, headers=headers)
        except BaseException as error:
            self._check_client(error)
            return reason_of(error)
        return None

    def _written(self, forward: Forward, task: asyncio.Task[str | None]) -> None:
        """Note how a write ended, however it did: until then its partition waits for it."""
        self._writes.discard(task)
        self._work.written(forward, GIVEN_UP if task.cancelled() else task.result())
        self._settled.set()
        self._changed.set()

    def _check_client(self, error: BaseException) -> None:
        """Give the clients up after an error that no answer of Kafka can be the cause of."""
        if isinstance(error, ProducerClosed) or not isinstance(error, (KafkaError, TimeoutError)):
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Let `receive` raise what ends the consumer, or this member of the group; raises what
        interrupts the task itself."""
        if not is_fault(error) and not isinstance(error, Exception):
            raise error
        is_ours = isinstance(error, OncekeyError)
        self._state.fail(error if is_ours else unavailable(error))
        self._changed.set()

    # --- what the group decides -----------------------------------------------------------------

    async def assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._is_assigned.clear()
        try:
            if self._config.get("auto_offset_reset") == SKIPS_TO_END:
                assert self._consumer is not None
                await pin_the_end(self._consumer, self._settings.topic)
            self._work.assign(names_of(partitions))
            self._state.is_checked = False
        except BaseException as error:
            self._fail(error)  # aiokafka only logs it, and goes on as if it had been done
        finally:
            self._is_assigned.set()

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Let what runs finish for a while, and commit what is done, before another member has the
        partitions. A member that was put out of its group has lost them, and commits nothing."""
        names = names_of(partitions)
        self._work.begin_revoke(names)
        if is_put_out(self._consumer):
            _log.warning("lost %s to another member of the group", names)
        else:
            until = time.monotonic() + self._settings.revoke_timeout
            while not self._work.is_idle(names) and time.monotonic() < until:
                self._settled.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._settled.wait()
        await self._commit(names)  # also waits for one that is under way
        self._work.end(names)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, broker: AiokafkaBroker) -> None:
        self._broker = broker

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        if revoked:
            await self._broker.revoked(revoked)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        await self._broker.assigned(assigned)
