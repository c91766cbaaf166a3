"""The current attempt and step at the place of a call, for tests of the context."""

from __future__ import annotations

from typing import Any

from oncekey import current_attempt, current_step

Seen = tuple[Any, str | None]
NOTHING: Seen = (None, None)


def current() -> Seen:
    """The current attempt and the name of the current step; the two never disagree."""
    attempt, step = current_attempt(), current_step()
    if step is None:
        return attempt, None
    assert attempt is not None
    assert step.attempt is attempt
    assert step.key == attempt.child_key(step.name)
    return attempt, step.name
