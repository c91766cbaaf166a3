"""Makes jobs: one call of `run`, worked out from its arguments and its policy.

Contains the policies with per-operation options, and the checks of `require=` against the store's
guarantee: at construction, for each operation, and once more before a body runs. Runs nothing and
waits for nothing; the runners in blocking/ and aio/ do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from oncekey.core import typed_codecs
from oncekey.core.codec import JSON, Codec
from oncekey.core.commands import Claim, from_fields
from oncekey.core.duration import human
from oncekey.core.errors import ConfigurationError
from oncekey.core.guarantees import Guarantee, Level, check_level
from oncekey.core.identity import Identities, Identity, KeyLike
from oncekey.core.origin import Origin, is_own, label_of
from oncekey.core.policy import Policy
from oncekey.core.record import Record
from oncekey.core.store import StoreLimits
from oncekey.engine.body_check import LAMBDA, body_codec
from oncekey.engine.clock import Clock, new_owner
from oncekey.engine.guarantee_check import GuaranteeLost, GuaranteeMonitor, refusal_of

_POLICIES_MAX = 256
_CODECS_MAX = 256


class Job:
    """One call of `run`, for one attempt: who asks for what under which key, the claim with its own
    owner token, its policy and codec, and when it came. `arguments` are stored before the body
    starts, if there are any. Nothing changes it."""

    __slots__ = ("arguments", "claim", "codec", "key", "operation", "policy", "scope", "started_at")

    def __init__(
        self,
        scope: str,
        operation: str,
        key: str,
        claim: Claim,
        policy: Policy,
        codec: Codec,
        started_at: int,
        arguments: bytes = b"",
    ) -> None:
        self.scope = scope
        self.operation = operation
        self.key = key
        self.claim = claim
        self.policy = policy
        self.codec = codec
        self.started_at = started_at
        self.arguments = arguments

    @property
    def identity(self) -> Identity:
        return Identity(self.scope, self.operation, self.key, self.claim.id)

    def with_arguments(self, arguments: bytes) -> Job:
        return Job(
            self.scope,
            self.operation,
            self.key,
            self.claim,
            self.policy,
            self.codec,
            self.started_at,
            arguments,
        )


def bounded(policy: Policy, limits: StoreLimits, operation: str) -> Policy:
    """The policy as a store with these limits can keep it; raises ConfigurationError if it
    cannot."""
    if policy.times.lease < limits.lease_min:
        raise ConfigurationError(
            f"operation {operation!r}: lease={policy.lease!r} is shorter than this store can "
            f"keep; the shortest is {human(limits.lease_min)}"
        )
    if not limits.outcome_max or policy.max_bytes <= limits.outcome_max:
        return policy
    return replace(policy, max_bytes=limits.outcome_max)


def check_terms(policy: Policy, limits: StoreLimits, operation: str) -> None:
    """Raise ConfigurationError if the store forgets sooner than this policy says. The policy of an
    engine may be longer: it is checked with each operation that follows it."""
    times = policy.times
    terms = times.lease + times.keep + times.audit
    if 0 < limits.terms_max < terms and not is_own(operation):
        raise ConfigurationError(
            f"operation {operation!r}: lease, keep and audit together are {human(terms)}, longer "
            f"than the ring holds ({human(limits.terms_max)}); give the store more ring_slots or a "
            "longer ring_period, or shorten them"
        )


NO_LIMITS: Final = StoreLimits()


class JobFactory:
    """The settings of one engine that its jobs are made from.

    With `transactional`, jobs run inside the caller's transaction: a body that raises leaves
    nothing behind, whatever its policy says, because its rows are rolled back.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        identities: Identities,
        guarantee: Guarantee,
        monitor: GuaranteeMonitor,
        clock: Clock,
        codec: Any = None,
        raw_keys: bool = False,
        transactional: bool = False,
        limits: StoreLimits = NO_LIMITS,
    ) -> None:
        self.policy = bounded(policy, limits, "(every operation)")
        self.limits = limits
        self.identities = identities
        self.clock = clock
        self.codec = typed_codecs.codec_for(codec)
        self.raw_keys = raw_keys
        self.transactional = transactional
        self._codecs: dict[int, tuple[Any, Codec]] = {}
        self._annotated: dict[str, Codec] = {}  # by operation: what its function is said to return
        self._monitor = monitor
        self._rely_on(guarantee)

    def adopt(self, guarantee: Guarantee) -> None:
        """Rely on this guarantee from now on. A lazy store has its own once it was reached.

        One that is refused is not relied on: the store may be as strong as required when it is
        reached again, and nothing must be refused before that by what was read now.
        """
        self._monitor.reported, before = guarantee, self.guarantee
        try:
            self._rely_on(guarantee)
        except ConfigurationError:
            self._rely_on(before)
            raise

    def _rely_on(self, guarantee: Guarantee) -> None:
        """Check every `require` against this guarantee: that of the default policy now, that of
        each operation when it runs next."""
        self.guarantee = guarantee
        # The policies that were checked. A new dict, made after the guarantee is set: a thread
        # that checks against the old guarantee meanwhile remembers its policy in the old dict.
        self._policies: dict[tuple[tuple[str, Any], ...], Policy] = {}
        # "Only inside transactions" is a valid default on a store that has transactions. It is
        # then checked against each operation that comes without one, not against the store.
        self._only_transactions = (
            self.policy.required_level is Level.TRANSACTIONAL
            and guarantee.level is Level.TRANSACTIONAL
            and not self.transactional
        )
        if not self._only_transactions:
            self._check_level(self.policy, "(every operation)")

    def for_transaction(self) -> JobFactory:
        """The same settings for jobs inside the caller's transaction."""
        return JobFactory(
            policy=replace(self.policy, retry_safe=True),
            identities=self.identities,
            guarantee=self.guarantee,
            monitor=self._monitor,
            clock=self.clock,
            codec=self.codec,
            raw_keys=self.raw_keys,
            transactional=True,
            limits=self.limits,
        )

    # --- jobs ---------------------------------------------------------------------------------

    def make(
        self,
        operation: str,
        key: KeyLike,
        scope: str,
        request: Any,
        codec: Any,
        options: Mapping[str, Any],
        origin: Origin | None = None,
    ) -> Job:
        """The job of one call, its arguments checked."""
        if options or self._only_transactions:
            policy = self.policy_with(options, operation)
        else:
            policy = self.policy
        identities = self.identities
        text, id = identities.key_and_id(scope, operation, key)
        fingerprint = identities.fingerprint(request)
        return self._make(scope, operation, text, id, fingerprint, policy, codec, origin)

    def make_from(self, identity: Identity, record: Record, policy: Policy, codec: Any) -> Job:
        """The job of a key that has a record already."""
        return self._make(*identity, record.fingerprint, policy, codec, record.origin)

    def _make(
        self,
        scope: str,
        operation: str,
        key: str,
        id: bytes,
        fingerprint: bytes,
        policy: Policy,
        codec: Any,
        origin: Origin | None,
    ) -> Job:
        """Each job has an owner token of its own."""
        times = policy.times
        fields = (
            id, new_owner(), fingerprint, times.lease, times.keep, times.audit, times.retry_safe,
            scope, operation if origin is None else label_of(operation, origin),
            key if self.raw_keys else "", self.transactional, times.keep_unknown,
        )  # fmt: skip
        claim = from_fields(Claim, fields)
        chosen = self.codec if codec is None else self.codec_for(codec)
        return Job(scope, operation, key, claim, policy, chosen, self.clock.now())

    def locate(self, operation: str, key: KeyLike, scope: str, codec: Any) -> tuple[bytes, Codec]:
        """The id of a key's record and the codec of its value, for reading only."""
        if codec is None:
            codec = self._annotated.get(operation)
        identity = self.identities.identify(scope, operation, key)
        return identity.id, self.codec_for(codec)

    def codec_for(self, choice: Any) -> Codec:
        """The codec meant by `codec=`, this engine's own by default. Each choice is looked at
        once; they are few and come again."""
        if choice is None:
            return self.codec
        known = self._codecs.get(id(choice))
        if known is None:
            if len(self._codecs) >= _CODECS_MAX:
                self._codecs.clear()
            # With the choice itself: while it is kept, no other object gets that id.
            known = self._codecs[id(choice)] = (choice, typed_codecs.codec_for(choice))
        return known[1]

    def codec_of(self, fn: Callable[..., Any], operation: str, codec: Any, what: str) -> Any:
        """The codec for what an operation's function returns, which `get` then reads with too: see
        `returned_codec`."""
        found = self.returned_codec(fn, codec, what)
        if codec is None and found is not None:
            self._annotated[operation] = found
        return found

    def returned_codec(self, fn: Callable[..., Any], codec: Any, what: str) -> Any:
        """The codec for what a function returns: `codec=`, or the engine's, or that of its
        annotation. Raises ConfigurationError if it says that it returns what cannot be stored."""
        if codec is not None or self.codec is not JSON:
            return codec
        return typed_codecs.return_codec(fn, what)

    def body_codec(self, body: Any, operation: str) -> Codec | None:
        """The codec for what a body of `run` is annotated to return, None for this engine's own."""
        return body_codec(body, "the body of", operation) if self.codec is JSON else None

    def step_codec(self, codec: Any, fn: Any, name: str) -> Codec:
        """The codec for the result of a step: `codec=`, or the engine's, or that of its function's
        annotation."""
        if codec is not None:
            return typed_codecs.codec_for(codec)
        if self.codec is not JSON or getattr(fn, "__name__", "") == LAMBDA:
            return self.codec
        return body_codec(fn, "step", name) or self.codec

    # --- policies and guarantees --------------------------------------------------------------

    def policy_with(self, options: Mapping[str, Any], operation: str) -> Policy:
        """The policy with per-operation options, checked against the store's guarantee."""
        if self.transactional:
            options = {**options, "retry_safe": True}
        policies = self._policies
        try:
            memo = tuple(options.items())
            known = policies.get(memo)
        except TypeError as error:
            raise ConfigurationError(f"an option has an unusable value: {error}") from error
        if known is None:
            in_order = tuple(sorted(options.items()))
            known = policies.get(in_order)
            if known is None:
                known = bounded(self.policy.with_options(**options), self.limits, operation)
                check_terms(known, self.limits, operation)
                self._check_level(known, operation)
            if len(policies) >= _POLICIES_MAX - 1:
                policies.clear()
            policies[memo] = policies[in_order] = known
        return known

    def check_options(self, operation: str, codec: Any, options: Mapping[str, Any]) -> None:
        """Find the mistakes of a guard or a registration when it is written, not when it runs."""
        self.identities.identify("", operation, "check")
        typed_codecs.codec_for(codec)
        if options:
            self.policy_with(options, operation)
        else:
            check_terms(self.policy, self.limits, operation)

    def _check_level(self, policy: Policy, operation: str) -> None:
        effective = self.guarantee.effective(
            retry_safe=policy.retry_safe, transactional=self.transactional
        )
        check_level(policy.required_level, effective, self.guarantee, operation)

    def refusal(self, job: Job) -> GuaranteeLost | None:
        """The error that forbids the body to run, since the store may guarantee less by now than
        when it was opened. Must be called between the claim and the body."""
        monitor = self._monitor
        current = monitor.current()
        if current is self.guarantee and current is monitor.reported:
            return None
        if current is not monitor.reported:
            monitor.report(current)
        if current.level >= self.guarantee.level:
            return None
        return refusal_of(current, job.policy, job.identity, transactional=self.transactional)
