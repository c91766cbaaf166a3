"""Translates the errors of redis-py, by the server's codes, into what a consumer understands.

What an operator has to correct is StreamRefused, and ends the consumer; everything else is
BrokerUnavailable, after which it tries again. Messages never quote an address with its password.
"""

from __future__ import annotations

from typing import Final

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.queues.broker import BrokerUnavailable

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
