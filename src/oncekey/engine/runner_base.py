"""Records how far one run has come, for whoever has to finish it after an interruption.

A signal's handler may raise anywhere (Ctrl-C, a task's time limit), between any two instructions of
ours. Whatever is owed to the key then must be known: so each step is written down here in one
assignment, and what is owed is made up for before the interruption goes on to the caller (I14).
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any, Final

from oncekey.core.effects import Task
from oncekey.engine.attempt_base import AttemptBase

# What is tried to leave a key in order, each time a further interruption or failure comes.
MAKE_UP_TRIES: Final = 3


class _Nothing:
    """No value yet: a body may return None."""


NOTHING: Final = _Nothing()


class Progress:
    """How far one run has come.

    task     what is claimed, or may have been
    spare    the owner of a claim anew, if the one before was too old to begin with
    attempt  the body's attempt, once the key is ours
    outer    what was current outside of the body
    begun    the body may have begun
    value    what the body returned
    error    what it raised
    ended    nothing more is owed to the key
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
        """Whose claim may be there: the first one's, the last one's that was too old to begin
        with, or that of the claim anew."""
        held = self.attempt._grant.owner if self.attempt is not None else b""
        return [owner for owner in dict.fromkeys((self.task.owner, held, self.spare)) if owner]


def whole_call(fn: Any, /, *args: Any, **kwargs: Any) -> defaultdict[int, Any]:
    """A call of `fn` that is made by `[0]`, so that no signal handler comes between its return and
    our having its value.

    After a call Python looks for signals before it gives the caller the value, and an exception of
    a handler then costs it. It does not where a plain function returns to another, nor after a
    subscription.
    """
    return defaultdict(partial(fn, *args, **kwargs))
