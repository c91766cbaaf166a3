"""Delivers events to the subscribers and observers of one engine, and to its log.

The log gets what is rare, always. Subscribers get everything, and without any no event of the usual
kinds is made: callers ask `subscribers` first. While the store is down the log is a subscriber too,
so that it learns of the first answer. An `Observer` gets the events, and is called around each body
and step and after each batch, for histograms and spans. A runner makes a `Measured` only if
somebody listens.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from oncekey.core.commands import Claim, from_fields
from oncekey.core.effects import Grant
from oncekey.core.events import Event, EventKind
from oncekey.core.identity import TAG_BYTES, Identity
from oncekey.core.origin import FUNCTION, Origin, operation_of, origin_of
from oncekey.engine.clock import Clock
from oncekey.engine.event_log import EventLog

_log = logging.getLogger("oncekey")

End = Callable[[], object]


class Observer:
    """What an observer may do; each method does nothing by default.

    `on_body` and `on_step` are called in the thread or task of the body, directly before the body
    or the step's function. What they return is called directly after it, there too, unless it is
    None; so a context variable that was set can be set back.
    """

    def on_event(self, event: Event) -> None:
        """A decision was made."""

    def on_body(self, event: Event) -> End | None:
        """A body is about to run; the event is that of its claim."""

    def on_step(self, operation: str, tag: str, step: str) -> End | None:
        """A step's function is about to be called."""

    def on_batch(self, size: int, elapsed_us: int) -> None:
        """A batch of commands was sent to the store, and took so long."""


class Measured:
    """The event of one attempt's claim, when its body began and ended on the engine's clock, and
    what the observers want to be called at its end."""

    __slots__ = ("began_at", "claimed", "ended_at", "ends")

    def __init__(self, claimed: Event) -> None:
        self.claimed = claimed
        self.began_at = 0
        self.ended_at = 0
        self.ends: Sequence[End] = ()

    def end(self, now: int) -> None:
        """The body has ended. Called again, or if it never began, this changes nothing."""
        if self.began_at and not self.ended_at:
            self.ended_at = now
            if self.ends:
                ends, self.ends = self.ends, ()
                call_ends(ends)


def call_ends(ends: Sequence[End]) -> None:
    for end in ends:
        try:
            end()
        except Exception:
            _log.exception("an observer failed")


@contextmanager
def observed(ends: Sequence[End]) -> Iterator[None]:
    """Call what observers want to be called, however the block ends."""
    try:
        yield
    finally:
        call_ends(ends)


Subscriber = Callable[[Event], None]


# What every healthy run consists of. The log has nothing to say about these.
_FINISHED: Final = EventKind.FINISHED
_TAB: Final = "\t"
USUAL: Final = frozenset((EventKind.CLAIMED, EventKind.FINISHED, EventKind.REPLAYED))


