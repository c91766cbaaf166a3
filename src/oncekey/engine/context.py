"""Which attempt and which step the code at hand is running in.

Set around every body and every step, in a context variable: so each thread and each task sees its
own, and code far below (an HTTP client) can send the step's child key without being handed it.

A context is copied into the tasks a body starts, and those may outlive it. What has ended is
therefore never current: a straggler must not send the key of a step that is over.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from oncekey.engine.attempt_base import AttemptBase


class RunningStep:
    """A step under way: its name, its child key, and which request that key was sent with."""

    __slots__ = ("_lock", "_open", "_sent", "attempt", "key", "name")

    def __init__(self, attempt: AttemptBase, name: str, key: str) -> None:
        self.attempt = attempt
        self.name = name
        self.key = key
        self._open = True
        self._sent: bytes | None = None
        self._lock = threading.Lock()

    def admits(self, request: bytes) -> bool:
        """Whether the step's key may go with this request (by digest): with the first one, and
        with the same again. One key for two requests would be refused, or worse, answered with
        the other one's answer."""
        with self._lock:
            if self._sent is None:
                self._sent = request
            return self._sent == request


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
def in_step(attempt: AttemptBase, name: str, key: str) -> Iterator[RunningStep]:
    """A step's function runs in here."""
    step = RunningStep(attempt, name, key)
    token = _here.set(step)
    try:
        yield step
    finally:
        step._open = False
        _here.reset(token)
