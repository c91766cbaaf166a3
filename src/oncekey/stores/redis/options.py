"""The options of a Redis store: their defaults and checks.

This module also splits a URL into our options and redis-py's part. It opens nothing and knows no
client.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError
from oncekey.stores.redis.durability import FAILOVER
from oncekey.stores.redis.errors import invalid_address
from oncekey.stores.redis.keyspace import PREFIX_DEFAULT, PREFIX_MAX_CHARS
from oncekey.stores.redis.record_calls import TestClock

POOL_SIZE_MAX: Final = 256
PREFIX_WITHOUT: Final = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a store works; every value has a default.

    prefix              what the names of all its keys begin with
    reply_timeout       how long each reply of the server is awaited, and each connection
    call_timeout        how long a call may take in all, with everything that is repeated in it
    pool_size           how many connections per node a store of this process opens at most
    guarantee_interval  how old the reading of the server's settings may be when a claim is made
    failover            never: no replica is ever promoted
    """

    prefix: str = PREFIX_DEFAULT
    reply_timeout: Duration = "2s"
    call_timeout: Duration = "5s"
    pool_size: int = 16
    guarantee_interval: Duration = "5s"
    failover: str = "auto"
    clock: TestClock | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) or not 0 < len(self.prefix) <= PREFIX_MAX_CHARS:
            raise ConfigurationError(
                f"prefix={self.prefix!r} must be text of 1 to {PREFIX_MAX_CHARS} characters"
            )
        # Braces would move the hash tag, and with it keys to other slots than their index.
        if not self.prefix.isprintable() or any(c in self.prefix for c in PREFIX_WITHOUT):
            raise ConfigurationError(
                f"prefix={self.prefix!r} must do without {{ }} and control characters"
            )
        if self.failover not in FAILOVER:
            raise ConfigurationError(
                f"failover={self.failover!r} is not known; choose {', '.join(FAILOVER)}"
            )
        if type(self.pool_size) is not int or not 1 <= self.pool_size <= POOL_SIZE_MAX:
            raise ConfigurationError(
                f"pool_size={self.pool_size!r} must be a number from 1 to {POOL_SIZE_MAX}"
            )
        for name in ("reply_timeout", "call_timeout", "guarantee_interval"):
            if microseconds(getattr(self, name), name=name) < 1_000:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be 1ms or longer")

    def seconds(self, name: str) -> float:
        """One of the durations in seconds."""
        return microseconds(getattr(self, name), name=name) / 1_000_000


def split_url(url: str) -> tuple[str, Options]:
    """The address and our options. Other parameters of the URL are redis-py's."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise invalid_address() from None
    known = {field.name: field for field in fields(Options) if field.name != "clock"}
    ours: dict[str, Any] = {}
    theirs: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            theirs.append((name, value))
            continue
        if name in ours:
            raise ConfigurationError(f"the option {name!r} is given twice in the store's URL")
        if name == "pool_size" and not value.isdecimal():
            raise ConfigurationError(f"{name}={value!r} must be a number")
        ours[name] = int(value) if name == "pool_size" else value
    rest = urlencode(theirs, quote_via=quote)
    return urlunsplit(parts._replace(query=rest)), Options(**ours)
