"""oncekey: operations with side effects, safe to retry.

    from oncekey import Once, AsyncOnce, Policy

Everything public is here, by name. See `Once` for a start. A name is imported on first use, so that
a program loads what it uses.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

# The modules of the public names. A checker of types sees the imports above instead.
_HOMES = {
    "core.codec": "Codec",
    "core.derived_keys": "check_key key_for namespace_of",
    "core.errors": (
        "ConfigurationError InFlight InvalidKey KeyChanged LeaseLost Mismatch MissingKey "
        "NotReplayable NotStarted OncekeyError OperationFailed OutcomeUnknown "
        "StoreUnavailable Terminal WaitTimeout"
    ),
    "core.events": "Event EventKind",
    "core.guarantees": "ClockClass Guarantee Level",
    "core.identity": "child_key child_uuid",
    "core.policy": "Policy",
    "core.recovery": "Recovery UnknownKey",
    "core.step_format": "StepResult StepStatus",
    "engine.async_once": "AsyncOnce",
    "engine.attempts.async_attempt": "AsyncAttempt",
    "engine.attempts.attempt": "Attempt",
    "engine.attempts.attempt_base": "current_attempt current_step",
    "engine.background.completion_flow": "Completed Completion",
    "engine.event_bus": "Observer",
    "engine.keys.administration": "HttpAnswer",
    "engine.keys.key_list": "KeySummary Listing",
    "engine.keys.key_status": "KeyStatus",
    "engine.keys.store_stats": "Stats",
    "engine.new_key": "new_key",
    "engine.once": "Once",
    "engine.registry": "Operation",
    "engine.results": "Result",
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}

if not TYPE_CHECKING:  # a checker would take it that every name is there

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
