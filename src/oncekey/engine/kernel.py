"""What both engines share: jobs from arguments, results and errors from verdicts.

Owns policy options, identities, fingerprints, the replay cache, the waiters and the subscribers.
Runs nothing and waits for nothing; the drivers in blocking/ and aio/ do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from oncekey.core import codec as codecs
from oncekey.core.asks import Grant, Recovered, Returned, Task, Verdict
from oncekey.core.codec import Codec, Stored, StoredError, StoredValue, Tombstone
from oncekey.core.errors import (
    ConfigurationError,
    InFlight,
    LeaseLost,
    Mismatch,
    NotReplayable,
    OncekeyError,
    OperationFailed,
    OutcomeUnknown,
    StoreUnavailable,
    WaitTimeout,
)
from oncekey.core.events import Fact, Notice
from oncekey.core.fingerprint import VERSION
from oncekey.core.identity import Identities, Identity, KeyLike
from oncekey.core.levels import Guarantee, check_level
from oncekey.core.policy import Policy
from oncekey.core.record import Record, State
from oncekey.core.recovery import Recovery, UnknownKey
from oncekey.engine.clock import Clock, new_owner
from oncekey.engine.replay_cache import CACHE_AGE_MAX_US, ENTRY_OVERHEAD, Entry, ReplayCache
from oncekey.engine.waiters import Waiters

T = TypeVar("T")
Subscriber = Callable[[Notice], None]

_POLICIES_MAX = 256
_log = logging.getLogger("oncekey")


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """What a run gave: `value`, whether it was `replayed`, and by which attempt and fence."""

    value: T
    replayed: bool
    attempt: int
    fence: int


class Job(NamedTuple):
    """One call of `run`, worked out: whose, what, how, and since when."""

    identity: Identity
    fingerprint: bytes
    policy: Policy
    codec: Codec
    started_at: int

    @property
    def id(self) -> bytes:
        return self.identity.id


class Kernel:
    """The state of one Once or AsyncOnce, without its threads or loops."""

    def __init__(
        self,
        *,
        policy: Policy,
        identities: Identities,
        guarantee: Guarantee,
        clock: Clock,
        cache: ReplayCache,
        codec: Any = None,
        raw_keys: bool = False,
        transactional: bool = False,
    ) -> None:
        self.policy = policy
        self.identities = identities
        self.guarantee = guarantee
        self.clock = clock
        self.cache = cache
        self.waiters = Waiters()
        self.codec = codecs.codec_for(codec)
        self.raw_keys = raw_keys
        self.transactional = transactional
        self._policies: dict[tuple[tuple[str, Any], ...], Policy] = {}
        self._subscribers: tuple[Subscriber, ...] = ()
        self._check_level(policy, "(every operation)")

    def for_transaction(self) -> Kernel:
        """The same set-up for use inside the caller's transaction, which may yet roll back:
        nothing of it is cached, and a body that raises leaves nothing behind."""
        inside = Kernel(
            policy=replace(self.policy, retry_safe=True),
            identities=self.identities,
            guarantee=self.guarantee,
            clock=self.clock,
            cache=ReplayCache(entries=0),
            codec=self.codec,
            raw_keys=self.raw_keys,
            transactional=True,
        )
        inside._subscribers = self._subscribers
        return inside

    # --- before the run ---------------------------------------------------------------------

    def job(
        self,
        operation: str,
        key: KeyLike,
        scope: str,
        request: Any,
        codec: Any,
        options: dict[str, Any],
    ) -> Job:
        """Validate and work out one call."""
        policy = self.policy_with(options, operation) if options else self.policy
        identity = self.identities.identify(scope, operation, key)
        fingerprint = self.identities.fingerprint(request)
        chosen = self.codec if codec is None else codecs.codec_for(codec)
        return Job(identity, fingerprint, policy, chosen, self.clock.now())

    def task(self, job: Job) -> Task:
        """The flow's view of a job, with a fresh owner."""
        identity = job.identity
        return Task(
            identity.id,
            new_owner(),
            job.fingerprint,
            job.policy.terms,
            job.policy.recover is not None,
            identity.scope,
            identity.operation,
            identity.key if self.raw_keys else "",
        )

    def policy_with(self, options: dict[str, Any], operation: str) -> Policy:
        """The policy with per-operation options, checked against the store's guarantee."""
        if self.transactional:
            options = {**options, "retry_safe": True}
        try:
            memo = tuple(sorted(options.items()))
            known = self._policies.get(memo)
        except TypeError as error:
            raise ConfigurationError(f"an option has an unusable value: {error}") from error
        if known is None:
            known = self.policy.with_options(**options)
            self._check_level(known, operation)
            if len(self._policies) >= _POLICIES_MAX:
                self._policies.clear()
            self._policies[memo] = known
        return known

    def _check_level(self, policy: Policy, operation: str) -> None:
        effective = self.guarantee.effective(
            retry_safe=policy.retry_safe, transactional=self.transactional
        )
        check_level(policy.required_level, effective, self.guarantee, operation)

    def replay(
        self, operation: str, key: KeyLike, scope: str, request: Any, codec: Any
    ) -> Result[Any] | None:
        """The answer without a round trip, if it is known here."""
        if type(key) is not str or type(scope) is not str or type(operation) is not str:
            return None
        now = self.clock.now()
        entry = self.cache.get((scope, operation, key), now)
        if entry is None or entry.fingerprint != self.identities.fingerprint(request):
            return None  # of another request the store decides what that means
        chosen = self.codec if codec is None else codecs.codec_for(codec)
        job = Job(entry.identity, entry.fingerprint, self.policy, chosen, now)
        if self._subscribers:
            self._tell(job, Fact.REPLAYED, entry.fence, entry.attempt, from_cache=True)
        return self._result(job, entry.stored, True, entry.attempt, entry.fence)

    # --- the body's result --------------------------------------------------------------------

    def pack(self, codec: Codec, policy: Policy, value: Any, deadline: int) -> Returned:
        """The body's value as bytes, or a tombstone where it cannot be kept."""
        try:
            body = codecs.pack_value(codec, value)
        except Exception as error:  # the codec may be the user's: whatever it raises, it ran
            reason = f"{type(error).__name__}: {error}"
            body = codecs.pack_tombstone(reason, too_large=False)
            return Returned(body, deadline, value, kept=False)
        if len(body) > policy.max_bytes:
            reason = f"its answer has {len(body)} bytes, max_bytes is {policy.max_bytes}"
            body = codecs.pack_tombstone(reason, too_large=True)
            return Returned(body, deadline, value, kept=False)
        return Returned(body, deadline)

    def unknown_key(self, job: Job, record: Record) -> UnknownKey:
        """What `recover` is told."""
        identity = job.identity

        def child_keys(name: str) -> str:
            return self.identities.child_key(identity, name)

        return UnknownKey(
            identity.scope,
            identity.operation,
            identity.key,
            record.fence,
            record.attempt,
            record.steps,
            child_keys,
        )

    def recovered(self, job: Job, answer: object) -> Recovered | None:
        """What `recover` said, as the flow needs it."""
        if answer is None:
            return None
        if not isinstance(answer, Recovery):
            raise ConfigurationError(
                f"recover for {job.identity.operation!r} returned a {type(answer).__name__}; "
                "return Recovery.succeeded(value), .failed(message), .free(), or None"
            )
        if self._subscribers:
            self._tell(job, Fact.RECOVERED)
        if answer.state is State.SUCCEEDED:
            body = self.pack(job.codec, job.policy, answer.value, 0).body
        elif answer.state is State.FAILED:
            body = codecs.pack_error(RuntimeError(answer.value))
        else:
            body = b""
        return Recovered(answer.state, body, answer.note)

    # --- after the run ------------------------------------------------------------------------

    def conclude(self, job: Job, verdict: Verdict) -> Result[Any]:
        """The caller's result, or the error to raise."""
        if self._subscribers:
            self._tell(job, verdict.fact, verdict.fence, verdict.attempt)
        if verdict.fact is Fact.REPLAYED or verdict.fact is Fact.FINISHED:
            if verdict.error is not None:
                raise verdict.error
            stored = codecs.unpack(verdict.body)
            self._remember(job, verdict, stored)
            if not verdict.kept:
                return self._not_kept(job, verdict, stored)
            replayed = verdict.fact is Fact.REPLAYED
            return self._result(job, stored, replayed, verdict.attempt, verdict.fence)
        raise self._error(job, verdict)

    def _remember(self, job: Job, verdict: Verdict, stored: Stored) -> None:
        # Counted from before the run: an entry never outlives its record.
        until = job.started_at + min(verdict.expires_in, CACHE_AGE_MAX_US)
        size = len(verdict.body) + ENTRY_OVERHEAD
        self.cache.put(
            Entry(
                job.identity,
                job.fingerprint,
                stored,
                verdict.attempt,
                verdict.fence,
                until,
                size,
            )
        )

    def _result(
        self, job: Job, stored: Stored, replayed: bool, attempt: int, fence: int
    ) -> Result[Any]:
        if isinstance(stored, StoredValue):
            try:
                return Result(value_of(stored, job.codec), replayed, attempt, fence)
            except OncekeyError as error:
                raise NotReplayable(
                    str(error), operation=job.identity.operation, tag=job.identity.tag
                ) from error
        where = {"operation": job.identity.operation, "tag": job.identity.tag}
        if isinstance(stored, StoredError):
            raise OperationFailed(
                f"the first run failed with {stored.type}: {stored.message}. It is not run "
                "again under this key",
                error_type=stored.type,
                error_message=stored.message,
                **where,
            )
        raise NotReplayable(
            f"the operation ran, but its answer cannot be given again: {stored.reason}", **where
        )

    def _not_kept(self, job: Job, verdict: Verdict, stored: Stored) -> Result[Any]:
        """This call ran it: a large answer is the caller's; an unencodable one is a mistake to
        be found on the first run, not on the first retry."""
        if isinstance(stored, Tombstone) and stored.too_large:
            return Result(verdict.raw, False, verdict.attempt, verdict.fence)
        reason = stored.reason if isinstance(stored, Tombstone) else "unreadable"
        raise NotReplayable(
            f"the operation ran, but its result cannot be stored ({reason}); retries will get "
            "this error too. The result is in this error's .value",
            value=verdict.raw,
            operation=job.identity.operation,
            tag=job.identity.tag,
        )

    def _error(self, job: Job, verdict: Verdict) -> BaseException:
        where = {"operation": job.identity.operation, "tag": job.identity.tag}
        fact = verdict.fact
        seconds = verdict.retry_after / 1_000_000
        if fact is Fact.MISMATCH and verdict.fence != VERSION:
            return NotReplayable(
                f"this key's fingerprint has format {verdict.fence}, this version reads "
                f"{VERSION}; it was written by another release of oncekey",
                **where,
            )
        if fact is Fact.MISMATCH:
            return Mismatch(
                "this key was used for a request with other content; use a new key for a new "
                "request",
                **where,
            )
        if fact is Fact.IN_FLIGHT:
            return InFlight(
                "another attempt holds this key; retry with the same key",
                retry_after=seconds,
                **where,
            )
        if fact is Fact.WAIT_TIMEOUT:
            return WaitTimeout(
                "another attempt still holds this key after the whole wait; retry with the same "
                "key",
                retry_after=seconds,
                **where,
            )
        if fact is Fact.UNKNOWN:
            return OutcomeUnknown(
                "the attempt on this key ended without telling what it did; it is not run again. "
                "Give the operation recover=, or resolve the key by hand; do not use a new key "
                "before you know",
                **where,
            )
        if fact is Fact.LOST:
            return LeaseLost(
                "this attempt was overtaken and its outcome refused; retry with the same key",
                **where,
            )
        error = verdict.error
        assert error is not None
        if isinstance(error, StoreUnavailable):
            ran = " The operation ran, its outcome is not recorded." if verdict.body else ""
            made = StoreUnavailable(
                f"{error}{ran} Retry with the same key",
                ambiguous=error.ambiguous,
                value=verdict.raw,
                **where,
            )
            made.__cause__ = error
            return made
        return error

    # --- subscribers --------------------------------------------------------------------------

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Tell `subscriber` every decision; the returned function ends that."""
        self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            self._subscribers = tuple(s for s in self._subscribers if s is not subscriber)

        return unsubscribe

    def tell_claimed(self, job: Job, grant: Grant) -> None:
        if self._subscribers:
            fact = Fact.TAKEOVER if grant.taken_over else Fact.CLAIMED
            self._tell(job, fact, grant.fence, grant.attempt)

    def _tell(
        self, job: Job, fact: Fact, fence: int = 0, attempt: int = 0, from_cache: bool = False
    ) -> None:
        notice = Notice(
            fact,
            job.identity.operation,
            job.identity.scope,
            job.identity.tag,
            fence,
            attempt,
            self.clock.now() - job.started_at,
            from_cache,
        )
        for subscriber in self._subscribers:
            try:
                subscriber(notice)
            except Exception:  # a broken metric must not break a payment
                _log.exception("a subscriber failed on %s", fact)


def value_of(stored: Stored, codec: Codec) -> Any:
    """A stored value decoded; NotReplayable where it cannot be."""
    assert isinstance(stored, StoredValue)
    if stored.codec != codec.name:
        raise NotReplayable(
            f"the answer was stored by codec {stored.codec!r}, this operation uses {codec.name!r}"
        )
    try:
        return codec.load(stored.data)
    except Exception as error:  # the codec may be the user's
        raise NotReplayable(
            f"the stored answer cannot be decoded: {type(error).__name__}: {error}"
        ) from error
