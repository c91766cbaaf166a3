"""`Retry`: the options of retrying, checked where they are given.

This module owns the bounds of the options. What they mean is in retry_rules.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from oncekey.core.duration import Duration, human, microseconds
from oncekey.core.errors import ConfigurationError

ATTEMPTS_DEFAULT: Final = 10
ATTEMPTS_MAX: Final = 100
PAUSE_MIN_US: Final = 1_000
PAUSE_MAX_US: Final = 3_600_000_000
DEADLINE_MIN_US: Final = 10_000
DEADLINE_MAX_US: Final = 86_400_000_000


class RetryLimits(NamedTuple):
    """The options of a `Retry` as numbers; times are microseconds."""

    attempts: int
    deadline: int
    base: int
    cap: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When to stop, and how long to wait between two tries.

    `attempts` counts the first try too. `deadline` holds for all tries and waits together, from the
    first try on. Before try n + 1 the client waits for the time that the server asked for with
    Retry-After, and then for a random time up to `base` * 2**(n - 1), at most `cap`.
    """

    attempts: int = ATTEMPTS_DEFAULT
    deadline: Duration = "60s"
    base: Duration = "100ms"
    cap: Duration = "10s"
    limits: RetryLimits = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 <= self.attempts <= ATTEMPTS_MAX:
            raise ConfigurationError(
                f"attempts={self.attempts!r} must be 1 to {ATTEMPTS_MAX}; for no retries at all "
                "give retry=None"
            )
        deadline = _within("deadline", self.deadline, DEADLINE_MIN_US, DEADLINE_MAX_US)
        base = _within("base", self.base, PAUSE_MIN_US, PAUSE_MAX_US)
        cap = _within("cap", self.cap, PAUSE_MIN_US, PAUSE_MAX_US)
        if cap < base:
            raise ConfigurationError(
                f"cap={self.cap!r} must not be shorter than base={self.base!r}"
            )
        object.__setattr__(self, "limits", RetryLimits(self.attempts, deadline, base, cap))


def _within(name: str, value: Duration, low: int, high: int) -> int:
    us = microseconds(value, name=name)
    if not low <= us <= high:
        raise ConfigurationError(f"{name}={value!r} must be {human(low)} to {human(high)}")
    return us
