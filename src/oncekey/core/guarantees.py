"""The four levels of guarantee, and what a store can promise.

Owns the order of the levels and the rule that an operation never runs below the level it requires.
Knows no particular store.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from oncekey.core.errors import ConfigurationError


class Level(enum.IntEnum):
    """What a crash or a pause can leave behind; a higher level promises more."""

    BEST_EFFORT = 0
    AT_MOST_ONCE = 1
    FENCED = 2
    TRANSACTIONAL = 3

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


class ClockClass(enum.Enum):
    """Whose clock ends leases and retention; it says what a clock that is wrong can do.

    HOST           each host's own: hosts must agree, and a step of one clock moves its leases
    SERVER         the server's: one clock for all hosts, which may step at a failover
    SERVER_LEASE   leases are ended by the servers themselves, which count the time that passes; the
                   hosts' clocks only say for how long outcomes are kept
    """

    HOST = "host"
    SERVER = "server"
    SERVER_LEASE = "server lease"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The highest level that a store supports, and why: what it rests on, or why not higher; and
    whose clock it goes by."""

    level: Level
    reason: str
    clock: ClockClass = ClockClass.HOST

    def effective(self, *, retry_safe: bool, transactional: bool = False) -> Level:
        """The level that an operation gets on this store."""
        if self.level is Level.BEST_EFFORT:
            return Level.BEST_EFFORT
        if transactional:
            return Level.TRANSACTIONAL
        return Level.FENCED if retry_safe else Level.AT_MOST_ONCE


def parse_level(value: Level | str) -> Level:
    """A level by its name in options: "at_most_once", "fenced"; raises ConfigurationError."""
    if isinstance(value, Level):
        return value
    try:
        return Level[value.strip().upper().replace(" ", "_")]
    except (KeyError, AttributeError):
        names = ", ".join(level.name.lower() for level in Level)
        raise ConfigurationError(f"require={value!r} is not a level; choose {names}") from None


def check_level(required: Level, effective: Level, guarantee: Guarantee, operation: str) -> None:
    """Raise ConfigurationError for an operation that would run below the level it requires."""
    if effective < required:
        raise ConfigurationError(
            f"operation {operation!r} requires {required.label} but would run at "
            f"{effective.label}: {guarantee.reason}"
        )
