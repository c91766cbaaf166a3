"""Translates PostgreSQL errors, by their SQLSTATE, into oncekey's errors.

This module owns the messages, and decides whether a failed call may have taken effect. It knows
drivers only by the shape of their errors: an attribute `sqlstate` on the error or on the error that
it wraps. libpq gives no SQLSTATE for a connection that the server refused; its message is parsed.
"""

from __future__ import annotations

import re
from typing import Final

from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable

SERIALIZATION: Final = frozenset(("40001", "40P01"))
READ_ONLY: Final = "25006"
LOCKED: Final = "55P03"
IN_FAILED_TRANSACTION: Final = "25P02"

# Our own codes, for conditions that have no SQLSTATE.
RING_ISOLATION: Final = "OK001"
KEY_ENDED: Final = "OK002"  # another owner has ended the key
CLAIM_TRANSACTION_ENDED: Final = "OK003"  # the transaction that claimed the key is over
CLAIM_TOO_LATE: Final = "OK005"  # the claim arrived after its sender had stopped waiting
POOLER_DETECTED: Final = "OK004"  # never sent by a server: libpq's message names a pooler's error

# What Python raises for rows that are not what our statement returns.
UNREADABLE: Final = (TypeError, LookupError, ValueError)

# Our schema, one of its tables or one of its functions is missing.
SCHEMA_MISSING: Final = frozenset(("3F000", "42P01", "42883"))

_POOLER: Final = "a pooler in transaction mode (PgBouncer) stands between; set pooler=true"

