"""What the periodic tasks of both engines share, and the checks of their options.

A periodic task does one thing again and again while its engine lives: it sweeps the store, or
completes abandoned operations. The twins in blocking/ and aio/ have the thread or the task.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from oncekey.core.duration import Duration, human, microseconds
from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.engine.clock import Clock
from oncekey.engine.lifetime import weak_method

EVERY_MIN_US: Final = 100_000
EVERY_MAX_US: Final = 24 * 3_600_000_000

_log = logging.getLogger("oncekey")


class PeriodicTaskBase(ABC):
    """`work` is called about every `every` microseconds; what it raises is logged, and it is tried
    again in the next period. Its object is not kept alive."""

    def __init__(self, name: str, every: int, work: Callable[[], object], clock: Clock) -> None:
        self._name = name
        self._every = every
        self._work = weak_method(work)
        self._clock = clock
        self._stopped = False
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Begin without a thread or task: at the start, and in a forked child."""

    def restart(self) -> None:
        """The engine was closed and is reopened."""
        self.reset()
        self._stopped = False

    def _log_failure(self, error: Exception) -> None:
        """Of an error that is not ours only the type is logged: its text might contain data."""
        reason = str(error) if isinstance(error, OncekeyError) else "see the store's own log"
        kind = type(error).__name__
        _log.warning("the %s failed, %s: %s; it tries again", self._name, kind, reason)


def check_period(name: str, every: Duration | None) -> int | None:
    """The option `name` in microseconds, checked; None if there is no such period."""
    if every is None:
        return None
    us = microseconds(every, name=name)
    if not EVERY_MIN_US <= us <= EVERY_MAX_US:
        low, high = human(EVERY_MIN_US), human(EVERY_MAX_US)
        raise ConfigurationError(f"{name}={every!r} must be {low} to {high}, None for never")
    return us


def check_limit(name: str, limit: Any, what: str) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ConfigurationError(f"{name}={limit!r} must be a number of {what}, 1 or more")
    return limit
