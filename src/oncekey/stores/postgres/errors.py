"""What a PostgreSQL error means, by its SQLSTATE.

Owns the words and whether a failed call may have taken effect. Knows drivers only by the shape of
their errors: an attribute `sqlstate`, on the error or on what it wraps. libpq tells none for a
connection that the server refused; then its words are gone by.
"""

from __future__ import annotations

import re
from typing import Final

from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable

SERIALIZATION: Final = frozenset(("40001", "40P01"))
READ_ONLY: Final = "25006"
LOCKED: Final = "55P03"

# Codes of ours, for what the server has none for, each with one meaning.
RING_ISOLATION: Final = "OK001"
TOO_LATE: Final = "OK002"  # another owner has ended the key
CLAIM_GONE: Final = "OK003"  # the transaction that claimed the key is over
NOT_IN_TIME: Final = "OK005"  # a claim that came after its sender had stopped waiting
POOLED: Final = "OK004"  # never sent by a server: what libpq's words about a pooler stand for

# The schema, a table or a function of ours is missing.
NOT_THERE: Final = frozenset(("3F000", "42P01", "42883"))

_POOLER: Final = "a pooler in transaction mode (PgBouncer) stands between; set pooler=true"

# What happened and what to do, by SQLSTATE or its class.
_MEANING: Final = {
    "25006": "the server is read-only (a standby, or default_transaction_read_only); connect to "
    "the primary",
    "0A000": "the tables were changed under a session of ours; it is replaced",
    "25P02": "the transaction had already failed; roll it back",
    "26": _POOLER,
    "42P05": _POOLER,
    POOLED: _POOLER,
    "28": "the server refused the login; check user, password and pg_hba.conf",
    "3D000": "there is no such database; create it, or check the URL",
    "3F000": "the schema is not there; run `oncekey migrate`",
    "42P01": "oncekey's tables are not there; run `oncekey migrate`",
    "42883": "oncekey's functions are not there or of another release; run `oncekey migrate`",
    "42703": "a table lacks a column: it is of another release (run `oncekey migrate`), or of "
    "another program (choose another schema)",
    "42501": "the role lacks rights; grant it USAGE on the schema, and SELECT, INSERT, UPDATE, "
    "DELETE and TRUNCATE on all tables in it",
    "40P01": "two batches waited for each other",
    "40001": "the keys changed too fast",
    "53100": "the server's disk is full; make room",
    "53200": "the server is out of memory, or of locks: raise max_locks_per_transaction",
    "53300": "the server has no connection left; raise max_connections or use a pooler",
    "55P03": "a lock was held longer than lock_timeout",
    "57014": "the statement took longer than statement_timeout, or was cancelled",
    "57P01": "the server is shutting down, or ended our session",
    "57P02": "the server crashed",
    "57P03": "the server is starting up or shutting down",
    "57P05": "the server ended our idle session",
    "08": "the connection failed",
    "58": "the server's disk or system failed; check its log",
}
# What making the tables may meet besides.
_MAKING: Final = {
    "42501": "the role may not make oncekey's tables; run `oncekey migrate` with a role that may "
    "(CREATE on the database, or on the schema if that is there), or grant it that",
    "42P07": "the schema holds a table of another program under the name of one of oncekey's; "
    "choose another schema",
    "42723": "the schema holds a function of another program under the name of one of oncekey's; "
    "choose another schema",
}
_UNREACHABLE: Final = "the server cannot be reached; is it running, and is the address right?"
# A refused connection in libpq's words, where the server speaks English.
_REFUSALS: Final = (
    (re.compile(r"unsupported startup parameter"), POOLED),
    (re.compile(r"FATAL: +database .* does not exist"), "3D000"),
    (re.compile(r"FATAL: +(password|.* authentication failed|no pg_hba|role )"), "28000"),
    (re.compile(r"no password supplied|password authentication failed"), "28000"),
    (re.compile(r"FATAL: +(sorry, too many clients|too many conn|remaining conn)"), "53300"),
    (re.compile(r"FATAL: +the database system is (starting|shutting|in rec|not yet)"), "57P03"),
)
_NOT_AN_OPTION: Final = re.compile(r'invalid URI query parameter: ("\w+")')
# Errors of ours to mend, not to wait out.
_SET_UP: Final = frozenset(("28", "3D", "3F", "42"))
# The connection ended: whether the commit was done before that, nobody can tell.
_BROKEN: Final = frozenset(("57P01", "57P02", "57P05"))
_TOO_LONG: Final = "57014"
# The store's trouble. Anything else is one command's fault, so its neighbours are spared.
_STORES: Final = frozenset(("08", "25", "28", "3D", "3F", "40", "42", "53", "55", "57", "58", "XX"))
# The same for sessions that are our own: others' may have reasons of their own.
_SESSIONS: Final = frozenset(("0A", "26"))


class NoAnswer(StoreUnavailable):
    """Not a word came from the server."""


