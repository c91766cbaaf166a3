"""Delivers events to the subscribers of one engine: metrics, logs, an application's own hooks.

Callers ask `subscribers` first, so that without any no event is made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from oncekey.core.events import Event, EventKind
from oncekey.core.identity import Identity
from oncekey.core.origin import FUNCTION, Origin
from oncekey.engine.clock import Clock

Subscriber = Callable[[Event], None]

_log = logging.getLogger("oncekey")


class EventBus:
    """`subscribers` is replaced, never changed: any thread may read it at any time."""

    __slots__ = ("_clock", "subscribers")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Give every event to `subscriber` until the returned function is called."""
        self.subscribers = (*self.subscribers, subscriber)

        def unsubscribe() -> None:
            self.subscribers = tuple(s for s in self.subscribers if s is not subscriber)

        return unsubscribe

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
    ) -> None:
        """Make the event of a call that began at `started_at`, and give it to every subscriber."""
        elapsed = self._clock.now() - started_at
        scope, operation, tag = identity.scope, identity.operation, identity.tag
        surface, route = origin.surface, origin.route
        self.notify(
            Event(kind, operation, scope, tag, fence, attempt, elapsed, from_cache, surface, route)
        )

    def notify(self, event: Event) -> None:
        """Give an event to every subscriber."""
        for subscriber in self.subscribers:
            try:
                subscriber(event)
            except Exception:  # a broken metric must not break a payment
                _log.exception("a subscriber failed on %s", event.kind)
