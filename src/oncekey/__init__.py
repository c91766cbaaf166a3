"""oncekey: operations with side effects, safe to retry.

    from oncekey import Once, AsyncOnce, Policy

Everything public is here, by name. See `Once` for a start.
"""

from oncekey.core.codec import Codec
from oncekey.core.derived_keys import check_key, key_for, namespace_of
from oncekey.core.errors import (
    ConfigurationError,
    InFlight,
    InvalidKey,
    KeyChanged,
    LeaseLost,
    Mismatch,
    MissingKey,
    NotReplayable,
    NotStarted,
    OncekeyError,
    OperationFailed,
    OutcomeUnknown,
    StoreUnavailable,
    Terminal,
    WaitTimeout,
)
from oncekey.core.events import Event, EventKind
from oncekey.core.guarantees import ClockClass, Guarantee, Level
from oncekey.core.identity import child_key, child_uuid
from oncekey.core.policy import Policy
from oncekey.core.recovery import Recovery, UnknownKey
from oncekey.core.step_format import StepResult, StepStatus
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.attempts.async_attempt import AsyncAttempt
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.attempts.attempt_base import current_attempt, current_step
from oncekey.engine.background.completion_flow import Completed, Completion
from oncekey.engine.event_bus import Observer
from oncekey.engine.keys.administration import HttpAnswer
from oncekey.engine.keys.key_list import KeySummary, Listing
from oncekey.engine.keys.key_status import KeyStatus
from oncekey.engine.keys.store_stats import Stats
from oncekey.engine.new_key import new_key
from oncekey.engine.once import Once
from oncekey.engine.registry import Operation
from oncekey.engine.results import Result

__version__ = "0.1.0"

__all__ = [
    "AsyncAttempt",
    "AsyncOnce",
    "Attempt",
    "ClockClass",
    "Codec",
    "Completed",
    "Completion",
    "ConfigurationError",
    "Event",
    "EventKind",
    "Guarantee",
    "HttpAnswer",
    "InFlight",
    "InvalidKey",
    "KeyChanged",
    "KeyStatus",
    "KeySummary",
    "LeaseLost",
    "Level",
    "Listing",
    "Mismatch",
    "MissingKey",
    "NotReplayable",
    "NotStarted",
    "Observer",
    "Once",
    "OncekeyError",
    "Operation",
    "OperationFailed",
    "OutcomeUnknown",
    "Policy",
    "Recovery",
    "Result",
    "Stats",
    "StepResult",
    "StepStatus",
    "StoreUnavailable",
    "Terminal",
    "UnknownKey",
    "WaitTimeout",
    "check_key",
    "child_key",
    "child_uuid",
    "current_attempt",
    "current_step",
    "key_for",
    "namespace_of",
    "new_key",
]
