"""The attempt and the step that the running code belongs to, in a context variable.

It is set around every body and every step. So each thread and each task sees its own, and code far
below, such as an HTTP client, can send the step's child key without being given it.

A context is copied into the tasks that a body starts, and those may outlive the body. Therefore an
attempt or a step that has ended is never current: such a task must not send the key of a step that
is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.attempt_steps import RunningStep

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