def state_of(error: BaseException | None) -> str:
    """The SQLSTATE of an error or of what it wraps (SQLAlchemy, Django); "" if it has none."""
    seen = 0
    while error is not None and seen < 8:
        for candidate in (error, getattr(error, "orig", None)):
            for name in ("sqlstate", "pgcode"):
                state = getattr(candidate, name, None)
                if isinstance(state, str):
                    return state
        error = error.__cause__
        seen += 1
    return ""


def serving(error: BaseException, *, broken: bool) -> StoreUnavailable | None:
    """The error to raise for a statement of our own; None where it is to be raised as it is.

    `broken`: the driver's connection ended with it.
    """
    state = state_of(error)
    if state == NOT_IN_TIME:
        return StoreUnavailable("the server came to it too late", ambiguous=False)
    if not state:
        if not broken:
            return None
        return StoreUnavailable(f"the connection to PostgreSQL broke: {_said(error)}")
    if state[:2] not in _STORES | _SESSIONS:
        return None
    ambiguous = broken or state in _BROKEN or state[:2] == "08"
    return StoreUnavailable(text(error), ambiguous=ambiguous, timed_out=state == _TOO_LONG)


def opening(error: BaseException) -> StoreUnavailable:
    """The error to raise where no connection could be had: nothing was sent."""
    if _reason_of(error):
        return StoreUnavailable(text(error), ambiguous=False)
    return StoreUnavailable(f"{_UNREACHABLE} ({_said(error)})", ambiguous=False)


def no_answer() -> NoAnswer:
    return NoAnswer("no answer from the server in time")


def not_connected() -> NoAnswer:
    return NoAnswer(f"{_UNREACHABLE} (no answer in time)", ambiguous=False)


def unreadable(said: str = "") -> ConfigurationError:
    """For an address the driver cannot read. What it `said` quotes the password."""
    unknown = _NOT_AN_OPTION.search(said)
    if unknown is not None:
        return ConfigurationError(
            f"neither oncekey nor the driver has the option {unknown[1]} that the URL gives"
        )
    return ConfigurationError(
        "the store's address is not one PostgreSQL understands; write "
        "postgresql://user:password@host:port/database, with special characters as %xx"
    )


def none_free(size: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"no connection became free within pool_timeout: all {size} of pool_size are in use",
        ambiguous=False,
    )


def was_closed() -> StoreUnavailable:
    return StoreUnavailable("the store was closed", ambiguous=False, final=True)


def not_replicated() -> StoreUnavailable:
    return StoreUnavailable("committed here, but no synchronous standby has confirmed it in time")


def making(error: BaseException, *, broken: bool) -> OncekeyError | None:
    """The same for the script that makes the tables."""
    state = state_of(error)
    if state in _MAKING:
        return ConfigurationError(f"{_MAKING[state]} (PostgreSQL {state}: {_said(error)})")
    return serving(error, broken=broken)


def preparing(error: OncekeyError) -> OncekeyError:
    """What `error` is while nothing has been served yet: to be mended, or to be waited out."""
    cause = error.__cause__
    if isinstance(error, StoreUnavailable) and cause is not None:
        reason = _reason_of(cause)
        if reason[:2] in _SET_UP or reason in (POOLED, "26000"):
            return ConfigurationError(str(error))
    return error


def is_over(error: BaseException) -> bool:
    """Whether to use this session no more: the server ends it, or is not the one to be connected
    to (any more), or what the session remembers of the tables is not so any more."""
    state = state_of(error)
    return state in _BROKEN or state[:2] in ("08", "0A", "XX") or state == READ_ONLY


def enlisted(error: BaseException) -> Exception | None:
    """The error to raise for a statement in the caller's transaction; None: as it is."""
    state = state_of(error)
    if state == RING_ISOLATION:
        return ConfigurationError(
            "with retention='ring' a transaction must be READ COMMITTED: at other levels it looks "
            "at the past and may miss a key. Use that level, or a store with plain retention"
        )
    if state in SERIALIZATION:
        return None  # whoever retries the transaction needs the driver's own error
    if state[:2] in _SET_UP:
        return ConfigurationError(text(error))
    if state[:2] in _STORES:
        return StoreUnavailable(text(error), ambiguous=False)
    return None


def text(error: BaseException) -> str:
    reason = _reason_of(error)
    meaning = _MEANING.get(reason) or _MEANING.get(reason[:2])
    state = state_of(error)
    said = f"PostgreSQL {state}: {_said(error)}" if state else _said(error)
    return f"{meaning} ({said})" if meaning else f"PostgreSQL cannot be used: {said}"


def _reason_of(error: BaseException) -> str:
    """The SQLSTATE, or what the words tell: of a refused connection, libpq gives words alone."""
    state = state_of(error)
    if state and state[:2] != "08":
        return state
    words = str(error)
    return next((known for pattern, known in _REFUSALS if pattern.search(words)), state)


def _said(error: BaseException) -> str:
    """The first line, which tells it; with several hosts that is only a headline."""
    first, _, rest = str(error).strip().partition("\n")
    if first.endswith(":"):
        first += " " + " ".join(rest.split())
    return first or type(error).__name__
