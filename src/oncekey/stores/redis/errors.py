"""Translates the errors of Redis, by their codes, into oncekey's errors.

This module owns the messages, and decides whether a call is worth repeating and whether it may have
taken effect. It knows redis-py only by the shape of its errors: an attribute `status_code`, or a
message that begins with the code. Messages never quote an address with its password.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oncekey.core.errors import ConfigurationError, StoreUnavailable

NO_SCRIPT: Final = "NOSCRIPT"
MOVED: Final = "MOVED"
ASK: Final = "ASK"
OUT_OF_MEMORY: Final = "OOM"
TOO_LATE: Final = "TOOLATE"  # our own, by the script of claims

# The server has done nothing and may do it soon: the call is repeated.
_REPEATED: Final = {
    NO_SCRIPT: "the server does not keep the scripts that it was given (SCRIPT FLUSH?)",
    "TRYAGAIN": "the key's slot is being moved to another node",
    "CLUSTERDOWN": "the cluster is down, or part of it is",
    "LOADING": "the server is reading its data from disk",
    "MASTERDOWN": "the server is a replica without its master",
    "READONLY": "the server is a read-only replica; connect to the master",
    "BUSY": "the server is busy with a script",
    "NOREPLICAS": "the server has too few replicas to take writes (min-replicas-to-write)",
    "UNBLOCKED": "the server has become a replica",
    "NOTREADY": "the server is not ready",
}
# The server has done nothing and will not before somebody acts.
_REFUSED: Final = {
    OUT_OF_MEMORY: "the server's memory is full, so it takes no new keys; make room, or raise "
    "maxmemory",
    "MISCONF": "the server cannot write to its disk, so it takes no writes; check its log",
    "NOPERM": "the user lacks rights; it needs +@all for the keys of the store's prefix, or at "
    "least EVALSHA, SCRIPT, INFO and what the scripts call",
    "NOAUTH": "the server wants a password; write it into the URL",
    "WRONGPASS": "the server refused the login; check user and password",
    "CROSSSLOT": "the server is a node of a cluster; write redis+cluster:// instead of redis://",
    MOVED: "the server is a node of a cluster; write redis+cluster:// instead of redis://",
    ASK: "the server is a node of a cluster; write redis+cluster:// instead of redis://",
}
# A script was stopped halfway.
_STOPPED: Final = {
    "WRONGTYPE": "another program has keys of the same names; choose another prefix",
}
_LOGIN: Final = frozenset(("NOPERM", "NOAUTH", "WRONGPASS", "CROSSSLOT", MOVED, ASK))
# A connection on which the server says this leads to the wrong server, or soon will. A master
# without replicas may be one that Sentinel has replaced without its knowing yet.
_WRONG_SERVER: Final = frozenset(("READONLY", "MASTERDOWN", "UNBLOCKED", "LOADING", "NOREPLICAS"))
_UNREACHABLE: Final = "the server cannot be reached; is it running, and is the address right?"


class NoReply(StoreUnavailable):
    """The server did not reply at all."""


class ClaimTooLate(StoreUnavailable):
    """The claim arrived after its sender had stopped waiting, by the server's clock."""


class MemoryFull(StoreUnavailable):
    """The server's memory is full, so it has refused to claim keys."""


def code_of(error: BaseException) -> str:
    """The code of a server's error: redis-py cuts those it knows from the message."""
    code = getattr(error, "status_code", None)
    return str(code) if code else str(error).partition(" ")[0]


def is_repeated(error: BaseException) -> bool:
    """True if the server has done nothing, and the same call may succeed soon."""
    return code_of(error) in _REPEATED


def was_refused(error: BaseException) -> bool:
    """True if the connection ended with an error by which the server refuses everything."""
    return code_of(error) in _REPEATED or code_of(error) in _REFUSED


def ends_connection(response: object) -> bool:
    """True if the connection that this came by must not be used again."""
    return isinstance(response, Exception) and code_of(response) in _WRONG_SERVER


