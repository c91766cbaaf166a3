"""What Attempt and AsyncAttempt have in common, and which attempt or step the running code belongs
to.

`AttemptBase` owns the running attempt's deadline and whether it was lost; its steps are in
attempt_steps.py. The sync and the async attempt add `step`, `parallel`, `renew` and `rollback`.

A context variable is set around every body and every step. So each thread and each task sees its
own, and code far below, such as an HTTP client, can send the step's child key without being given
it. A context is copied into the tasks that a body starts, and those may outlive the body. Therefore
an attempt or a step that has ended is never current: such a task must not send the key of a step
that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from oncekey.core.effects import Effect, Grant
from oncekey.core.errors import ConfigurationError, LeaseLost
from oncekey.core.identity import Identities
from oncekey.core.step_flow import StepOutcome, step
from oncekey.engine.attempts.attempt_steps import AttemptSteps, RunningStep
from oncekey.engine.clock import Clock
from oncekey.engine.jobs import Job

_NEVER = 2**62


class AttemptBase:
    """One run of a body: its identity, its fence, and its hold on the key."""

    __slots__ = (
        "_closed",
        "_deadline",
        "_depth",
        "_grant",
        "_job",
        "_lost",
        "_on_lost",
        "_runner",
        "_steps_made",
    )

    def __init__(self, runner: Any, job: Job, grant: Grant) -> None:
        self._runner = runner
        self._job = job
        self._grant = grant
        self._deadline = grant.deadline
        self._depth = 0
        self._lost = False
        self._closed = False
        self._steps_made: list[AttemptSteps] = []
        self._on_lost: Callable[[], object] | None = None

    @property
    def scope(self) -> str:
        return self._job.scope

    @property
    def operation(self) -> str:
        return self._job.operation

    @property
    def key(self) -> str:
        return self._job.key

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
        """Whether this operation is run again if its owner dies."""
        return self._job.policy.retry_safe

    @property
    def connection(self) -> Any:
        """The caller's connection, if this attempt runs in its transaction; else None."""
        return self._runner._connection

    @property
    def lost(self) -> bool:
        """True once this attempt may have been overtaken: stop, nothing of it will be stored.

        This reads the clock too: after a pause of the whole process no heartbeat has noticed yet.
        """
        return self._lost or self._clock.now() >= self._deadline

    @property
    def _is_late(self) -> bool:
        """Late by the clock alone; whether it was overtaken, only the store knows."""
        return not self._lost and self._clock.now() >= self._deadline

    def check(self) -> None:
        """Raise LeaseLost if this attempt was overtaken. Call it before an irreversible act."""
        if self.lost:
            raise LeaseLost(
                "this attempt fell silent longer than its lease and may have been overtaken; "
                "its outcome will not be stored. Retry with the same key",
                operation=self.operation,
                tag=self._job.identity.tag,
            )

    def child_key(self, name: str) -> str:
        """The key to send downstream for `name`: the same on every retry of this operation."""
        return self._identities.child_key(self._job.identity, name)

    def child_uuid(self, name: str) -> UUID:
        """The same for providers that take a UUID, or no more than 36 characters."""
        return self._identities.child_uuid(self._job.identity, name)

    # --- for the engine ---------------------------------------------------------------------

    @property
    def _clock(self) -> Clock:
        clock: Clock = self._runner.jobs.clock
        return clock

    @property
    def _identities(self) -> Identities:
        identities: Identities = self._runner.jobs.identities
        return identities

    @property
    def _steps(self) -> AttemptSteps:
        """The steps of this attempt. They are made on first use, since most attempts have none."""
        if not self._steps_made:
            # Two threads may both append; everybody uses the first.
            self._steps_made.append(AttemptSteps(self._grant.steps))
        return self._steps_made[0]

    @property
    def _has_steps(self) -> bool:
        """True if a step of this or of an earlier attempt has begun."""
        if not self._steps_made and not self._grant.steps:
            return False
        return bool(self._steps.stored)

    def _enter_transaction(self, depth: int) -> None:
        """Run without a deadline: in the caller's transaction no lease can end. Store calls are
        not repeated there, because the transaction holds locks that others wait for. `depth` counts
        the operations in bodies of operations; only the innermost can be rolled back."""
        self._deadline = _NEVER
        self._depth = depth

    def _check_rollback(self, depth: int) -> None:
        """Raise ConfigurationError unless a rollback now would undo this attempt's own rows."""
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
        """Until when a store call that failed is repeated; 0 in a transaction."""
        return self._deadline if self._deadline != _NEVER else 0

    def _step_flow(self, running: RunningStep) -> Generator[Effect, object, StepOutcome]:
        return step(
            self._grant,
            self._repeat_until,
            running.name,
            running.intent,
            running.saved,
            running.probe_grace,
        )

    def _extend(self, deadline: int) -> None:
        self._deadline = max(self._deadline, deadline)

    def _mark_lost(self) -> None:
        if self._closed or self._lost:
            return
        self._lost = True
        if self._on_lost is not None:
            self._on_lost()

    def _is_running(self) -> bool:
        """Whether the run that this belongs to goes on. Its heartbeat asks before it renews."""
        return True

    def _close(self) -> None:
        """The body has ended: from here on only the store decides whether the lease was lost."""
        self._closed = True


# The step if there is one, else the attempt, so that no object is made for a body.
_current: ContextVar[AttemptBase | RunningStep | None] = ContextVar("oncekey_current", default=None)


def current_attempt() -> AttemptBase | None:
    """The attempt whose body this code runs in; None outside of one, or once it has ended."""
    current = _current.get()
    attempt = current.attempt if isinstance(current, RunningStep) else current
    return attempt if attempt is not None and not attempt._closed else None


def current_step() -> RunningStep | None:
    """The step this code runs in; None outside of one, or once it has ended."""
    current = _current.get()
    if not isinstance(current, RunningStep) or current.attempt._closed:
        return None
    return current if current._open else None


# `enter` makes an attempt current when its body begins; `leave` takes what `enter` returned.
enter = _current.set
leave = _current.reset
entered = _current.get


@contextmanager
def in_step(step: RunningStep) -> Iterator[None]:
    """Make the step current while its function runs."""
    token = _current.set(step)
    try:
        yield
    finally:
        step._open = False
        _current.reset(token)
