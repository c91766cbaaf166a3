"""Makes the caller's result of an outcome, or the error to raise.

Contains the messages of the errors that callers meet. Must not know stores, threads or event loops.
"""

from __future__ import annotations

from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from oncekey.core.codec import (
    Codec,
    StoredError,
    StoredValue,
    Tombstone,
    head_of,
    undecodable,
    unpack,
    value_of,
)
from oncekey.core.commands import from_fields
from oncekey.core.effects import AttemptOutcome
from oncekey.core.errors import (
    InFlight,
    LeaseLost,
    Mismatch,
    NotReplayable,
    OperationFailed,
    OutcomeUnknown,
    StoreUnavailable,
    WaitTimeout,
)
from oncekey.core.events import EventKind
from oncekey.core.fingerprint import NO_REQUEST, VERSION, version_of
from oncekey.core.identity import Identity
from oncekey.engine.jobs import Job

T = TypeVar("T")
SECOND: Final = 1_000_000
_FINISHED, _REPLAYED = EventKind.FINISHED, EventKind.REPLAYED


class Identified(Protocol):
    """Has an identity, which is made only for an error."""

    @property
    def identity(self) -> Identity: ...


class Result(NamedTuple, Generic[T]):
    """The result of a run: its `value`, whether it was `replayed`, the attempt and fence that made
    it, and in how many seconds its key expires (`expires_in`; after that the key is new again)."""

    value: T
    replayed: bool
    attempt: int
    fence: int
    expires_in: float = 0.0


def conclude(job: Job, outcome: AttemptOutcome) -> Result[Any]:
    """The result of an attempt for its caller; raises its error if there is one."""
    kind, returned = outcome.kind, outcome.returned
    if outcome.error is not None or (kind is not _FINISHED and kind is not _REPLAYED):
        raise error_of(job.identity, job.codec, outcome, version_of(job.claim.fingerprint))
    attempt, fence, expires_in = outcome.attempt, outcome.fence, outcome.expires_in
    if returned is not None and returned.exact:
        return from_fields(Result, (returned.raw, False, attempt, fence, expires_in / SECOND))
    if returned is not None and not returned.kept:
        return not_kept(job.identity, outcome)
    replayed = kind is _REPLAYED
    try:
        return result_of(job, job.codec, outcome.body, replayed, attempt, fence, expires_in)
    except NotReplayable as error:
        error.value = outcome.raw
        raise


def result_of(
    whose: Identified,
    codec: Codec,
    body: bytes,
    replayed: bool,
    attempt: int,
    fence: int,
    expires_in: int,
) -> Result[Any]:
    """The result of a stored outcome; a stored failure is raised."""
    seconds = expires_in / SECOND
    head = head_of(codec)
    if body.startswith(head):  # nearly every outcome: a value of this very codec
        try:
            value = codec.load(body[len(head) :])
        except Exception as error:  # the codec may be the user's
            raise NotReplayable(undecodable(error), **_where(whose.identity)) from error
        return from_fields(Result, (value, replayed, attempt, fence, seconds))
    stored, identity = unpack(body), whose.identity
    if isinstance(stored, StoredValue):
        try:
            return Result(value_of(stored, codec), replayed, attempt, fence, seconds)
        except NotReplayable as error:
            raise NotReplayable(str(error), **_where(identity)) from error
    if isinstance(stored, StoredError):
        raise OperationFailed(
            f"the first run failed with {stored.type}: {stored.message}. It is not run again "
            "under this key",
            error_type=stored.type,
            error_message=stored.message,
            **_where(identity),
        )
    raise NotReplayable(
        f"the operation ran, but its answer cannot be given again: {stored.reason}",
        **_where(identity),
    )


def not_kept(identity: Identity, outcome: AttemptOutcome) -> Result[Any]:
    """The result of a body that this very call ran and that could not be stored. A value that is
    too large goes to the caller; one that no codec takes is an error at once, so that the mistake
    is found on the first run and not on the first retry."""
    stored = unpack(outcome.body)
    if isinstance(stored, Tombstone) and stored.too_large:
        seconds = outcome.expires_in / SECOND
        return Result(outcome.raw, False, outcome.attempt, outcome.fence, seconds)
    reason = stored.reason if isinstance(stored, Tombstone) else "unreadable"
    raise NotReplayable(
        f"the operation ran, but its result cannot be stored ({reason}); retries will get this "
        "error too. The result is in this error's .value",
        value=outcome.raw,
        **_where(identity),
    )


def error_of(
    identity: Identity, codec: Codec, outcome: AttemptOutcome, own_version: int = VERSION
) -> BaseException:
    """The error of an outcome without a value: the body's own, or one of ours. `own_version`
    is that of this call's own fingerprint."""
    where = _where(identity)
    kind = outcome.kind
    if isinstance(outcome.error, StoreUnavailable) and kind is EventKind.UNAVAILABLE:
        return _unavailable(codec, outcome, outcome.error, where)
    if outcome.error is not None:
        return outcome.error
    seconds = outcome.retry_after / SECOND
    if kind is EventKind.MISMATCH:
        return _mismatch(outcome.version, own_version, where)
    if kind is EventKind.IN_FLIGHT:
        return InFlight(
            "another attempt holds this key; retry with the same key",
            retry_after=seconds,
            **where,
        )
    if kind is EventKind.WAIT_TIMEOUT:
        return WaitTimeout(
            "another attempt still holds this key after the whole wait; retry with the same key",
            retry_after=seconds,
            **where,
        )
    if kind is EventKind.UNKNOWN:
        return OutcomeUnknown(
            "the attempt on this key ended without telling what it did; it is not run again. "
            "Give the operation recover=, or resolve the key by hand; do not use a new key "
            "before you know",
            **where,
        )
    assert kind is EventKind.LOST, kind
    ran = " Its own answer is in this error's .value." if outcome.body else ""
    return LeaseLost(
        "this attempt was overtaken and its outcome refused; retry with the same key." + ran,
        value=_unrecorded(codec, outcome),
        **where,
    )


def _mismatch(version: int, own_version: int, where: dict[str, str]) -> BaseException:
    if version in (VERSION, NO_REQUEST) and version != own_version:
        had, has = ("without", "with") if version == NO_REQUEST else ("with", "without")
        return Mismatch(
            f"this key was first used {had} request=, this call came {has} one; give the same "
            "request= on every call, or none on any",
            **where,
        )
    if version != VERSION:
        return NotReplayable(
            f"this key's fingerprint has format {version}, this version reads {VERSION}; it was "
            "written by another release of oncekey",
            **where,
        )
    return Mismatch(
        "this key was used for a request with other content; use a new key for a new request",
        **where,
    )


def _unavailable(
    codec: Codec, outcome: AttemptOutcome, error: StoreUnavailable, where: dict[str, str]
) -> Exception:
    ran = " The operation ran, its outcome is not recorded." if outcome.body else ""
    made = StoreUnavailable(
        f"{error}.{ran} Retry with the same key",
        ambiguous=error.ambiguous,
        final=error.final,
        timed_out=error.timed_out,
        value=_unrecorded(codec, outcome),
        **where,
    )
    made.__cause__ = error
    return made


def _unrecorded(codec: Codec, outcome: AttemptOutcome) -> object:
    """The value of a body whose outcome could not be stored, as a retry would have got it."""
    stored = unpack(outcome.body) if outcome.body else None
    if not isinstance(stored, StoredValue):
        return outcome.raw
    try:
        return value_of(stored, codec)
    except NotReplayable:
        return outcome.raw


def _where(identity: Identity) -> dict[str, str]:
    return {"operation": identity.operation, "tag": identity.tag}
