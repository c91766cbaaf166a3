"""The transition table: which trigger leads from which state to which other.

The diagram in docs/ is drawn from it. state_machine.py decides when a trigger fires and is the
only place that looks anything up here. Pure data.
"""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import Final

from oncekey.core.record import State

ABSENT, PENDING = State.ABSENT, State.PENDING
SUCCEEDED, FAILED, UNKNOWN = State.SUCCEEDED, State.FAILED, State.UNKNOWN


class Trigger(enum.StrEnum):
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
        (ABSENT, Trigger.CLAIM): PENDING,
        (PENDING, Trigger.CLAIM_AGAIN): PENDING,
        (PENDING, Trigger.TAKE_OVER): PENDING,
        (PENDING, Trigger.GIVE_UP): UNKNOWN,
        (PENDING, Trigger.RENEW): PENDING,
        (PENDING, Trigger.SAVE_STEP): PENDING,
        (PENDING, Trigger.SUCCEED): SUCCEEDED,
        (PENDING, Trigger.FAIL): FAILED,
        (PENDING, Trigger.INTERRUPT): UNKNOWN,
        (PENDING, Trigger.RELEASE): ABSENT,
        (UNKNOWN, Trigger.SUCCEED): SUCCEEDED,
        (UNKNOWN, Trigger.FAIL): FAILED,
        (UNKNOWN, Trigger.RELEASE): ABSENT,
        (UNKNOWN, Trigger.RESOLVE_SUCCEEDED): SUCCEEDED,
        (UNKNOWN, Trigger.RESOLVE_FAILED): FAILED,
        (UNKNOWN, Trigger.RESOLVE_FREE): ABSENT,
        (FAILED, Trigger.RESOLVE_FREE): ABSENT,
        (PENDING, Trigger.EXPIRE): ABSENT,
        (SUCCEEDED, Trigger.EXPIRE): ABSENT,
        (FAILED, Trigger.EXPIRE): ABSENT,
        (UNKNOWN, Trigger.EXPIRE): ABSENT,
    }
)

FINISH_TRIGGERS: Final = {
    SUCCEEDED: Trigger.SUCCEED,
    FAILED: Trigger.FAIL,
    UNKNOWN: Trigger.INTERRUPT,
}
RESOLVE_TRIGGERS: Final = {
    SUCCEEDED: Trigger.RESOLVE_SUCCEEDED,
    FAILED: Trigger.RESOLVE_FAILED,
    ABSENT: Trigger.RESOLVE_FREE,
}
