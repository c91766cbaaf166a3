"""Calls of the server as values, the scripts that they run, and what their failures mean.

The program yields these values and is sent the server's replies, so threads and tasks run the same
one. What an operator has to correct is StreamRefused, and ends the consumer; every other error is
BrokerUnavailable, after which it tries again. Messages never quote an address with its password.
This module must not import redis-py: its errors are recognized by the server's codes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Generator, Sequence
from importlib import resources
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.queues.broker import BrokerUnavailable

T = TypeVar("T")

SCRIPT_NAMES: Final = ("open", "take", "settle", "extend", "tidy", "leave", "redrive")
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


class RunScript(NamedTuple):
    """Run a script of lua/ with these keys and arguments; the result is its reply."""

    name: str
    keys: Sequence[str]
    arguments: Sequence[str | bytes | int]


class WaitForEntry(NamedTuple):
    """XREADGROUP for one new entry, for so many milliseconds; the result is false if there was
    none. The entry itself is not read from it, since redis-py has several forms for it: it is left
    to this consumer, and taken by the next script."""

    stream: str
    group: str
    consumer: str
    milliseconds: int


class AddEntry(NamedTuple):
    """XADD, for an entry that is too large for a script."""

    stream: str
    words: Sequence[bytes]


class AskServer(NamedTuple):
    """INFO; the result is a dictionary, empty if the server does not answer it."""


StreamCall = RunScript | AddEntry | WaitForEntry | AskServer
Program = Generator[StreamCall, Any, T]


# --- scripts --------------------------------------------------------------------------------------


class Script(NamedTuple):
    """A script's text, and its digest, by which it is called."""

    text: str
    digest: str


@functools.cache
def script(name: str) -> Script:
    """The script of one of SCRIPT_NAMES."""
    folder = resources.files(__package__) / "lua"
    parts = [(folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("common", name)]
    text = "\n".join(parts)
    # The server names scripts by SHA-1; nothing secret depends on it.
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


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
