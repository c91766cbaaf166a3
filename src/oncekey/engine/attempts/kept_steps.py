"""Tells of steps that outlive the transaction of the app that called them.

The result of a step is stored at once: that is its promise for calls to other services. What the
step wrote in a transaction of the app's own is not there before that commits. If the commit comes
after the handler and fails, the rows are gone and the step is finished, so a retry would succeed
without them. oncekey cannot see what a step wrote. So whoever waits for the late part of a run says
here that it has failed, and the log names the steps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from oncekey.core.events import Event, EventKind
from oncekey.core.origin import origin_of
from oncekey.engine.attempts.attempt_base import AttemptBase
from oncekey.engine.event_log import LogLine, sentence

_NAMES_MAX: Final = 10
_log = logging.getLogger("oncekey")


@contextmanager
def late_part(attempt: AttemptBase | None) -> Iterator[None]:
    """What an app does when its handler has returned, and may commit in."""
    try:
        yield
    except BaseException:
        warn_of_kept_steps(attempt)
        raise


def warn_of_kept_steps(attempt: AttemptBase | None) -> None:
    """The late part of this attempt has failed: log which of its steps stay finished, if any. In a
    caller's transaction (`_depth`) none does, because their records are rolled back with it."""
    if attempt is None or attempt._depth or not attempt._has_steps:
        return
    names = attempt._steps.given
    if not names:
        return
    listed = ", ".join(map(repr, names[:_NAMES_MAX]))
    if len(names) > _NAMES_MAX:
        listed += f" and {len(names) - _NAMES_MAX} more"
    text = (
        "its handler has returned, and what came after it failed, such as the commit of your app. "
        f"These steps stay finished, and a retry skips them: {listed}. Rows that they wrote in the "
        "transaction that was rolled back are not written again. Write rows of your own outside "
        "of steps"
    )
    origin = origin_of(attempt._job.claim.label)
    identity = attempt._job.identity
    event = Event(
        EventKind.RELEASED,
        identity.operation,
        identity.scope,
        identity.tag,
        surface=origin.surface,
        route=origin.route,
    )
    _log.warning("%s", sentence(event, LogLine(logging.WARNING, text)))
