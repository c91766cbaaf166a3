"""Which attempt and which step the code at hand is running in.

Set around every body and every step, in a context variable: so each thread and each task sees its
own, and code far below (an HTTP client) can send the step's child key without being handed it.

A context is copied into the tasks a body starts, and those may outlive it. What has ended is
therefore never current: a straggler must not send the key of a step that is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.attempt_steps import RunningStep

# The step where there is one, else the attempt: set for every body, so nothing is made for it.
_here: ContextVar[AttemptBase | RunningStep | None] = ContextVar("oncekey_here", default=None)


def current_attempt() -> AttemptBase | None:
    """The attempt whose body this code runs in; None outside of one, or once it has ended."""
    here = _here.get()
    attempt = here.attempt if isinstance(here, RunningStep) else here
    return attempt if attempt is not None and not attempt._closed else None


def current_step() -> RunningStep | None:
    """The step this code runs in; None outside of one, or once it has ended."""
    here = _here.get()
    if not isinstance(here, RunningStep) or here.attempt._closed:
        return None
    return here if here._open else None


# A body begins, in this context; what `enter` returns is given to `leave` when it has ended.
enter = _here.set
leave = _here.reset
entered = _here.get


@contextmanager
def in_step(step: RunningStep) -> Iterator[None]:
    """Make the step current while its function runs."""
    token = _here.set(step)
    try:
        yield
    finally:
        step._open = False
        _here.reset(token)
