"""Translates gRPC's errors into oncekey's, and decides what a failed try means.

etcd says what is wrong in the details of a status; they are its documented texts. This module knows
errors only by the shape of their status: `code()` and `details()`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable


class Meaning(NamedTuple):
    """What a failure means.

    message     what happened and what to do
    elsewhere   True if another member, or the same one later, may do it
    applied     True if the request may have taken effect
    """

    message: str
    elsewhere: bool
    applied: bool


NO_SPACE: Final = "database space exceeded"
_LATER: Final = "another member may be elected at this moment"

# By a part of the details, the first that matches.
_MEANINGS: Final = (
    (NO_SPACE, Meaning(
        "etcd has reached its quota and takes no writes (alarm NOSPACE); compact and defragment, "
        "or raise --quota-backend-bytes, then disarm the alarm", False, False)),
    ("etcdserver: no leader", Meaning(f"the cluster has no leader; {_LATER}", True, False)),
    ("not leader", Meaning(_LATER, True, False)),
    ("leader changed", Meaning(f"the leader changed; {_LATER}", True, True)),
    ("request timed out", Meaning(
        "etcd could not commit in time: the leader or the majority is lost, or its disk is slow",
        True, True)),
    ("too many requests", Meaning("etcd has too many requests to commit", True, False)),
    ("server stopped", Meaning("the member is stopping", True, True)),
    ("raft proposal dropped", Meaning(_LATER, True, True)),
    ("corrupt", Meaning("etcd reports corrupt data (alarm CORRUPT)", False, False)),
    ("learner", Meaning("this member is a learner, which serves no such requests", True, False)),
    ("mvcc: required revision has been compacted", Meaning(
        "what was to be read has been compacted away; read again", True, False)),
    ("failed to connect", Meaning("no connection", True, False)),
    ("Connection refused", Meaning("no connection", True, False)),
    ("DNS resolution failed", Meaning("the name of the host is not known", True, False)),
    ("name resolution", Meaning("the name of the host is not known", True, False)),
)  # fmt: skip

# What trying again cannot change: the set-up is wrong.
_SETUP: Final = (
    ("request is too large", "etcd takes no request of this size; raise --max-request-bytes, or "
     "lower request_bytes= of the store and max_bytes= of the operation"),
    ("too many operations in txn", "etcd takes fewer operations per transaction than the store "
     "sends; give the store txn_ops= as large as the servers' --max-txn-ops"),
    ("permission denied", "the user may not read and write the prefix; grant it a role with "
     "readwrite on the prefix"),
    ("authentication failed", "etcd refused the user or the password"),
    ("user name is empty", "etcd asks for a user; write user:password@host in the URL"),
    ("authentication is not enabled", "etcd has authentication switched off; give no user"),
    ("trailing message larger", "etcd takes no request of this size; lower max_bytes="),
)  # fmt: skip

INVALID_TOKEN: Final = "invalid auth token"
OLD_TOKEN: Final = "revision of auth store is old"
LEASE_NOT_FOUND: Final = "requested lease not found"


class NoReply(StoreUnavailable):
    """No member replied in time."""


class NoSpace(StoreUnavailable):
    """The servers' quota is used up."""


class LeaseGone(StoreUnavailable):
    """An etcd lease ended before it was used."""


def details_of(error: Any) -> str:
    return str(error.details() or "")


def is_auth_expired(error: Any) -> bool:
    """True if a new token is all that is needed."""
    details = details_of(error)
    return INVALID_TOKEN in details or OLD_TOKEN in details


def is_denied(error: Any) -> bool:
    return "permission denied" in details_of(error)


def is_lease_gone(error: Any) -> bool:
    return LEASE_NOT_FOUND in details_of(error)


def meaning_of(error: Any) -> Meaning | None:
    """What a failed try means for the next one; None if the set-up is wrong."""
    details = details_of(error)
    for part, meaning in _MEANINGS:
        if part in details:
            return meaning
    name = error.code().name
    if name == "DEADLINE_EXCEEDED":
        return Meaning("a member gave no answer in time", True, True)
    if name in ("UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL", "ABORTED"):
        return Meaning(f"the connection failed ({details[:200]})", True, True)
    if name == "RESOURCE_EXHAUSTED" and "larger than max" not in details:
        return Meaning(f"etcd is overloaded ({details[:200]})", True, False)
    return None


def setup_error(error: Any) -> ConfigurationError:
    """The error for what trying again cannot change."""
    details = details_of(error)
    for part, message in _SETUP:
        if part in details:
            return ConfigurationError(f"{message} ({details[:200]})")
    return ConfigurationError(f"etcd refused a request: {error.code().name}, {details[:300]}")


def unavailable(meaning: Meaning, address: str, *, ambiguous: bool, replied: bool) -> OncekeyError:
    """The error of a call whose last try failed."""
    kind = StoreUnavailable if replied else NoReply
    if "NOSPACE" in meaning.message:
        kind = NoSpace
    return kind(
        f"{meaning.message}; the last member asked was {address}",
        ambiguous=ambiguous,
        timed_out=not replied,
    )
