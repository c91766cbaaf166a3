"""What engines do in the background, every so often: how often that may be, and what is said when
it fails. Runs nothing; the colours do.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from oncekey.core.duration import Duration, human, microseconds
from oncekey.core.errors import ConfigurationError, OncekeyError

EVERY_MIN_US: Final = 100_000
EVERY_MAX_US: Final = 24 * 3_600_000_000

_log = logging.getLogger("oncekey")


def period(name: str, every: Duration | None) -> int | None:
    """The option `name`, checked; None where nobody asked for it."""
    if every is None:
        return None
    us = microseconds(every, name=name)
    if not EVERY_MIN_US <= us <= EVERY_MAX_US:
        low, high = human(EVERY_MIN_US), human(EVERY_MAX_US)
        raise ConfigurationError(f"{name}={every!r} must be {low} to {high}, None for never")
    return us


def at_least_one(name: str, limit: Any, what: str) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ConfigurationError(f"{name}={limit!r} must be a number of {what}, 1 or more")
    return limit


def warn(name: str, error: Exception) -> None:
    """It goes on in the next period. Of a stranger's error only the kind is told: its text might
    hold what it was about."""
    told = str(error) if isinstance(error, OncekeyError) else "see the store's own log"
    _log.warning("the %s failed, %s: %s; it tries again", name, type(error).__name__, told)
