"""Consumes a queue in threads.

One thread receives. Workers handle messages; where keys are claimed ahead, there are as many as a
batch has messages, and only `concurrency` of them run handlers. One more thread settles what is
done and extends the deadlines of the rest. The thread that calls `run` meets no broker, so a stop
ends it in time. A call that is never answered stays behind, in a daemon thread.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final

from oncekey.engine.once import Once
from oncekey.engine.port import Port
from oncekey.queues.blocking.done_messages import take_done
from oncekey.queues.blocking.message_handler import MessageHandler
from oncekey.queues.broker import RECEIVE_WAIT_S, Broker, Settled
from oncekey.queues.broker_faults import asking
from oncekey.queues.broker_identity import bound_scope
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
from oncekey.queues.disposition import STOPPED, ConsumerStops, Disposition, Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.work_in_hand import Entry

_FULL_WAIT_S: Final = 0.5  # while no more messages may be taken, the broker is met this often
_STOP_LOOK_S: Final = 0.1  # while it sleeps, a stop is looked for this often
_log = logging.getLogger("oncekey")


class Consumer(ConsumerBase):
    """Consumes one queue: calls `handler(message)` once for each key, and removes messages only
    when their outcome is durable. `run` blocks until `stop` is called, from any thread or signal
    handler. For the options see `ConsumerSettings`; others are fields of Policy."""

    def __init__(
        self, once: Once, handler: Callable[..., Any], broker: Broker, **options: Any
    ) -> None:
        check_engine(once, Once)
        super().__init__(handler, is_async=False, **options)
        self._once = once
        self._broker = broker
        # Not an event: a signal that comes while one is set would wait for its lock.
        self._is_stopping = False
        self._receiving_ended = threading.Event()
        # The lock guards the work in hand, the slots and whether the store is up. Each kind of
        # waiter has a condition of its own, so that a freed slot does not wake every thread.
        self._lock = threading.Lock()
        self._slot_free = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._store_back = threading.Condition(self._lock)
        self._slots = self.settings.concurrency
        self._store_is_up = True
        self._ready: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[list[Settled] | None] = queue.SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._settler: threading.Thread | None = None

    @property
    def once(self) -> Once:
        """The engine that keeps the keys of its messages."""
        return self._once

    @property
    def broker(self) -> Broker:
        """The queue it consumes."""
        return self._broker

    def stop(self) -> None:
        """Take no more messages, give back those whose handlers have not begun, and let `run`
        return when the others are done, after `stop_timeout` at the latest; a broker that does not
        answer is given STOP_MARGIN_S more."""
        self._is_stopping = True
        interrupt = getattr(self._broker, "interrupt", None)
        if interrupt is not None:
            interrupt()

    def handle(self, message: Message) -> Disposition:
        """Handle one message that somebody else has received; the caller does with it what the
        disposition says. Nothing is settled or extended here."""
        return self._message_handler(self._start()).handle(Entry(message, time.monotonic()))

    def run(self) -> None:
        """Consume until `stop`. A broker or a store that does not answer is waited for, at the
        start too; what ends it but `stop` is raised, and logged."""
        self._begin()
        with self._ending():
            receiver = self._thread(self._start_and_receive, "receive")
            try:
                while receiver.is_alive() and not self._is_stopping:
                    receiver.join(_STOP_LOOK_S)
            finally:
                self._end(receiver)

    def _thread(self, target: Callable[[], None], what: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"oncekey-{what}-{self.name}", daemon=True)
        thread.start()
        return thread

    def _start_and_receive(self) -> None:
        try:
            plan = self._start_patiently()
            if plan is not None:
                self._settler = self._thread(functools.partial(self._settle, plan), "settle")
                self._receive(plan, self._message_handler(plan, in_loop=True))
        except BaseException as error:
            self._error = self._error or error

    # --- the start ----------------------------------------------------------------------------

    def _start(self) -> ConsumerPlan:
        if self._plan is not None:
            return self._plan
        Port(self._once).ready()
        if self._inbox is not None:
            self._inbox.check()
        with asking():
            facts = self._broker.facts()
        scope = bound_scope(self._once, self.settings, facts)
        return self._plan_for(facts, self._once, scope)

    def _start_patiently(self) -> ConsumerPlan | None:
        """Start; wait for a broker or a store that does not answer yet. None if it is stopped."""
        pause = PAUSE_FIRST_S
        while not self._is_stopping:
            try:
                return self._start()
            except AWAITED_AT_START as error:
                self._tell_unstarted(error, pause)
                self._stopped_within(pause)
                pause = next_pause(pause)
        return None

    def _leave(self) -> None:
        try:
            self._broker.close()
        except Exception as error:
            self._tell_unclosed(error)

    def _message_handler(self, plan: ConsumerPlan, *, in_loop: bool = False) -> MessageHandler:
        run = self._inbox.run if self._inbox is not None else None
        slot = self._slot if in_loop else nullcontext
        return MessageHandler(self._once, self._call, plan, run=run, slot=slot)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """Wait for one of the `concurrency` slots; raises ConsumerStops if the consumer stops."""
        with self._lock:
            while not self._slots and not self._is_stopping:
                self._slot_free.wait()
            if self._is_stopping:
                raise ConsumerStops("the consumer stops")
            self._slots -= 1
        try:
            yield
        finally:
            with self._lock:
                self._slots += 1
                self._slot_free.notify()

    # --- receiving ----------------------------------------------------------------------------

    def _receive(self, plan: ConsumerPlan, handler: MessageHandler) -> None:
        pause = PAUSE_FIRST_S
        while not self._is_stopping:
            with self._lock:
                free = self._free() if self._store_is_up else 0
            try:
                wait = RECEIVE_WAIT_S if free else 0.0
                messages = self._broker.receive(free, wait, plan.lease_s)
            except Exception as error:
                self._tell_fault(error, f"trying again in {pause:.1f} s")
                self._stopped_within(pause)
                pause = next_pause(pause)
                continue
            pause = PAUSE_FIRST_S
            if messages:
                with self._lock:
                    ready = self._hand.take(messages, time.monotonic())
                self._dispatch(ready, handler)
            elif not free:
                self._wait_for_room(handler)

    def _dispatch(self, ready: Sequence[Entry], handler: MessageHandler) -> None:
        ahead = self._claims_ahead(handler.plan)
        try:
            if ahead and len(ready) > 1:
                handler.claim_all(ready)
        finally:  # Ctrl-C may come here: then they are given back
            for entry in ready:
                self._ready.put(entry)
        most = self.settings.batch_size if ahead else self.settings.concurrency
        with self._lock:
            missing = min(most, len(self._hand)) - len(self._workers)
            for _ in range(missing):
                self._workers.append(self._thread(functools.partial(self._work, handler), "work"))

    def _wait_for_room(self, handler: MessageHandler) -> None:
        """Wait until messages can be taken again: one in hand was settled, or the store is back."""
        if self._store_is_up:
            with self._lock:
                if not self._free() and not self._is_stopping:
                    self._room.wait(_FULL_WAIT_S)
            return
        pause = PAUSE_FIRST_S
        while not self._stopped_within(pause):
            if handler.check_store():
                _log.warning("consumer %s: the store answers again", self.name)
                with self._lock:
                    self._store_is_up = True
                    self._store_back.notify_all()
                return
            self._broker_call(self._broker.receive, 0, 0.0, 0.0, consequence="the store is awaited")
            pause = next_pause(pause)

    def _stopped_within(self, seconds: float) -> bool:
        """Sleep; True if the consumer stops. A signal handler may call `stop` in this very thread,
        in the middle of anything, so no lock that `stop` takes may be held here."""
        until = time.monotonic() + seconds
        while not self._is_stopping and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _STOP_LOOK_S))
        return self._is_stopping

    # --- working ------------------------------------------------------------------------------

    def _work(self, handler: MessageHandler) -> None:
        try:
            self._work_until_end(handler)
        except BaseException as error:
            self._note_failure(error)
            self.stop()

    def _work_until_end(self, handler: MessageHandler) -> None:
        while (entry := self._ready.get()) is not None:
            disposition = self._handle(entry, handler)
            if disposition is STOPPED and self._is_stopping:
                # Given back now, it could come again by the long poll that is still under way.
                self._receiving_ended.wait()
            with self._lock:
                settled, ready = self._hand.end(entry, disposition)
                self._unsettled += len(settled)
                if self._is_stopping or self._free():
                    self._room.notify()
            if entry.ended is not None:
                entry.ended.set()
            self._done.put(settled)
            for follower in ready:
                self._ready.put(follower)

    def _handle(self, entry: Entry, handler: MessageHandler) -> Disposition:
        has_waited = False
        # A key that was claimed already is handled also while the consumer stops: its handler is
        # not called then, and the key is free again.
        while entry.claimed is not None or not self._is_stopping:
            try:
                disposition = handler.handle(entry)
            except BaseException as error:  # a handler that raised SystemExit, for example
                disposition = self._interrupted(entry, error)
            entry.attempt = None
            if disposition.kind is Kind.HIDE and not has_waited:
                self._wait_for_twin(entry)
                has_waited = True  # and without a twin: it may have ended a moment ago
            elif is_store_down(disposition):
                self._wait_for_store(disposition)
            else:
                return disposition
        return STOPPED

    def _wait_for_twin(self, entry: Entry) -> None:
        """Wait for the message of the same key that another worker handles, if there is one: hidden
        for the rest of a lease, this one would come back long after the other is done."""
        with self._lock:
            twin = self._hand.twin_of(entry)
            if twin is None:
                return
            entry.is_waiting = True
            if twin.ended is None:
                twin.ended = threading.Event()
        twin.ended.wait(TWIN_WAIT_S)
        entry.is_waiting = False

    def _wait_for_store(self, disposition: Disposition) -> None:
        """Keep the message in hand until the store answers: given back, it would be delivered at
        once, and each delivery counts."""
        with self._lock:
            if self._store_is_up:
                self._store_is_up = False
                self._room.notify()
                _log.warning(
                    "consumer %s: %s; no message is taken until it answers",
                    self.name,
                    disposition.reason,
                )
            while not self._store_is_up and not self._is_stopping:
                self._store_back.wait(_FULL_WAIT_S)

    # --- settling -----------------------------------------------------------------------------

    def _settle(self, plan: ConsumerPlan) -> None:
        try:
            every = plan.lease_s / EXTENSIONS_PER_LEASE
            due = time.monotonic() + every
            is_over = False
            while not is_over:
                settled, is_over = take_done(self._done, max(0.0, due - time.monotonic()))
                if settled:
                    self._broker_call(self._broker.settle, settled)
                    self._count(settled)
                    with self._lock:
                        self._unsettled -= len(settled)
                        self._room.notify()
                now = time.monotonic()
                if now >= due:
                    due = now + every
                    with self._lock:
                        messages = self._to_extend(plan, now)
                    if messages:
                        self._broker_call(self._broker.extend, messages, plan.lease_s)
        except BaseException as error:
            self._note_failure(error)
            self.stop()

    def _broker_call(
        self,
        call: Callable[..., object],
        *arguments: Any,
        consequence: str = "the messages will come again",
    ) -> None:
        """What the broker does not take is delivered again, so it is told and left."""
        try:
            call(*arguments)
        except Exception as error:
            self._tell_fault(error, consequence)

    # --- the end ------------------------------------------------------------------------------

    def _end(self, receiver: threading.Thread) -> None:
        if not self._is_stopping:
            self.stop()
        until = time.monotonic() + self.settings.stop_timeout_s
        receiver.join(RECEIVE_LAST_S)
        self._receiving_ended.set()
        self._give_back_unbegun()
        with self._lock:
            self._slot_free.notify_all()
            self._store_back.notify_all()
            while len(self._hand) and (left := until - time.monotonic()) > 0:
                self._room.wait(left)
            if len(self._hand):
                self._tell_unsettled()
        for _ in self._workers:
            self._ready.put(None)
        self._done.put(None)
        if self._settler is not None:
            self._settler.join(max(SETTLE_LAST_S, until - time.monotonic()))
        leave = functools.partial(self._leave_after, receiver, self._settler)
        leaver = self._thread(leave, "leave")
        leaver.join(LEAVE_LAST_S)
        if leaver.is_alive():
            self._tell_unanswered()

    def _leave_after(self, *users: threading.Thread | None) -> None:
        """Leave the broker when nobody uses it any more."""
        for user in filter(None, users):
            user.join()
        self._leave()

    def _give_back_unbegun(self) -> None:
        """Give back what no worker has begun, however long the others take."""
        claimed: list[Entry] = []
        with suppress(queue.Empty):
            while (entry := self._ready.get_nowait()) is not None:
                if entry.claimed is not None:
                    claimed.append(entry)  # a worker frees the key first
                    continue
                with self._lock:
                    settled, _ = self._hand.end(entry, STOPPED)
                    self._unsettled += len(settled)
                self._done.put(settled)
        for entry in claimed:
            self._ready.put(entry)
