"""Compares what a store guarantees now with what an operation requires.

A store's guarantee may become lower while an engine relies on it: a database that is failed over,
a setting that is changed. Then operations that require more are refused before their bodies run.
Contains the messages for that. Must not know stores, threads or event loops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from oncekey.core.errors import ConfigurationError, NotStarted, StoreUnavailable
from oncekey.core.events import Event, EventKind
from oncekey.core.guarantees import Guarantee, Level
from oncekey.core.identity import Identity
from oncekey.core.policy import Policy
from oncekey.engine.event_bus import EventBus

_log = logging.getLogger("oncekey")


class GuaranteeLost(NotStarted, StoreUnavailable):
    """The store guarantees less than this operation requires, since it was opened: nothing has
    happened, the key stays free."""


class GuaranteeMonitor:
    """Reports every change of a store's guarantee once, to the log and to the subscribers.

    current   reads the guarantee off the store
    reported  what was reported last, or adopted by the engine
    """

    __slots__ = ("_connections", "_events", "current", "reported")

    def __init__(self, current: Callable[[], Guarantee], events: EventBus) -> None:
        self.current = current
        self.reported = current()
        self._events = events
        self._connections: set[str] = set()

    def report_connection(self, weaker: Guarantee) -> None:
        """Log, once for each reason, that a caller's connection promises less than the store."""
        if weaker.reason not in self._connections:
            self._connections.add(weaker.reason)
            _log.warning(
                "in_transaction was given a connection whose commits are %s, which is less than "
                "the store guarantees: %s",
                weaker.level.label,
                weaker.reason,
            )

    def report(self, current: Guarantee) -> None:
        before, self.reported = self.reported, current
        _log.log(
            logging.WARNING if current.level < before.level else logging.INFO,
            "the store's guarantee was %s and is %s: %s",
            before.level.label,
            current.level.label,
            current.reason,
        )
        self._events.notify(Event(EventKind.GUARANTEE, "", "", "", reason=current.reason))


def connection_refusal(
    weaker: Guarantee, required: Level, operation: str, tag: str
) -> ConfigurationError | None:
    """The error to raise if nothing that requires this level may run in the transaction of a
    caller's connection, whose commits promise less than the store's."""
    if weaker.level >= required:
        return None
    message = (
        f"{'it' if tag else operation} requires {required.label}, and the caller's connection "
        f"would commit at {weaker.level.label}: {weaker.reason}. Nothing ran"
    )
    return ConfigurationError(message, operation=operation if tag else "", tag=tag)


def refusal_of(
    current: Guarantee, policy: Policy, identity: Identity, *, transactional: bool
) -> GuaranteeLost | None:
    """The error to raise if the operation must not run."""
    effective = current.effective(retry_safe=policy.retry_safe, transactional=transactional)
    required = policy.required_level
    if effective >= required:
        return None
    return GuaranteeLost(
        f"it requires {required.label}, and the store's guarantee has become {effective.label}: "
        f"{current.reason}. Nothing ran",
        ambiguous=False,
        operation=identity.operation,
        tag=identity.tag,
    )