def is_login_refused(error: BaseException) -> bool:
    """True if the server did not let a connection in, and will not before somebody acts."""
    return code_of(error) in _LOGIN


def translate_response(error: BaseException, *, ambiguous: bool) -> StoreUnavailable:
    """The error to raise for a call that the server refused. `ambiguous` is True if an earlier try
    of the call may have taken effect."""
    code = code_of(error)
    if code == TOO_LATE:
        return ClaimTooLate("the server came to it too late", ambiguous=ambiguous)
    refusal = _REPEATED.get(code) or _REFUSED.get(code)
    meaning = refusal or _STOPPED.get(code) or "Redis cannot be used"
    kind = MemoryFull if code == OUT_OF_MEMORY else StoreUnavailable
    # An error that is not listed may have stopped a script halfway, too.
    made = kind(f"{meaning} (Redis {_first_line(error)})", ambiguous=ambiguous or refusal is None)
    made.__cause__ = error
    return made


def translate_failure(
    error: BaseException, *, is_sent: bool, is_silent: bool, ambiguous: bool
) -> StoreUnavailable:
    """The error to raise for a call whose connection failed. `is_sent`: it may have reached the
    server; `is_silent`: nothing came back in time."""
    kind = NoReply if is_silent else StoreUnavailable
    if is_silent and is_sent:
        message = "no answer from the server in time"
    elif is_sent:
        message = f"the connection to Redis broke: {_first_line(error)}"
    elif was_refused(error):
        code = code_of(error)
        message = f"{_REPEATED.get(code) or _REFUSED[code]} (Redis {_first_line(error)})"
    else:
        message = f"{_UNREACHABLE} ({_first_line(error)})"
    made = kind(message, ambiguous=ambiguous, timed_out=is_silent)
    made.__cause__ = error
    return made


def translate_setup_error(error: StoreUnavailable) -> StoreUnavailable | ConfigurationError:
    """The error to raise if the store was never ready: a ConfigurationError if an operator has to
    correct something, else the error itself."""
    cause = error.__cause__
    if cause is not None and code_of(cause) in _LOGIN:
        return ConfigurationError(str(error))
    return error


def invalid_address() -> ConfigurationError:
    """For an address that cannot be parsed. It is not shown: it may have a password in it."""
    return ConfigurationError(
        "the store's address is not one Redis understands; write redis://user:password@host:6379/0,"
        " redis+sentinel://host:26379,host:26379/service or redis+cluster://host:6379,host:6379, "
        "with special characters as %xx"
    )


def without_info(error: BaseException | None) -> ConfigurationError | StoreUnavailable:
    """For a server whose settings cannot be read; `error` is its answer to INFO."""
    if error is not None and code_of(error) in _REFUSED:
        return ConfigurationError(f"{_REFUSED[code_of(error)]} (Redis {_first_line(error)})")
    return StoreUnavailable("the server did not say what it is", ambiguous=False)


def commands_forbidden(names: Sequence[bytes]) -> ConfigurationError:
    """For a user who may run scripts, but not all that they do: they would stop halfway."""
    listed = ", ".join(name.decode() for name in names)
    return ConfigurationError(f"{_REFUSED['NOPERM']} (forbidden are {listed})")


def unreadable(error: ValueError) -> StoreUnavailable:
    """For a record that this release cannot read."""
    return StoreUnavailable(f"{error}; is a newer release of oncekey running?", ambiguous=False)


def no_transactions() -> ConfigurationError:
    return ConfigurationError(
        "redis:// has no transactions to take part in; keep the keys in the database that has the "
        "rows, or use run without in_transaction"
    )


def store_closed() -> StoreUnavailable:
    return StoreUnavailable("the store was closed", ambiguous=False, final=True)


def _first_line(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0]
    code = getattr(error, "status_code", None)
    if code and not first.startswith(str(code)):
        first = f"{code} {first}"
    return first or type(error).__name__
