"""What both runners share: how far one run has come, and the lock on a caller's connection.

A signal's handler may raise anywhere (Ctrl-C, a worker's time limit), between any two instructions
of ours. What must be done about the key then has to be known, so each step of a run is recorded
here in one assignment, and the runner closes the key before the interruption goes on to the caller
(I14).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from oncekey.core.effects import Grant, Task
from oncekey.core.errors import ConfigurationError
from oncekey.core.events import EventKind
from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.attempt_outcomes import Outcomes
from oncekey.engine.jobs import Job, JobFactory

# How often it is tried to close the key of an interrupted run, each time it is interrupted again.
CLOSE_TRIES: Final = 3


class _Nothing:
    """No value yet: a body may return None."""


NOTHING: Final = _Nothing()


class Progress:
    """How far one run has come.

    task     what is claimed, or may have been
    spare    the owner of a second claim, if the first one was too old to begin with
    attempt  the body's attempt, once the key is claimed
    outer    what was current outside of the body
    begun    the body may have begun
    value    what the body returned
    error    what it raised
    ended    nothing more has to be done about the key
    """

    __slots__ = ("attempt", "begun", "ended", "error", "outer", "spare", "task", "value")

    def __init__(self, task: Task, outer: Any) -> None:
        self.task = task
        self.spare = b""
        self.attempt: AttemptBase | None = None
        self.outer = outer
        self.begun = False
        self.value: Any = NOTHING
        self.error: BaseException | None = None
        self.ended = False

    def owners(self) -> list[bytes]:
        """The owners whose claims may be there: the first one, the last one that was too old to
        begin with, and that of the claim after it."""
        held = self.attempt._grant.owner if self.attempt is not None else b""
        return [owner for owner in dict.fromkeys((self.task.owner, held, self.spare)) if owner]


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

    def _emit_claimed(self, job: Job, grant: Grant) -> None:
        kind = EventKind.TAKEOVER if grant.taken_over else EventKind.CLAIMED
        self._events.emit(kind, job.identity, job.started_at, grant.fence, grant.attempt)


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
_held: dict[int, tuple[Any, object, int]] = {}


def nesting_depth(connection: Any) -> int:
    """How many operations, each in the body of the one before, are under way on a connection."""
    return _held.get(id(connection), (None, None, 0))[2]


@contextmanager
def hold_connection(connection: Any, holder: object) -> Iterator[None]:
    """Hold a caller's connection for this thread or task; refuse if another one holds it.

    A connection has one transaction and one stack of savepoints: if two operations overlapped on
    it, a rollback of one would roll back the other. An operation inside another's body is fine,
    because it ends first.
    """
    key = id(connection)
    before: tuple[Any, object, int] | None = None
    mine: tuple[Any, object, int] | None = None
    try:
        with _lock:
            before = _held.get(key)
            if before is not None and before[1] != holder:
                raise ConfigurationError(
                    "another operation is under way on this connection; one transaction cannot "
                    "hold two at once. Run them one after the other, or give each a connection of "
                    "its own"
                )
            mine = (connection, holder, 1 if before is None else before[2] + 1)
            _held[key] = mine
        yield
    finally:
        with _lock:
            # Also if a signal's handler raised directly after it was taken.
            if mine is not None and _held.get(key) is mine:
                if before is None:
                    del _held[key]
                else:
                    _held[key] = before
