"""What both engines share: jobs from arguments, results and errors from verdicts.

Owns policy options, identities, fingerprints, the replay cache, the running attempts and the
subscribers.
Runs nothing and waits for nothing; the drivers in blocking/ and aio/ do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, NamedTuple

from oncekey.core import codec as codecs
from oncekey.core.codec import Codec, Stored
from oncekey.core.effects import AttemptOutcome, Grant, Recovered, Returned, Task
from oncekey.core.errors import ConfigurationError, NotStarted
from oncekey.core.events import Event, EventKind
from oncekey.core.fingerprint import version_of
from oncekey.core.guarantees import Guarantee, Level, check_level
from oncekey.core.identity import Identities, Identity, KeyLike
from oncekey.core.policy import Policy
from oncekey.core.record import Record, State
from oncekey.core.recovery import Recovery, UnknownKey
from oncekey.engine.clock import Clock, new_owner
from oncekey.engine.guarantee_check import GuaranteeLost, log_change, refusal_of
from oncekey.engine.holders import Holders
from oncekey.engine.key_status import arguments_of, step_statuses
from oncekey.engine.replay_cache import CACHE_AGE_MAX_US, ReplayCache
from oncekey.engine.results import Result, error_of, not_kept, result_of

Subscriber = Callable[[Event], None]

_POLICIES_MAX = 256
_log = logging.getLogger("oncekey")


class Job(NamedTuple):
    """One call of `run`, worked out: whose, what, how, and since when."""

    identity: Identity
    fingerprint: bytes
    policy: Policy
    codec: Codec
    started_at: int
    arguments: bytes = b""  # kept before the body begins, see core/step_format.py


class BodyNotRun(NotStarted, ConfigurationError):
    """The body was of the wrong colour: nothing has happened, the key stays free."""


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
        self.clock = clock
        self.cache = cache
        self.holders = Holders()
        self.codec = codecs.codec_for(codec)
        self.raw_keys = raw_keys
        self.transactional = transactional
        self._subscribers: tuple[Subscriber, ...] = ()
        self.promise: Callable[[], Guarantee] = lambda: self.guarantee
        self._told = [guarantee]  # the last one that was told; shared with those in transactions
        self.adopt(guarantee)

    def adopt(self, guarantee: Guarantee) -> None:
        """Hold every `require` against this guarantee: of the default policy now, of each
        operation before it runs next. A lazy store tells its own only once it was reached."""
        self.guarantee = guarantee
        self._told[0] = guarantee
        # Policies that were checked. Made anew, and after the guarantee is known: whoever checks
        # against the old one meanwhile remembers that in the old dict.
        self._policies: dict[tuple[tuple[str, Any], ...], Policy] = {}
        self._inside: Kernel | None = None
        # "Only inside transactions" is a fine default on a store that has them: then it is held
        # against each operation that comes without one, not against the store.
        self._only_transactions = (
            self.policy.required_level is Level.TRANSACTIONAL
            and guarantee.level is Level.TRANSACTIONAL
            and not self.transactional
        )
        if not self._only_transactions:
            self._check_level(self.policy, "(every operation)")

    def reset(self) -> None:
        """Fresh locks: at the start, and in a forked child."""
        self.holders.reset()
        self.cache.reset()
        self._inside = None

    def for_transaction(self) -> Kernel:
        """The same set-up for use inside the caller's transaction, which may yet roll back:
        nothing of it is cached, and a body that raises leaves nothing behind."""
        inside = self._inside
        if inside is None or inside.guarantee is not self.guarantee:
            inside = self._inside = self._for_transaction()
        inside._subscribers = self._subscribers
        return inside

    def _for_transaction(self) -> Kernel:
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
        inside.promise, inside._told = self.promise, self._told
        return inside

    # --- before the run ---------------------------------------------------------------------

    def job(
        self,
        operation: str,
        key: KeyLike,
        scope: str,
        request: Any,
        codec: Any,
        options: Mapping[str, Any],
    ) -> Job:
        """Validate and work out one call."""
        if options or self._only_transactions:
            policy = self.policy_with(options, operation)
        else:
            policy = self.policy
        identity = self.identities.identify(scope, operation, key)
        fingerprint = self.identities.fingerprint(request)
        chosen = self.codec if codec is None else codecs.codec_for(codec)
        return Job(identity, fingerprint, policy, chosen, self.clock.now())

    def locate(self, operation: str, key: KeyLike, scope: str, codec: Any) -> tuple[bytes, Codec]:
        """Where a key's record is and how its answer is read, for looking only."""
        identity = self.identities.identify(scope, operation, key)
        return identity.id, self.codec if codec is None else codecs.codec_for(codec)

    def task(self, job: Job) -> Task:
        """The flow's view of a job, with a fresh owner."""
        identity = job.identity
        times = job.policy.times
        if self.transactional:
            # The one waited for could never finish: the caller's transaction holds the lock.
            times = replace(times, wait=0)
        return Task(
            identity.id,
            new_owner(),
            job.fingerprint,
            times,
            job.policy.recover is not None,
            identity.scope,
            identity.operation,
            identity.key if self.raw_keys else "",
            self.transactional,
            # A caller's transaction needs none: what is left undone there was rolled back.
            b"" if self.transactional else job.arguments,
        )

    def policy_with(self, options: Mapping[str, Any], operation: str) -> Policy:
        """The policy with per-operation options, checked against the store's guarantee."""
        if self.transactional:
            options = {**options, "retry_safe": True}
        policies = self._policies
        try:
            memo = tuple(sorted(options.items()))
            known = policies.get(memo)
        except TypeError as error:
            raise ConfigurationError(f"an option has an unusable value: {error}") from error
        if known is None:
            known = self.policy.with_options(**options)
            self._check_level(known, operation)
            if len(policies) >= _POLICIES_MAX:
                policies.clear()
            policies[memo] = known
        return known

    def check_guard(self, operation: str, codec: Any, options: Mapping[str, Any]) -> None:
        """Find a guard's mistakes when it is written, not on its first call."""
        self.identities.identify("", operation, "check")
        codecs.codec_for(codec)
        if options:
            self.policy_with(options, operation)

    def _check_level(self, policy: Policy, operation: str) -> None:
        effective = self.guarantee.effective(
            retry_safe=policy.retry_safe, transactional=self.transactional
        )
        check_level(policy.required_level, effective, self.guarantee, operation)

    def refusal(self, job: Job) -> GuaranteeLost | None:
        """Asked between the claim and the body: what forbids to run, since the store may promise
        less by now than when it was opened."""
        promised = self.promise()
        if promised is not self._told[0]:
            before, self._told[0] = self._told[0], promised
            log_change(before, promised)
            self.notify(Event(EventKind.GUARANTEE, "", "", ""))
        if promised.level >= self.guarantee.level:
            return None
        return refusal_of(promised, job.policy, job.identity, transactional=self.transactional)

    def replay(
        self, operation: str, key: KeyLike, scope: str, request: Any, codec: Any
    ) -> Result[Any] | None:
        """The answer without a round trip, if it is known here."""
        if type(key) is not str or type(scope) is not str or type(operation) is not str:
            return None
        now = self.clock.now()
        entry = self.cache.get((scope, operation, key), now)
        if entry is None:
            return None
        id, fingerprint, body, attempt, fence, _, expires_at = entry
        if fingerprint != self.identities.fingerprint(request):
            return None  # of another request the store decides what that means
        chosen = self.codec if codec is None else codecs.codec_for(codec)
        identity = Identity(scope, operation, key, id)
        if self._subscribers:
            job = Job(identity, fingerprint, self.policy, chosen, now)
            self._tell(job, EventKind.REPLAYED, fence, attempt, from_cache=True)
        left = expires_at - now
        return result_of(identity, chosen, codecs.unpack(body), True, attempt, fence, left)

    # --- the body's result --------------------------------------------------------------------

    def pack(self, codec: Codec, policy: Policy, value: Any, deadline: int) -> Returned:
        """The body's value as bytes, or a tombstone where it cannot be kept."""
        try:
            body = codecs.pack_value(codec, value)
        except Exception as error:  # the codec may be the user's: whatever it raises, it ran
            if _packs(codec, value):
                raise  # it was not the codec's: a signal handler raised it
            reason = f"{type(error).__name__}: {error}"
            body = codecs.pack_tombstone(reason, too_large=False)
            return Returned(body, deadline, value, kept=False)
        if len(body) > policy.max_bytes:
            reason = f"its answer has {len(body)} bytes, max_bytes is {policy.max_bytes}"
            body = codecs.pack_tombstone(reason, too_large=True)
            return Returned(body, deadline, value, kept=False)
        return Returned(body, deadline)

    def refuse_unstarted(self, job: Job, value: object, what: str = "the body") -> None:
        """A coroutine or generator that was given as an answer has not run a single line."""
        if isinstance(value, (CoroutineType, GeneratorType, AsyncGeneratorType)):
            if not isinstance(value, AsyncGeneratorType):
                value.close()
            raise BodyNotRun(
                f"{what} of {job.identity.operation!r} gave a {type(value).__name__}, which has "
                "not run; run async functions with AsyncOnce, await all of it, return plain values"
            )

    def unknown_key(self, job: Job, record: Record) -> UnknownKey:
        """What `recover` is told."""
        identity = job.identity
        return UnknownKey(
            identity.scope,
            identity.operation,
            identity.key,
            record.fence,
            record.attempt,
            step_statuses(record.steps, job.codec),
            partial(self.identities.child_key, identity),
            partial(self.identities.child_uuid, identity),
            arguments_of(record.steps).request,
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
            self._tell(job, EventKind.RECOVERED)
        if answer.state is State.SUCCEEDED:
            body = self.pack(job.codec, job.policy, answer.value, 0).body
        elif answer.state is State.FAILED:
            body = codecs.pack_error(RuntimeError(answer.value))
        else:
            body = b""
        return Recovered(answer.state, body, answer.note)

    # --- after the run ------------------------------------------------------------------------

    def settle(self, job: Job, outcome: AttemptOutcome) -> Stored | None:
        """Tell the subscribers and remember the outcome, whether or not a caller still waits."""
        if self._subscribers:
            self._tell(job, outcome.kind, outcome.fence, outcome.attempt)
            if outcome.unrecorded:
                self._tell(job, EventKind.UNRECORDED, outcome.fence, outcome.attempt)
        if outcome.error is not None or outcome.kind not in (
            EventKind.REPLAYED,
            EventKind.FINISHED,
        ):
            return None
        stored = codecs.unpack(outcome.body)
        self._remember(job, outcome)
        return stored

    def conclude(self, job: Job, outcome: AttemptOutcome, stored: Stored | None) -> Result[Any]:
        """The caller's result, or the error to raise."""
        if stored is None:
            raise error_of(job.identity, job.codec, outcome, version_of(job.fingerprint))
        if not outcome.kept:
            return not_kept(job.identity, outcome, stored)
        replayed = outcome.kind is EventKind.REPLAYED
        return result_of(
            job.identity,
            job.codec,
            stored,
            replayed,
            outcome.attempt,
            outcome.fence,
            outcome.expires_in,
        )

    def _remember(self, job: Job, outcome: AttemptOutcome) -> None:
        id = job.identity
        # Counted from before the run: an entry never outlives its record.
        expires_at = job.started_at + outcome.expires_in
        until = min(expires_at, job.started_at + CACHE_AGE_MAX_US)
        found = (outcome.body, outcome.attempt, outcome.fence, until, expires_at)
        self.cache.put((id.scope, id.operation, id.key), (id.id, job.fingerprint, *found))

    # --- subscribers --------------------------------------------------------------------------

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Tell `subscriber` every decision; the returned function ends that."""
        self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            self._subscribers = tuple(s for s in self._subscribers if s is not subscriber)

        return unsubscribe

    def tell_claimed(self, job: Job, grant: Grant) -> None:
        if self._subscribers:
            kind = EventKind.TAKEOVER if grant.taken_over else EventKind.CLAIMED
            self._tell(job, kind, grant.fence, grant.attempt)

    def _tell(
        self, job: Job, kind: EventKind, fence: int = 0, attempt: int = 0, from_cache: bool = False
    ) -> None:
        notice = Event(
            kind,
            job.identity.operation,
            job.identity.scope,
            job.identity.tag,
            fence,
            attempt,
            self.clock.now() - job.started_at,
            from_cache,
        )
        self.notify(notice)

    def notify(self, notice: Event) -> None:
        """Give a notice to every subscriber."""
        for subscriber in self._subscribers:
            try:
                subscriber(notice)
            except Exception:  # a broken metric must not break a payment
                _log.exception("a subscriber failed on %s", notice.kind)


def _packs(codec: Codec, value: Any) -> bool:
    try:
        codecs.pack_value(codec, value)
    except Exception:
        return False
    return True