class EventBus:
    """`subscribers` and `observers` are replaced, never changed: any thread may read them at any
    time. Each observer's `on_event` is among the subscribers."""

    __slots__ = (
        "_body_observers",
        "_clock",
        "_event_log",
        "_lock",
        "_rare_subscribers",
        "_watch",
        "observers",
        "subscribers",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event_log = EventLog(clock.now)
        self._watch = self._write_usual  # one object, however often it is subscribed
        self.reset()
        self.subscribers: tuple[Subscriber, ...] = ()
        self.observers: tuple[Observer, ...] = ()
        self._body_observers: tuple[Observer, ...] = ()
        self._rare_subscribers: tuple[Subscriber, ...] = ()

    def reset(self) -> None:
        """Make a fresh lock: at the start, and in a forked child."""
        self._lock = threading.RLock()

    def subscribe(self, subscriber: Subscriber, *, usual: bool = True) -> Callable[[], None]:
        """Give every event to `subscriber` until the returned function is called; without `usual`,
        what the log gets."""
        with self._lock:
            if usual:
                self.subscribers = (*self.subscribers, subscriber)
            else:
                self._rare_subscribers = (*self._rare_subscribers, subscriber)
        return partial(self._unsubscribe, subscriber)

    def _unsubscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self.subscribers = _without(self.subscribers, subscriber)
            self._rare_subscribers = _without(self._rare_subscribers, subscriber)

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call the observer's methods until the returned function is called."""
        unsubscribe = self.subscribe(observer.on_event)
        self._set_observers((*self.observers, observer))

        def stop() -> None:
            unsubscribe()
            self._set_observers(tuple(o for o in self.observers if o is not observer))

        return stop

    def _set_observers(self, observers: tuple[Observer, ...]) -> None:
        with self._lock:
            # Most do not watch bodies, and are not called about them.
            watching = [o for o in observers if type(o).on_body is not Observer.on_body]
            self.observers, self._body_observers = observers, tuple(watching)

    def emit(
        self,
        kind: EventKind,
        identity: Identity,
        started_at: int,
        fence: int = 0,
        attempt: int = 0,
        *,
        from_cache: bool = False,
        origin: Origin = FUNCTION,
        measured: Measured | None = None,
    ) -> None:
        """Make the event of a call that began at `started_at`, and give it to every subscriber."""
        now = self._clock.now()
        scope, operation, tag = identity.scope, identity.operation, identity.tag
        body_us = finish_us = 0
        if measured is not None and measured.ended_at:
            body_us = measured.ended_at - measured.began_at
            finish_us = now - measured.ended_at
        fields = (
            kind, operation, scope, tag, fence, attempt, now - started_at, from_cache,
            origin.surface, origin.route, body_us, finish_us, "",
        )  # fmt: skip
        self.notify(from_fields(Event, fields))

    def emit_claimed(
        self, kind: EventKind, claim: Claim, started_at: int, grant: Grant
    ) -> Measured:
        """Make the event of a claim, and begin to measure the attempt. This and `emit_finished` are
        made for every run that anybody listens to, so they cost as little as they can."""
        label, now = claim.label, self._clock.now()
        surface, route, _ = origin = FUNCTION if _TAB not in label else origin_of(label)
        fields = (
            kind, label if origin is FUNCTION else operation_of(label), claim.scope,
            claim.id[:TAG_BYTES].hex(), grant.fence, grant.attempt, now - started_at, False,
            surface, route, 0, 0, "",
        )  # fmt: skip
        event = from_fields(Event, fields)
        if kind is EventKind.CLAIMED:
            self._give(event, self.subscribers)
        else:
            self.notify(event)
        return Measured(event)

    def emit_finished(self, measured: Measured, started_at: int) -> None:
        """Make the event of an outcome that was stored as usual."""
        now, ended_at = self._clock.now(), measured.ended_at
        claimed = measured.claimed
        fields = (
            _FINISHED, *claimed[1:6], now - started_at, False, *claimed[8:10],
            ended_at - measured.began_at, now - ended_at, "",
        )  # fmt: skip
        self._give(from_fields(Event, fields), self.subscribers)

    def notify(self, event: Event) -> None:
        """Give an event to the log, if it is rare, and to every subscriber."""
        if event.kind not in USUAL:
            self._write(event)
        self._give(event, self.subscribers)

    def _give(self, event: Event, subscribers: tuple[Subscriber, ...]) -> None:
        for subscriber in subscribers:
            try:
                subscriber(event)
            except Exception:  # a broken metric must not break a payment
                _log.exception("a subscriber failed on %s", event.kind)

    def _write(self, event: Event) -> None:
        log = self._event_log
        with self._lock:
            was_down = log.store_is_down
            log.write(event)
            if log.store_is_down and not was_down:
                self.subscribe(self._watch)
            elif was_down and not log.store_is_down:
                self._unsubscribe(self._watch)
        self._give(event, self._rare_subscribers)

    def _write_usual(self, event: Event) -> None:
        if event.kind in USUAL:
            self._write(event)

    def body_begins(self, measured: Measured) -> None:
        """A body is about to run, in this thread or task."""
        for observer in self._body_observers:
            try:
                end = observer.on_body(measured.claimed)
            except Exception:  # a broken span must not break a payment
                _log.exception("an observer failed")
            else:
                if end is not None:
                    measured.ends = (end, *measured.ends)
        measured.began_at = self._clock.now()

    def step_begins(self, operation: str, tag: str, step: str) -> list[End]:
        """Tell the observers of a step; returns what they want to be called at its end."""
        ends: list[End] = []
        for observer in self.observers:
            try:
                end = observer.on_step(operation, tag, step)
            except Exception:
                _log.exception("an observer failed")
            else:
                if end is not None:
                    ends.insert(0, end)
        return ends

    def batch_sent(self, size: int, elapsed_us: int) -> None:
        """Tell the observers of a batch."""
        for observer in self.observers:
            try:
                observer.on_batch(size, elapsed_us)
            except Exception:
                _log.exception("an observer failed on a batch")


def _without(subscribers: tuple[Subscriber, ...], left: Subscriber) -> tuple[Subscriber, ...]:
    return tuple(subscriber for subscriber in subscribers if subscriber is not left)
