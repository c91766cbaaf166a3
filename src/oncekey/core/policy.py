"""Policy: the options of an operation. Values only, validated when they are made.

Owns the options' names, defaults and limits. A Policy is immutable; `with_options` gives a
changed copy, which is how `run` and `guard` take per-operation options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict

from oncekey.core.duration import Duration, human, microseconds
from oncekey.core.errors import ConfigurationError
from oncekey.core.guarantees import Level, parse_level
from oncekey.core.record import FOREVER_US

LEASE_MIN_US = 10_000
LEASE_MAX_US = 24 * 3_600_000_000
KEEP_MIN_US = 1_000
KEEP_MAX_US = 10 * 366 * 86_400_000_000
WAIT_MAX_US = 3_600_000_000
STORE_TIMEOUT_DEFAULT_US = 10_000_000
MAX_BYTES_DEFAULT = 1024 * 1024
MAX_BYTES_CAP = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PolicyTimes:
    """The durations of a policy in microseconds, and `retry_safe`: what the flows read."""

    lease: int
    keep: int
    audit: int
    wait: int
    retry_safe: bool
    keep_unknown: int = FOREVER_US
    store_timeout: int = STORE_TIMEOUT_DEFAULT_US
    recover_grace: int = 0


@dataclass(frozen=True)
class Policy:
    """The options of an operation.

    lease          how long an owner may stay silent before others act (heartbeats renew it)
    keep           how long a finished key deduplicates, counted from its end
    audit          how long the record stays readable after `keep`
    wait           how long a duplicate waits for the running attempt; 0 raises InFlight at once
    retry_safe     True only if running the body again is harmless (child keys, fence, upserts)
    recover        asks the outside world what became of an unknown key
    require        refuse to run below this level: "at_most_once", "fenced", "transactional"
    max_bytes      a larger result is not stored; a tombstone says that it ran
    keep_unknown   how long a key of unknown outcome stays unknown; None: until it is decided.
                   After that the key is fresh again, and a retry runs a second time
    store_timeout  how long a caller whose operation ran waits for a store that does not take its
                   outcome. After that it gets StoreUnavailable with the value, and the outcome is
                   sent to the store again in the background
    recover_grace  how long after its lease a silent owner may still act: until then a `recover`
                   that says "nothing happened" is not believed; None: as long as the lease
    """

    lease: Duration = "30s"
    keep: Duration = "24h"
    audit: Duration = "7d"
    wait: Duration = "0s"
    retry_safe: bool = False
    recover: Callable[..., Any] | None = None
    require: Level | str = Level.BEST_EFFORT
    max_bytes: int = MAX_BYTES_DEFAULT
    keep_unknown: Duration | None = None
    store_timeout: Duration = "10s"
    recover_grace: Duration | None = None
    times: PolicyTimes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.retry_safe, bool):
            raise ConfigurationError(f"retry_safe={self.retry_safe!r} must be True or False")
        if self.recover is not None and not callable(self.recover):
            raise ConfigurationError("recover must be a function")
        if not isinstance(self.max_bytes, int) or not 0 < self.max_bytes <= MAX_BYTES_CAP:
            raise ConfigurationError(f"max_bytes={self.max_bytes!r} must be 1 to {MAX_BYTES_CAP}")
        lease = _within("lease", self.lease, LEASE_MIN_US, LEASE_MAX_US)
        times = PolicyTimes(
            lease=lease,
            keep=_within("keep", self.keep, KEEP_MIN_US, KEEP_MAX_US),
            audit=_within("audit", self.audit, 0, KEEP_MAX_US),
            wait=_within("wait", self.wait, 0, WAIT_MAX_US),
            retry_safe=self.retry_safe,
            keep_unknown=FOREVER_US
            if self.keep_unknown is None
            else _within("keep_unknown", self.keep_unknown, KEEP_MIN_US, KEEP_MAX_US),
            store_timeout=_within("store_timeout", self.store_timeout, 0, WAIT_MAX_US),
            recover_grace=lease
            if self.recover_grace is None
            else _within("recover_grace", self.recover_grace, 0, KEEP_MAX_US),
        )
        object.__setattr__(self, "require", parse_level(self.require))
        object.__setattr__(self, "times", times)

    @property
    def required_level(self) -> Level:
        return parse_level(self.require)

    def with_options(self, **options: Any) -> Policy:
        """This policy with some fields replaced; raises ConfigurationError for an unknown name."""
        unknown = options.keys() - OPTION_NAMES
        if unknown:
            raise ConfigurationError(
                f"unknown option {', '.join(sorted(unknown))}; known: {', '.join(OPTION_NAMES)}"
            )
        return replace(self, **options)


class PolicyOptions(TypedDict, total=False):
    """The fields of a Policy as keyword arguments, for type checkers; all of them, in the same
    order."""

    lease: Duration
    keep: Duration
    audit: Duration
    wait: Duration
    retry_safe: bool
    recover: Callable[..., Any] | None
    require: Level | str
    max_bytes: int
    keep_unknown: Duration | None
    store_timeout: Duration
    recover_grace: Duration | None


OPTION_NAMES = tuple(item.name for item in fields(Policy) if item.init)


def _within(name: str, value: Duration, low: int, high: int) -> int:
    us = microseconds(value, name=name)
    if not low <= us <= high:
        raise ConfigurationError(f"{name}={value!r} must be {human(low)} to {human(high)}")
    return us
