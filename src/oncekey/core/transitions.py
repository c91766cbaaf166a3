"""The transition table: which event leads from which state to which.

The diagram in docs/ is drawn from it. state_machine.py decides when a trigger fires, and is the only
place that looks anything up here. Pure data.
"""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import Final

from oncekey.core.record import State

ABSENT, PENDING = State.ABSENT, State.PENDING
SUCCEEDED, FAILED, UNKNOWN = State.SUCCEEDED, State.FAILED, State.UNKNOWN


class Event(enum.StrEnum):
    """What can happen to a key."""

    CLAIM = "claim"
    CLAIM_AGAIN = "claim again (lost reply)"
    TAKE_OVER = "take over (lease over, retry-safe)"
    GIVE_UP = "give up (lease over, not retry-safe)"
    RENEW = "renew"
    SAVE_STEP = "save step"
    SUCCEED = "finish: succeeded"
    FAIL = "finish: failed"
    INTERRUPT = "finish: interrupted"
    RELEASE = "release"
    RESOLVE_SUCCEEDED = "resolve: succeeded"
    RESOLVE_FAILED = "resolve: failed"
    RESOLVE_FREE = "resolve: free"
    EXPIRE = "expire"


TRANSITIONS: Final = MappingProxyType(
    {
        (ABSENT, Event.CLAIM): PENDING,
        (PENDING, Event.CLAIM_AGAIN): PENDING,
        (PENDING, Event.TAKE_OVER): PENDING,
        (PENDING, Event.GIVE_UP): UNKNOWN,
        (PENDING, Event.RENEW): PENDING,
        (PENDING, Event.SAVE_STEP): PENDING,
        (PENDING, Event.SUCCEED): SUCCEEDED,
        (PENDING, Event.FAIL): FAILED,
        (PENDING, Event.INTERRUPT): UNKNOWN,
        (PENDING, Event.RELEASE): ABSENT,
        (UNKNOWN, Event.SUCCEED): SUCCEEDED,
        (UNKNOWN, Event.FAIL): FAILED,
        (UNKNOWN, Event.RELEASE): ABSENT,
        (UNKNOWN, Event.RESOLVE_SUCCEEDED): SUCCEEDED,
        (UNKNOWN, Event.RESOLVE_FAILED): FAILED,
        (UNKNOWN, Event.RESOLVE_FREE): ABSENT,
        (PENDING, Event.EXPIRE): ABSENT,
        (SUCCEEDED, Event.EXPIRE): ABSENT,
        (FAILED, Event.EXPIRE): ABSENT,
        (UNKNOWN, Event.EXPIRE): ABSENT,
    }
)

FINISH_EVENTS: Final = {
    SUCCEEDED: Event.SUCCEED,
    FAILED: Event.FAIL,
    UNKNOWN: Event.INTERRUPT,
}
RESOLVE_EVENTS: Final = {
    SUCCEEDED: Event.RESOLVE_SUCCEEDED,
    FAILED: Event.RESOLVE_FAILED,
    ABSENT: Event.RESOLVE_FREE,
}
