"""Events for metrics and logs: what oncekey decided, one value each.

Owns the kinds of events. Subscribers get `Event` values; without subscribers none is made.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from oncekey.core.origin import FUNCTION


class EventKind(enum.StrEnum):
    """What was decided for one caller."""

    __hash__ = str.__hash__  # an enum's own is written in Python, and these are counted in dicts

    CLAIMED = "claimed"
    TAKEOVER = "takeover"
    FINISHED = "finished"
    RELEASED = "released"
    REPLAYED = "replayed"
    MISMATCH = "mismatch"
    IN_FLIGHT = "in_flight"
    WAIT_TIMEOUT = "wait_timeout"
    UNKNOWN = "unknown"
    RECOVERED = "recovered"
    RESOLVED = "resolved"  # by an operator
    LOST = "lost"
    UNAVAILABLE = "unavailable"
    UNGUARDED = "unguarded"
    UNPROTECTED = "unprotected"  # an HTTP request ran although the store was down
    GUARANTEE = "guarantee"
    UNRECORDED = "unrecorded"  # after another event: the body's known outcome could not be stored
    TOMBSTONE = "tombstone"  # after FINISHED: the body's value could not be kept
    DEAD_LETTER = "dead_letter"  # a message was moved to the dead-letter queue
    PARKED = "parked"  # a message was set aside until somebody decides its key


class Event(NamedTuple):
    """One decision: its kind, of which operation and key (by tag), how long it took, and by which
    surface and route the call came in. `reason` says why a guarantee has changed, for people: it
    names replicas and times, so it is no label of a metric."""

    kind: EventKind
    operation: str
    scope: str
    tag: str
    fence: int = 0
    attempt: int = 0
    elapsed_us: int = 0
    from_cache: bool = False
    surface: str = FUNCTION.surface
    route: str = ""
    body_us: int = 0
    finish_us: int = 0
    reason: str = ""
