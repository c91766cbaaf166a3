"""The settings of a stream's consumers, checked when they are given, and what the server refuses.

What an operator has to correct is StreamRefused, and ends the consumer; every other error of the
server is BrokerUnavailable, after which it tries again. Messages never quote an address with its
password. This module asks no server, and must not import redis-py: errors are recognized by the
server's codes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.queues.broker import BrokerUnavailable

BODY_FIELD_DEFAULT: Final = "body"
DEAD_SUFFIX: Final = ":dead"
PARKED_SUFFIX: Final = ":parked"
FIRST: Final = "first"
NEW: Final = "new"
KEEP: Final = "keep"
DELETE: Final = "delete"
TRIM: Final = "trim"
ACKED_CHOICES: Final = (KEEP, DELETE, TRIM)
_ID: Final = re.compile(r"\d{1,20}(-\d{1,20})?")
_STARTS: Final = {FIRST: "0", NEW: "$"}
_NO_GROUP: Final = "NOGROUP"
_CORRECTED: Final = {
    "NOPERM": "the user lacks rights; it needs EVALSHA, EVAL, INFO, GET, SET and the commands of "
    "streams and sorted sets for the stream's keys",
    "NOAUTH": "the server wants a password; write it into the URL",
    "WRONGPASS": "the server refused the login; check user and password",
    "WRONGTYPE": "a key of the stream's names holds something else",
    "CROSSSLOT": "on a cluster all keys of the stream must be in one slot; name the stream with "
    "braces, such as {orders}",
    "MOVED": "the server is a node of a cluster; give a redis.RedisCluster as server=",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """A stream, and how a group reads it.

    stream              the name of its key
    group               the consumer group
    start               where a group begins that does not exist yet: "first" (everything that is in
                        the stream), "new" (what is added from then on) or an entry's id (what comes
                        after it); None refuses to make a group
    body_field          the field that is the message's body; None makes the body of all fields, as
                        JSON
    dead_letter_stream  where messages go that failed for good; `STREAM:dead`
    park_stream         where messages go whose outcome nobody knows, and notes about entries that
                        were trimmed before they were done; `STREAM:parked`
    acked               what becomes of entries that are done: "keep" (trimming is somebody else's),
                        "delete" (refused if another group reads the stream), or "trim" (the front
                        of the stream is trimmed, as far as all groups are done)
    retention           for how long a message can come back, if you know that; `keep` must cover it
    """

    stream: str
    group: str
    start: str | None = None
    body_field: str | None = BODY_FIELD_DEFAULT
    dead_letter_stream: str | None = None
    park_stream: str | None = None
    acked: str = KEEP
    retention: Duration | None = None

    def __post_init__(self) -> None:
        for name in ("stream", "group", "dead_letter_stream", "park_stream", "body_field"):
            value = getattr(self, name)
            is_needed = name in ("stream", "group")
            if (is_needed or value is not None) and not (isinstance(value, str) and value):
                raise ConfigurationError(f"{name}={value!r} must be a name")
        is_text = isinstance(self.start, str)
        is_known = self.start is None or (is_text and self.start in _STARTS)
        if not is_known and not (is_text and _ID.fullmatch(str(self.start))):
            raise ConfigurationError(
                f"start={self.start!r} must be 'first' (everything that is in the stream), "
                "'new' (what is added from now on), or the id of an entry"
            )
        if self.acked not in ACKED_CHOICES:
            raise ConfigurationError(
                f"acked={self.acked!r} must be one of {', '.join(ACKED_CHOICES)}"
            )
        if len({self.stream, self.dead_key, self.parked_key, self.due_key}) < 4:
            raise ConfigurationError(
                "stream, dead_letter_stream and park_stream must be different keys"
            )
        if self.retention is not None:
            microseconds(self.retention, name="retention")

    @property
    def start_id(self) -> str:
        """Where XGROUP CREATE begins; "" if it must not be called."""
        if self.start is None:
            return ""
        return _STARTS.get(self.start, self.start)

    @property
    def dead_key(self) -> str:
        return self.dead_letter_stream or self.stream + DEAD_SUFFIX

    @property
    def parked_key(self) -> str:
        return self.park_stream or self.stream + PARKED_SUFFIX

    @property
    def due_key(self) -> str:
        """The key of the sorted set with the time from which each pending entry may be taken."""
        return f"{self.stream}:oncekey:{self.group}"

    @property
    def broker_key(self) -> str:
        """The key whose value this server and its copies have, and no other with such a stream."""
        return f"{self.stream}:oncekey-broker"

    @property
    def retention_s(self) -> float:
        """How long messages can come back. A stream is trimmed by count, if at all, and what is
        pending or a dead letter stays, so without a choice that is for ever."""
        if self.retention is None:
            return math.inf
        return microseconds(self.retention, name="retention") / 1_000_000


_OPTIONS: Final = frozenset(field.name for field in fields(StreamSettings)) - {"stream"}


def settings_of(
    stream: str, name: str, options: Mapping[str, Any]
) -> tuple[StreamSettings, dict[str, Any]]:
    """The settings of a stream among a consumer's options, and the others."""
    own = {option: value for option, value in options.items() if option in _OPTIONS}
    others = {option: value for option, value in options.items() if option not in _OPTIONS}
    return StreamSettings(stream=stream, **{"group": name, **own}), others


# --- what the server refuses ----------------------------------------------------------------------


# --- failures -------------------------------------------------------------------------------------


class StreamRefused(ConfigurationError):
    """Redis refuses what a consumer or a sender does, and will go on to: the stream or its group
    was deleted, a key holds something else, a right is missing. A consumer ends, and what it had
    not settled is delivered again; a publisher tries the message again, and parks it."""


def code_of(error: BaseException) -> str:
    """The code of a server's error: redis-py cuts those it knows from the message."""
    code = getattr(error, "status_code", None)
    return str(code) if code else str(error).partition(" ")[0]


def translated(error: BaseException, stream: str, group: str) -> OncekeyError:
    """The error to raise for one that a call of redis-py has raised."""
    code = code_of(error)
    first_line = str(error).strip().partition("\n")[0] or type(error).__name__
    if code == _NO_GROUP:
        return StreamRefused(
            f"the stream {stream!r} or its group {group!r} was deleted while it was consumed. It "
            "is not made again by itself, since that decides what is read; a consumer that is "
            "started again makes it as start= says"
        )
    if code in _CORRECTED:
        return StreamRefused(f"{_CORRECTED[code]} (Redis {first_line})")
    return BrokerUnavailable(f"stream {stream!r}: {first_line}")