# What happened and what to do, by SQLSTATE or its class.
_MEANING: Final = {
    "25006": "the server is read-only (a standby, or default_transaction_read_only); connect to "
    "the primary",
    "0A000": "the tables were changed under a session of ours; it is replaced",
    IN_FAILED_TRANSACTION: "the transaction had already failed; roll it back",
    "26": _POOLER,
    "42P05": _POOLER,
    POOLER_DETECTED: _POOLER,
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
# What happened and what to do if the migration script fails, besides the above.
_MIGRATION_MEANING: Final = {
    "42501": "the role may not make oncekey's tables; run `oncekey migrate` with a role that may "
    "(CREATE on the database, or on the schema if that is there), or grant it that",
    "42P07": "the schema holds a table of another program under the name of one of oncekey's; "
    "choose another schema",
    "42723": "the schema holds a function of another program under the name of one of oncekey's; "
    "choose another schema",
}
_UNREACHABLE: Final = "the server cannot be reached; is it running, and is the address right?"
# libpq's messages for refused connections, if the server's messages are in English.
_REFUSALS: Final = (
    (re.compile(r"unsupported startup parameter"), POOLER_DETECTED),
    (re.compile(r"FATAL: +database .* does not exist"), "3D000"),
    (re.compile(r"FATAL: +(password|.* authentication failed|no pg_hba|role )"), "28000"),
    (re.compile(r"no password supplied|password authentication failed"), "28000"),
    (re.compile(r"FATAL: +(sorry, too many clients|too many conn|remaining conn)"), "53300"),
    (re.compile(r"FATAL: +the database system is (starting|shutting|in rec|not yet)"), "57P03"),
)
_NOT_AN_OPTION: Final = re.compile(r'invalid URI query parameter: ("\w+")')
# Errors that an operator has to correct; waiting does not help.
_SETUP_CLASSES: Final = frozenset(("28", "3D", "3F", "42"))
# The session ended: whether the commit was done before that is not known.
_SESSION_ENDED: Final = frozenset(("57P01", "57P02", "57P05"))
_STATEMENT_TIMEOUT: Final = "57014"
# Failures of the store. Any other error is one command's fault, and the rest of its batch succeeds.
_STORE_CLASSES: Final = frozenset(
    ("08", "25", "28", "3D", "3F", "40", "42", "53", "55", "57", "58", "XX")
)
# Failures of the store in our own sessions only: a caller's session may have other reasons.
_SESSION_CLASSES: Final = frozenset(("0A", "26"))


class NoReply(StoreUnavailable):
    """The server did not reply at all."""


def sqlstate_of(error: BaseException | None) -> str:
    """The SQLSTATE of an error or of the one it wraps (SQLAlchemy, Django); "" if it has none."""
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


def translate_error(error: BaseException, *, broken: bool) -> OncekeyError | None:
    """The error to raise for one of our own statements; None to raise the driver's error unchanged.

    `broken` is True if the driver's connection ended with it.
    """
    state = sqlstate_of(error)
    if state == CLAIM_TOO_LATE:
        return StoreUnavailable("the server came to it too late", ambiguous=False)
    if lacks_outbox(error):
        return no_outbox()
    if not state:
        if not broken:
            return None
        return StoreUnavailable(f"the connection to PostgreSQL broke: {_first_line(error)}")
    if state[:2] not in _STORE_CLASSES | _SESSION_CLASSES:
        return None
    ambiguous = broken or state in _SESSION_ENDED or state[:2] == "08"
    return StoreUnavailable(
        describe(error), ambiguous=ambiguous, timed_out=state == _STATEMENT_TIMEOUT
    )


def translate_connect_error(error: BaseException) -> StoreUnavailable:
    """The error to raise if no connection could be opened. Nothing was sent."""
    if _reason(error):
        return StoreUnavailable(describe(error), ambiguous=False)
    return StoreUnavailable(f"{_UNREACHABLE} ({_first_line(error)})", ambiguous=False)


def unreadable_reply(statement: str, error: Exception) -> StoreUnavailable:
    """For rows that are not what oncekey's function returns: none, a NULL, another text."""
    return StoreUnavailable(
        f"PostgreSQL's reply to {statement} cannot be read ({type(error).__name__}: {error}); "
        "whether it was applied is not known. If this stays, oncekey's functions were replaced or "
        "are of another release: run `oncekey doctor` and `oncekey migrate`"
    )


def reply_timeout() -> NoReply:
    return NoReply("no answer from the server in time")


def connect_timeout() -> NoReply:
    return NoReply(f"{_UNREACHABLE} (no answer in time)", ambiguous=False)


def invalid_address(driver_message: str = "") -> ConfigurationError:
    """For an address that the driver cannot parse. Its message is not shown: it may quote the
    password."""
    unknown = _NOT_AN_OPTION.search(driver_message)
    if unknown is not None:
        return ConfigurationError(
            f"neither oncekey nor the driver has the option {unknown[1]} that the URL gives"
        )
    return ConfigurationError(
        "the store's address is not one PostgreSQL understands; write "
        "postgresql://user:password@host:port/database, with special characters as %xx"
    )


def pool_exhausted(size: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"no connection became free within pool_timeout: all {size} of pool_size are in use",
        ambiguous=False,
    )


def store_closed() -> StoreUnavailable:
    return StoreUnavailable("the store was closed", ambiguous=False, final=True)


def not_replicated() -> StoreUnavailable:
    return StoreUnavailable("committed here, but no synchronous standby has confirmed it in time")


def translate_migration_error(error: BaseException, *, broken: bool) -> OncekeyError | None:
    """The error to raise if the migration script fails; None to raise the driver's unchanged."""
    state = sqlstate_of(error)
    if state in _MIGRATION_MEANING:
        return ConfigurationError(
            f"{_MIGRATION_MEANING[state]} (PostgreSQL {state}: {_first_line(error)})"
        )
    return translate_error(error, broken=broken)


def translate_setup_error(error: OncekeyError) -> OncekeyError:
    """The error to raise if the store was never ready: a ConfigurationError if an operator has to
    correct something, else the error itself."""
    cause = error.__cause__
    if isinstance(error, StoreUnavailable) and cause is not None:
        reason = _reason(cause)
        if reason[:2] in _SETUP_CLASSES or reason in (POOLER_DETECTED, "26000"):
            return ConfigurationError(str(error))
    return error


def ends_session(error: BaseException) -> bool:
    """True if this session must not be used again: the server ends it, or is not the primary any
    more, or the tables have changed under the session's cached plans."""
    state = sqlstate_of(error)
    return state in _SESSION_ENDED or state[:2] in ("08", "0A", "XX") or state == READ_ONLY


def translate_caller_error(error: BaseException) -> Exception | None:
    """The error to raise for a statement in the caller's transaction; None to raise the driver's
    error unchanged."""
    state = sqlstate_of(error)
    if state == RING_ISOLATION:
        return ConfigurationError(
            "with retention='ring' a transaction must be READ COMMITTED: at other levels it looks "
            "at the past and may miss a key. Use that level, or a store with plain retention"
        )
    if state in SERIALIZATION:
        return None  # code that retries the transaction needs the driver's own error
    if state[:2] in _SETUP_CLASSES:
        return ConfigurationError(describe(error))
    if state[:2] in _STORE_CLASSES:
        return StoreUnavailable(describe(error), ambiguous=False)
    return None


def lacks_outbox(error: BaseException) -> bool:
    """True if the statement failed because the table or a function of the outbox is missing."""
    return sqlstate_of(error) in SCHEMA_MISSING and "outbox" in _first_line(error)


def no_outbox() -> ConfigurationError:
    return ConfigurationError(
        "the store has no outbox table; call create_table() of your outbox once, at start-up or "
        "with a role that may create tables, or run `oncekey migrate --outbox`"
    )


def describe(error: BaseException) -> str:
    reason = _reason(error)
    meaning = _MEANING.get(reason) or _MEANING.get(reason[:2])
    state = sqlstate_of(error)
    message = f"PostgreSQL {state}: {_first_line(error)}" if state else _first_line(error)
    return f"{meaning} ({message})" if meaning else f"PostgreSQL cannot be used: {message}"


def _reason(error: BaseException) -> str:
    """The SQLSTATE, or the one that libpq's message stands for: if the server refuses a connection,
    libpq gives only a message."""
    state = sqlstate_of(error)
    if state and state[:2] != "08":
        return state
    message = str(error)
    return next((known for pattern, known in _REFUSALS if pattern.search(message)), state)


def _first_line(error: BaseException) -> str:
    """The first line of the message. With several hosts it is a heading, so the rest is added."""
    first, _, rest = str(error).strip().partition("\n")
    if first.endswith(":"):
        first += " " + " ".join(rest.split())
    return first or type(error).__name__
