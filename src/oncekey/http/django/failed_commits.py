"""Finds out that a guarded view has returned and its transaction could not be committed.

A view below `@transaction.atomic` and its commit are one call to the guard, so the traceback tells
them apart: that of a failed commit goes through `Atomic.__exit__`, that of a view does not. Inside
of IdempotencyMiddleware Django makes a response of the error, and sends a signal before it does.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from django.core.signals import got_request_exception
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic

from oncekey.engine.attempts.attempt_base import current_attempt
from oncekey.engine.attempts.kept_steps import warn_of_kept_steps

_EXIT: Final = Atomic.__exit__.__code__
# Called when the commit is through, so what fails there takes no rows back.
_HOOKS: Final = BaseDatabaseWrapper.run_and_clear_commit_hooks.__code__


def is_failed_commit(error: BaseException | None) -> bool:
    """Whether this error was raised when a block of `transaction.atomic` was left."""
    codes = set()
    step = error.__traceback__ if error is not None else None
    while step is not None:
        codes.add(step.tb_frame.f_code)
        step = step.tb_next
    return _EXIT in codes and _HOOKS not in codes


def watch_failed_commits() -> None:
    """Have the log tell of steps that a failed commit inside of the middleware leaves behind."""
    got_request_exception.connect(_on_error, weak=False, dispatch_uid=__name__)


def _on_error(**_: Any) -> None:
    if is_failed_commit(sys.exc_info()[1]):
        warn_of_kept_steps(current_attempt())
