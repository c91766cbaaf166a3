"""What both runners share: the parts of an engine, and the lock on a caller's connection."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from oncekey.core.attempt_flow import Flow
from oncekey.core.attempt_flow import attempt as attempt_flow
from oncekey.core.commands import Command, Reply
from oncekey.core.effects import Grant
from oncekey.core.errors import ConfigurationError
from oncekey.core.events import EventKind
from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.attempt_outcomes import Outcomes
from oncekey.engine.batch import (
    Sent,
    faults_in,
    not_answered,
)
from oncekey.engine.jobs import Job, JobFactory
from oncekey.engine.observers import End
from oncekey.engine.progress import Progress

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
