"""Consumes a queue in tasks: see blocking/consumer.py, which does the same in threads.

Each message in hand has a task. Where keys are claimed ahead, all claims of a batch leave together
and only `concurrency` of them run handlers; else a task claims when it may run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.port import AsyncPort
from oncekey.queues.aio.message_handler import AsyncMessageHandler
from oncekey.queues.aio.slots import Slots
from oncekey.queues.broker import RECEIVE_WAIT_S, AsyncBroker, Settled
from oncekey.queues.broker_faults import answered, asking, is_cancelled
from oncekey.queues.broker_identity import async_bound_scope
from oncekey.queues.consumer_base import (
    AWAITED_AT_START,
    EXTENSIONS_PER_LEASE,
    LEAVE_LAST_S,
    PAUSE_FIRST_S,
    RECEIVE_LAST_S,
    SETTLE_LAST_S,
    TWIN_WAIT_S,
    ConsumerBase,
    is_store_down,
    next_pause,
)
from oncekey.queues.consumer_settings import ConsumerPlan, check_engine
from oncekey.queues.disposition import STOPPED, Disposition, Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.work_in_hand import Entry

_FULL_WAIT_S: Final = 0.5  # while no more messages may be taken, the broker is met this often
_log = logging.getLogger("oncekey")
_leaving: set[asyncio.Task[None]] = set()  # a loop itself keeps no task alive


class AsyncConsumer(ConsumerBase):
    """Consumes one queue in an event loop: see `Consumer`. `stop` must be called in the loop."""

    def __init__(
        self, once: AsyncOnce, handler: Callable[..., Any], broker: AsyncBroker, **options: Any
    ) -> None:
        check_engine(once, AsyncOnce)
        super().__init__(handler, is_async=True, **options)
        self._once = once
        self._broker = broker
        self._stopping = asyncio.Event()
        self._slots = Slots(self.settings.concurrency)
        self._ready: asyncio.Queue[Entry | None] = asyncio.Queue()
        self._room = asyncio.Event()
        self._store_is_up = asyncio.Event()
        self._store_is_up.set()
        self._done: list[Settled] = []
        self._has_done = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self._settler: asyncio.Task[None] | None = None
        self._is_over = False  # nothing more will be done

    @property
    def once(self) -> AsyncOnce:
        """The engine that keeps the keys of its messages."""
        return self._once

    @property
    def broker(self) -> AsyncBroker:
        """The queue it consumes."""
        return self._broker

    def stop(self) -> None:
        """Take no more messages, give back those whose handlers have not begun, and let `run`
        return when the others are done, after `stop_timeout` at the latest; a broker that does not
        answer is given STOP_MARGIN_S more."""
        self._stopping.set()
        self._slots.close()

    async def handle(self, message: Message) -> Disposition:
        """Handle one message that somebody else has received; the caller does with it what the
        disposition says. Nothing is settled or extended here."""
        handler = self._message_handler(await self._start())
        return await handler.handle(Entry(message, time.monotonic()))

    async def run(self) -> None:
        """Consume until `stop`. A cancellation stops it too, as gracefully. A broker or a store
        that does not answer is waited for, at the start too; what ends it but `stop` is raised, and
        logged."""
        self._begin()
        with self._ending():
            # Tasks of their own, which a cancellation of this one lets come to their end.
            receiver = asyncio.create_task(self._start_and_receive())
            stopping = asyncio.create_task(self._stopping.wait())
            try:
                await asyncio.wait((receiver, stopping), return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
                self.stop()
                await asyncio.shield(self._end(receiver))

    async def _start_and_receive(self) -> None:
        try:
            plan = await self._start_patiently()
            if plan is None:
                return
            self._settler = asyncio.create_task(self._settle(plan))
            await self._receive(plan, self._message_handler(plan, in_loop=True))
        except Exception as error:
            self._error = self._error or error

    # --- the start ----------------------------------------------------------------------------

    async def _start(self) -> ConsumerPlan:
        if self._plan is not None:
            return self._plan
        await AsyncPort(self._once).ready()
        if self._inbox is not None:
            await self._inbox.check()
        with asking():
            facts = await answered(self._broker.facts())
        scope = await async_bound_scope(self._once, self.settings, facts)
        return self._plan_for(facts, self._once, scope)

    async def _start_patiently(self) -> ConsumerPlan | None:
        """Start; wait for a broker or a store that does not answer yet. None if it is stopped."""
        pause = PAUSE_FIRST_S
        while not self._stopping.is_set():
            try:
                return await self._start()
            except AWAITED_AT_START as error:
                self._tell_unstarted(error, pause)
            await self._stopped_within(pause)
            pause = next_pause(pause)
        return None

    async def _leave(self) -> None:
        try:
            await self._broker.close()
        except BaseException as error:
            self._tell_unclosed(error)

    def _message_handler(self, plan: ConsumerPlan, *, in_loop: bool = False) -> AsyncMessageHandler:
        run = self._inbox.run if self._inbox is not None else None
        if not in_loop:
            return AsyncMessageHandler(self._once, self._call, plan, run=run)
        return AsyncMessageHandler(self._once, self._call, plan, run=run, slot=self._slot)

    def _slot(self) -> Slots:
        return self._slots

    # --- receiving ----------------------------------------------------------------------------

    async def _receive(self, plan: ConsumerPlan, handler: AsyncMessageHandler) -> None:
        pause = PAUSE_FIRST_S
        while not self._stopping.is_set():
            free = self._free() if self._store_is_up.is_set() else 0
            try:
                messages = await self._received(free, plan)
            except Exception as error:
                self._tell_fault(error, f"trying again in {pause:.1f} s")
                await self._stopped_within(pause)
                pause = next_pause(pause)
                continue
            pause = PAUSE_FIRST_S
            if messages:
                await self._dispatch(self._hand.take(messages, time.monotonic()), handler)
            elif not free:
                await self._wait_for_room(handler)

    async def _received(self, free: int, plan: ConsumerPlan) -> Sequence[Message]:
        """What the broker gives. A stop does not wait for a long poll; what that still receives is
        given back."""
        wait = RECEIVE_WAIT_S if free else 0.0
        call = answered(self._broker.receive(free, wait, plan.lease_s))
        receiving = asyncio.ensure_future(call)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((receiving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                receiving.cancel()
            return await receiving
        except asyncio.CancelledError:
            if self._stopping.is_set() and receiving.cancelled():
                return ()
            receiving.cancel()
            raise
        finally:
            stopping.cancel()

    async def _wait_for_room(self, handler: AsyncMessageHandler) -> None:
        """Wait until messages can be taken again: one in hand was settled, or the store is back."""
        if self._store_is_up.is_set():
            self._room.clear()
            if not self._free():
                await _set_within(self._room, _FULL_WAIT_S)
            return
        pause = PAUSE_FIRST_S
        while not await self._stopped_within(pause):
            if await handler.check_store():
                _log.warning("consumer %s: the store answers again", self.name)
                self._store_is_up.set()
                return
            call = self._broker.receive(0, 0.0, 0.0)
            await self._broker_call(call, consequence="the store is awaited")
            pause = next_pause(pause)

    async def _stopped_within(self, seconds: float) -> bool:
        await _set_within(self._stopping, seconds)
        return self._stopping.is_set()

    # --- working ------------------------------------------------------------------------------

    async def _dispatch(self, ready: Sequence[Entry], handler: AsyncMessageHandler) -> None:
        ahead = self._claims_ahead(handler.plan)
        try:
            if ahead and len(ready) > 1:
                await handler.claim_all(ready)
        finally:  # the loop may be shut down here: then they are given back
            for entry in ready:
                self._ready.put_nowait(entry)
        most = self.settings.batch_size if ahead else self.settings.concurrency
        for _ in range(min(most, len(self._hand)) - len(self._workers)):
            self._workers.append(asyncio.create_task(self._work(handler)))

    async def _work(self, handler: AsyncMessageHandler) -> None:
        try:
            await self._work_until_end(handler)
        except Exception as error:
            self._note_failure(error)
            self.stop()

    async def _work_until_end(self, handler: AsyncMessageHandler) -> None:
        while (entry := await self._ready.get()) is not None:
            disposition = await self._handle(entry, handler)
            settled, ready = self._hand.end(entry, disposition)
            if entry.ended is not None:
                entry.ended.set()
            self._ended(settled)
            for follower in ready:
                self._ready.put_nowait(follower)
            if is_cancelled():  # the loop is shut down, and nobody waits for more
                return

    def _ended(self, settled: Sequence[Settled]) -> None:
        self._done += settled
        self._unsettled += len(settled)
        self._has_done.set()
        self._room.set()

    async def _handle(self, entry: Entry, handler: AsyncMessageHandler) -> Disposition:
        has_waited = False
        # A key that was claimed already is handled also while the consumer stops: its handler is
        # not called then, and the key is free again.
        while entry.claimed is not None or not self._stopping.is_set():
            try:
                disposition = await handler.handle(entry)
            except BaseException as error:  # cancelled from outside, or the handler was
                disposition = self._interrupted(entry, error)
            entry.attempt = None
            if disposition.kind is Kind.HIDE and not has_waited:
                await self._wait_for_twin(entry)
                has_waited = True  # and without a twin: it may have ended a moment ago
            elif is_store_down(disposition):
                await self._wait_for_store(disposition)
            else:
                return disposition
        return STOPPED

    async def _wait_for_twin(self, entry: Entry) -> None:
        """Wait for the message of the same key that another worker handles, if there is one: hidden
        for the rest of a lease, this one would come back long after the other is done."""
        twin = self._hand.twin_of(entry)
        if twin is None:
            return
        entry.is_waiting = True
        if twin.ended is None:
            twin.ended = asyncio.Event()
        await _set_within(twin.ended, TWIN_WAIT_S)
        entry.is_waiting = False

    async def _wait_for_store(self, disposition: Disposition) -> None:
        """Keep the message in hand until the store answers: given back, it would be delivered at
        once, and each delivery counts."""
        if self._store_is_up.is_set():
            self._store_is_up.clear()
            self._room.set()
            _log.warning(
                "consumer %s: %s; no message is taken until it answers",
                self.name,
                disposition.reason,
            )
        while not self._store_is_up.is_set() and not self._stopping.is_set():
            await _set_within(self._store_is_up, _FULL_WAIT_S)

    # --- settling -----------------------------------------------------------------------------

    async def _settle(self, plan: ConsumerPlan) -> None:
        try:
            every = plan.lease_s / EXTENSIONS_PER_LEASE
            due = time.monotonic() + every
            while self._done or not self._is_over:
                await _set_within(self._has_done, max(0.0, due - time.monotonic()))
                await self._settle_done()
                now = time.monotonic()
                if now >= due:
                    due = now + every
                    messages = self._to_extend(plan, now)
                    if messages:
                        await self._broker_call(self._broker.extend(messages, plan.lease_s))
        except Exception as error:
            self._note_failure(error)
            self.stop()

    async def _settle_done(self) -> None:
        self._has_done.clear()
        settled, self._done = self._done, []
        if settled:
            await self._broker_call(self._broker.settle(settled))
            self._count(settled)
            self._unsettled -= len(settled)
            self._room.set()

    async def _broker_call(
        self, call: Awaitable[object], *, consequence: str = "the messages will come again"
    ) -> None:
        """What the broker does not take is delivered again, so it is told and left."""
        try:
            await answered(call)
        except Exception as error:
            self._tell_fault(error, consequence)

    # --- the end ------------------------------------------------------------------------------

    async def _end(self, receiver: asyncio.Task[None]) -> None:
        until = time.monotonic() + self.settings.stop_timeout_s
        if not await _ended_within(receiver, RECEIVE_LAST_S):
            self._tell_unanswered()
            receiver.cancel()
        self._store_is_up.set()
        self._give_back_unbegun()
        while len(self._hand) and (left := until - time.monotonic()) > 0:
            self._room.clear()
            await _set_within(self._room, left)
        if len(self._hand):
            self._tell_unsettled()
        for _ in self._workers:
            self._ready.put_nowait(None)
        self._is_over = True
        self._has_done.set()
        if self._settler is not None:
            await self._end_settling(self._settler, max(SETTLE_LAST_S, until - time.monotonic()))
        leaver = asyncio.create_task(self._leave())
        if not await _ended_within(leaver, LEAVE_LAST_S):
            # It goes on while its loop does: a connection that nobody closes would be given
            # messages again when the broker is back.
            self._tell_unanswered()
            _leaving.add(leaver)
            leaver.add_done_callback(_leaving.discard)

    async def _end_settling(self, settler: asyncio.Task[None], seconds: float) -> None:
        await _ended_within(settler, seconds)
        if settler.cancelled():  # the loop is shut down, and cancels every task
            settler = asyncio.ensure_future(self._settle_done())
            await _ended_within(settler, seconds)
            if settler.done() and (error := settler.exception()) is not None:
                self._note_failure(error)
        if not settler.done():
            self._tell_unanswered()
            settler.cancel()
            await asyncio.sleep(0)  # so that it has gone before the broker is left

    def _give_back_unbegun(self) -> None:
        """Give back what no worker has begun, however long the others take."""
        unbegun = [self._ready.get_nowait() for _ in range(self._ready.qsize())]
        for entry in unbegun:
            if entry is None or entry.claimed is not None:
                self._ready.put_nowait(entry)  # a worker frees the key first
                continue
            settled, _ = self._hand.end(entry, STOPPED)
            self._ended(settled)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, or for so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def _ended_within(task: asyncio.Future[Any], seconds: float) -> bool:
    """Wait for a task; False if it has not ended by then. Nothing of it is raised."""
    await asyncio.wait((task,), timeout=seconds)
    return task.done()
