"""What both runners share: how far a run has come, the parts of an engine, a lock on a connection.

A signal's handler may raise anywhere (Ctrl-C, a worker's time limit), between any two instructions
of ours. What must be done about the key then has to be known, so each step of a run is recorded in
its `Progress` in one assignment, and the runner closes the key before the interruption goes on to
the caller (I14).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any, Final

from oncekey.core.attempt_flow import Flow
from oncekey.core.attempt_flow import attempt as attempt_flow
from oncekey.core.commands import Command, Finish, Reply
from oncekey.core.effects import Grant
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.events import EventKind
from oncekey.engine.attempts.attempt_base import AttemptBase
from oncekey.engine.attempts.attempt_outcomes import Outcomes
from oncekey.engine.batches.batch import (
    Sent,
    faults_in,
    not_answered,
)
from oncekey.engine.event_bus import End, Measured
from oncekey.engine.jobs import Job, JobFactory


class _Nothing:
    """No value yet: a body may return None."""


NOTHING: Final = _Nothing()


class Progress:
    """How far one run of a job has come.

    claim    the claim that was sent last, or is about to be; `job.claim` is the first one
    reply    the reply to it; None before it came
    handed   a reply that came from a duplicate while the run slept, for its next claim
    spare    the owner of a second claim, if the first one was too old to begin with
    attempt  the body's attempt, once the key is claimed
    outer    what was current outside of the body
    begun    the body may have begun
    value    what the body returned
    error    what it raised
    stored   the command that has stored how the body ended, and when it was sent
    ended    nothing more has to be done about the key
    measured when the body began and ended, if anybody listens
    running  in a thread: a lock that is held while the run goes on, so that a heartbeat can see it
    """

    __slots__ = (
        "attempt",
        "begun",
        "claim",
        "ended",
        "error",
        "handed",
        "job",
        "measured",
        "outer",
        "reply",
        "running",
        "spare",
        "stored",
        "value",
    )

    running: Lock

    def __init__(self, job: Job, outer: Any) -> None:
        self.job = job
        self.claim = job.claim
        self.reply: Reply | StoreUnavailable | None = None
        self.handed: Reply | StoreUnavailable | None = None
        self.spare = b""
        self.attempt: AttemptBase | None = None
        self.outer = outer
        self.begun = False
        self.value: Any = NOTHING
        self.error: BaseException | None = None
        self.stored: tuple[Finish, int] | None = None
        self.ended = False
        self.measured: Measured | None = None

    def owners(self) -> list[bytes]:
        """The owners whose claims may be there: the first one, the last one that was too old to
        begin with, and that of the claim after it."""
        held = self.attempt._grant.owner if self.attempt is not None else b""
        owners = (self.job.claim.owner, held, self.spare)
        return [owner for owner in dict.fromkeys(owners) if owner]


# How often it is tried to close the key of an interrupted run, each time it is interrupted again.
CLOSE_TRIES: Final = 3


Apply = Callable[[Sequence[Command]], list[Reply]]


class RunnerBase:
    """What a runner has, whatever it waits on."""

    def __init__(
        self,
        jobs: JobFactory,
        outcomes: Outcomes,
        *,
        coalesce: bool,
        max_in_flight: int,
        connection: Any,
    ) -> None:
        self.jobs = jobs
        self._outcomes = outcomes
        self._events = outcomes.events
        self._clock = jobs.clock
        self._coalesce = coalesce
        self._max_in_flight = max_in_flight
        self._connection = connection

    def _emit_claimed(self, progress: Progress, grant: Grant) -> None:
        """The key is claimed, and somebody listens."""
        kind = EventKind.TAKEOVER if grant.taken_over else EventKind.CLAIMED
        job = progress.job
        progress.measured = self._events.emit_claimed(kind, job.claim, job.started_at, grant)

    def step_begins(self, attempt: AttemptBase, name: str) -> list[End]:
        """A step's function is about to be called; what is returned is to be called after it."""
        if not self._events.observers:
            return []
        job = attempt._job
        return self._events.step_begins(job.operation, job.identity.tag, name)


def flow_of(job: Job) -> Flow:
    """The attempt flow of a job."""
    policy = job.policy
    return attempt_flow(job.claim, policy.times, policy.recover is not None, job.arguments)


def one_by_one(apply: Apply, now: Callable[[], int], transaction: object) -> Callable[..., Sent]:
    """Sends single commands to a store that never waits, or in the caller's transaction."""
    faults = faults_in(transaction)

    def send(command: Command, deadline: int | None = None) -> Sent:
        sent_at = now()
        try:
            return apply((command,))[0], sent_at
        except faults as error:
            return not_answered(error, command), sent_at

    return send


def whole_call(fn: Any, /, *args: Any, **kwargs: Any) -> defaultdict[int, Any]:
    """A call of `fn` that is made by `[0]`, so that no signal handler can run between its return
    and the assignment of its value.

    After a call Python runs pending signal handlers before it gives the caller the value, and an
    exception of a handler then loses it. It does not where a plain function returns to another,
    nor after a subscription.
    """
    return defaultdict(partial(fn, *args, **kwargs))


# --- a caller's connection ------------------------------------------------------------------------

_lock = threading.Lock()
# By id, together with the connection itself: while it is held, no other object gets that id.
_Hold = tuple[Any, object, int]
_held: dict[int, _Hold] = {}


def nesting_depth(connection: Any) -> int:
    """How many operations, each in the body of the one before, are under way on a connection."""
    return _held.get(id(connection), (None, None, 0))[2]


class HeldConnection:
    """A caller's connection, held for a thread or task while an operation runs on it, by `with`.

    A connection has one transaction and one stack of savepoints: if two operations overlapped on
    it, a rollback of one would roll back the other. So it is refused if another thread or task
    holds it. An operation inside another's body is fine, because it ends first.
    """

    __slots__ = ("_before", "_connection", "_holder", "_mine")

    def __init__(self, connection: Any, holder: object) -> None:
        self._connection = connection
        self._holder = holder
        self._before: _Hold | None = None
        self._mine: _Hold | None = None

    def __enter__(self) -> None:
        connection, holder = self._connection, self._holder
        try:
            with _lock:
                before = self._before = _held.get(id(connection))
                if before is not None and before[1] != holder:
                    raise ConfigurationError(
                        "another operation is under way on this connection; one transaction cannot "
                        "hold two at once. Run them one after the other, or give each a connection "
                        "of its own"
                    )
                self._mine = (connection, holder, 1 if before is None else before[2] + 1)
                _held[id(connection)] = self._mine
        except BaseException:  # perhaps a signal's handler raised directly after it was taken
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        key, before, mine = id(self._connection), self._before, self._mine
        with _lock:
            if mine is not None and _held.get(key) is mine:
                if before is None:
                    del _held[key]
                else:
                    _held[key] = before
