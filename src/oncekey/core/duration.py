"""Durations as people write them: `timedelta` or "30s", turned into whole microseconds.

Owns the grammar ("250ms", "30s", "5m", "24h", "7d", and sums such as "1h30m").
"""

from __future__ import annotations

import re
from datetime import timedelta

from oncekey.core.errors import ConfigurationError

_ACCEPTED = "a timedelta or text such as '250ms', '30s', '5m', '24h', '7d'"

Duration = timedelta | str

_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_PART = re.compile(r"(\d{1,18})(us|ms|s|m|h|d)")


def microseconds(value: Duration, *, name: str) -> int:
    """The duration in microseconds; `name` is the option it was given for."""
    if isinstance(value, timedelta):
        total = value // timedelta(microseconds=1)
    elif isinstance(value, str):
        text = value.strip()
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ConfigurationError(f"{name}={value!r} is not a duration; give {_ACCEPTED}")
        total = sum(int(number) * _UNITS[unit] for number, unit in parts)
    else:
        raise ConfigurationError(
            f"{name} is a {type(value).__name__}, which leaves the unit open; give {_ACCEPTED}"
        )
    if total < 0:
        raise ConfigurationError(f"{name}={value!r} is negative")
    return total


def human(us: int) -> str:
    """The shortest exact text of a duration that `microseconds` reads back."""
    if us == 0:
        return "0s"
    text = ""
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, us = divmod(us, _UNITS[unit])
        if count:
            text += f"{count}{unit}"
    return text
