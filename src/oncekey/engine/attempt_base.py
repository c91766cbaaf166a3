"""The attempt a body is given: what both colours share of it.

Owns the running attempt's deadline, whether it was lost, and its known steps. The colours add
`step` and `renew`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from oncekey.core.codec import Codec
from oncekey.core.duration import Duration
from oncekey.core.effects import Grant, StepOutcome
from oncekey.core.errors import (
    ConfigurationError,
    InvalidKey,
    LeaseLost,
    NotReplayable,
    StoreUnavailable,
)
from oncekey.core.identity import Identities, Identity
from oncekey.core.policy import Policy
from oncekey.core.record import Step
from oncekey.core.step_flow import UNSAVED
from oncekey.core.step_format import ARGUMENTS
from oncekey.engine.clock import Clock
from oncekey.engine.step_calls import StepCall, step_call, value_for_body

STEPS_MAX = 100
_NEVER = 2**62


class AttemptBase:
    """One run of a body: its identity, its fence, and its hold on the key."""

    __slots__ = (
        "_clock",
        "_closed",
        "_deadline",
        "_depth",
        "_given",
        "_grant",
        "_identities",
        "_identity",
        "_lost",
        "_on_lost",
        "_policy",
        "_running",
        "_steps",
    )

    def __init__(
        self,
        identities: Identities,
        identity: Identity,
        grant: Grant,
        policy: Policy,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._identities = identities
        self._identity = identity
        self._grant = grant
        self._policy = policy
        self._deadline = grant.deadline
        self._depth = 0
        self._lost = False
        self._closed = False
        self._steps = {s.name: s for s in grant.steps if s.name != ARGUMENTS} if grant.steps else {}
        self._running: dict[str, object] = {}
        self._given: set[str] = set()  # steps whose results the body has got
        self._on_lost: Callable[[], object] | None = None

    @property
    def scope(self) -> str:
        return self._identity.scope

    @property
    def operation(self) -> str:
        return self._identity.operation

    @property
    def key(self) -> str:
        return self._identity.key

    @property
    def number(self) -> int:
        """1 for the first attempt on this key, 2 after a takeover, ..."""
        return self._grant.attempt

    @property
    def fence(self) -> int:
        """Higher than every earlier attempt's. Let what you write to refuse a lower one."""
        return self._grant.fence

    @property
    def retry_safe(self) -> bool:
        """Whether this operation is run again where its owner dies."""
        return self._policy.retry_safe

    @property
    def lost(self) -> bool:
        """True once this attempt may have been overtaken: stop, nothing of it will be stored.

        Asks the clock too: after a pause of the whole process no heartbeat has told yet.
        """
        return self._lost or self._clock.now() >= self._deadline

    @property
    def _is_late(self) -> bool:
        """Late by the clock alone: whether it was overtaken the store can tell."""
        return not self._lost and self._clock.now() >= self._deadline

    def check(self) -> None:
        """Raise LeaseLost if this attempt was overtaken. Call it before an irreversible act."""
        if self.lost:
            raise LeaseLost(
                "this attempt fell silent longer than its lease and may have been overtaken; "
                "its outcome will not be stored. Retry with the same key",
                operation=self.operation,
                tag=self._identity.tag,
            )

    def child_key(self, name: str) -> str:
        """The key to send downstream for `name`: the same on every retry of this operation."""
        return self._identities.child_key(self._identity, name)

    def child_uuid(self, name: str) -> UUID:
        """The same for providers that take a UUID, or no more than 36 characters."""
        return self._identities.child_uuid(self._identity, name)

    # --- for the engine ---------------------------------------------------------------------

    def _enter_transaction(self, depth: int) -> None:
        """In the caller's transaction there is no lease that could end, and no time to try
        again: the transaction holds what others wait for. `depth` of operations in bodies of
        operations: only the innermost can be undone."""
        self._deadline = _NEVER
        self._depth = depth

    def _check_undo(self, depth: int) -> None:
        """Whether this attempt's own rows are those that would be undone now."""
        if not self._depth:
            raise ConfigurationError(
                f"rollback() of {self.operation!r}: there is no transaction whose rows could be "
                "taken back; run it with once.in_transaction(connection), or roll back yourself"
            )
        if self._closed or self._depth != depth:
            raise ConfigurationError(
                f"rollback() of {self.operation!r}: call it in its own body, while that runs and "
                "outside of operations within it"
            )

    @property
    def _repeat_until(self) -> int:
        """Until when a store call that failed is worth repeating."""
        return self._deadline if self._deadline != _NEVER else 0

    def _extend(self, deadline: int) -> None:
        self._deadline = max(self._deadline, deadline)

    def _mark_lost(self) -> None:
        if self._closed or self._lost:
            return
        self._lost = True
        if self._on_lost is not None:
            self._on_lost()

    def _close(self) -> None:
        """The body is through; from here on losing the lease is the store's business."""
        self._closed = True

    def _begin_step(
        self,
        name: str,
        *,
        request: Any,
        probed: bool,
        probe_grace: Duration | None,
        codec: Codec,
    ) -> StepCall:
        self.check()
        self._refuse_here(name, probed or request is not None)
        mine = object()
        if self._running.setdefault(name, mine) is not mine:
            raise self._used_twice(name, "is running already")
        try:
            self._refuse_ended(name)  # only now: nobody else can end it meanwhile
            saved = self._steps.get(name)  # only now: whoever ran it before us has ended
            if saved is None and len({*self._steps, *self._running}) > STEPS_MAX:
                raise InvalidKey(
                    f"step {name!r} would be number {STEPS_MAX + 1}; an operation has at most "
                    f"{STEPS_MAX} steps",
                    operation=self.operation,
                    tag=self._identity.tag,
                )
            return step_call(
                name,
                self.child_key(name),
                saved,
                request=request,
                probed=probed,
                probe_grace=probe_grace,
                codec=codec,
                policy=self._policy,
            )
        except BaseException:
            self._running.pop(name, None)
            raise

    def _refuse_ended(self, name: str) -> None:
        """A step gives its result once per attempt: a second one of that name would be skipped and
        given the first one's result, whatever it was meant to send. One that raised, or that an
        earlier attempt has finished, may be called."""
        if name in self._given:
            raise self._used_twice(name, "has given its result already")

    def _refuse_repeated(self, name: str, is_queued: bool) -> None:
        """The same before a step is started in a thread or task of its own."""
        if is_queued or name in self._running:
            raise self._used_twice(name, "is running already")
        self._refuse_ended(name)

    def _used_twice(self, name: str, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"step {name!r} {why} in this attempt, and nothing was sent for the second one; give "
            f"each step its own name, and number those of a loop: f'{{name}}:{{number}}'",
            operation=self.operation,
            tag=self._identity.tag,
        )

    def _refuse_here(self, name: str, relies_on_record: bool) -> None:
        if self._closed:
            raise ConfigurationError(
                f"step {name!r} came after the body of {self.operation!r} had ended; wait for "
                "every step before you return"
            )
        if self._depth and self._running:
            raise ConfigurationError(
                f"step {name!r}: in a transaction steps run one after the other, since they are "
                "written on its one connection"
            )
        if self._depth and relies_on_record:
            raise ConfigurationError(
                f"step {name!r}: in a transaction request= and probe= cannot be kept, since a "
                "rollback takes what was written about the step along; run it outside"
            )

    def _doubt_step(self, call: StepCall) -> None:
        """It may have been sent, and what the store has of it is not known: what is tried next
        sends the same, and writes it down first."""
        name = call.plan.name
        self._steps[name] = Step(name, False, call.plan.intent, UNSAVED)
        self._running.pop(name, None)

    def _end_step(self, call: StepCall, outcome: StepOutcome) -> Any:
        """The step's value for the body, or the error to raise there."""
        name = call.plan.name
        if outcome.unrecorded:
            self._doubt_step(call)
            raise StoreUnavailable(
                f"step {name!r} could not be recorded ({outcome.error}); retry with the same key",
                operation=self.operation,
                tag=self._identity.tag,
            ) from outcome.error
        if outcome.called and outcome.error is not None:
            # Its intent is on record: what is tried next must know that it may have arrived.
            self._steps[name] = Step(name, False, call.plan.intent, 0)
        elif outcome.error is None and not outcome.lost:
            self._steps[name] = Step(name, True, outcome.body, 0)
            self._given.add(name)  # before it stops running: no second one comes in between
        self._running.pop(name, None)
        if outcome.lost:
            self._lost = True
            self.check()
        if outcome.error is not None:
            raise outcome.error
        try:
            return value_for_body(call, outcome)
        except NotReplayable as error:
            self._given.discard(name)
            where = {"operation": self.operation, "tag": self._identity.tag}
            raise NotReplayable(str(error), value=error.value, **where) from error
