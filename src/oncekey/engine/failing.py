"""Which of several errors is raised, where steps ran side by side and more than one failed.

Not as a group: what a body raises decides what becomes of its key, and that is read off one error.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncekey.core.errors import NotStarted, Terminal


def first_of(errors: Sequence[BaseException]) -> BaseException:
    """The one that says most: an interruption, then a final failure, then the first that came;
    "nothing happened" last, for it is true only if all of them say so. The others are noted."""
    chosen = min(errors, key=_rank)
    for other in errors:
        if other is not chosen:
            chosen.add_note(f"beside it a step failed with {type(other).__name__}: {other}")
    return chosen


def _rank(error: BaseException) -> int:
    if not isinstance(error, Exception):
        return 0
    if isinstance(error, Terminal):
        return 1
    return 3 if isinstance(error, NotStarted) else 2
