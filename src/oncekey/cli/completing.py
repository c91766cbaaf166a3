"""Finishing left-behind operations from the command line, round by round, in either colour.

Owns the rounds and the event loop an AsyncOnce needs. Prints nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from oncekey import AsyncOnce, Completed, Completion, Once
from oncekey.cli.opening import UsageProblem
from oncekey.core.errors import StoreUnavailable

Tell = Callable[[Completion], object]
Round = Callable[[int, Tell], Completed]


@contextmanager
def rounds_of(once: Any, name: str) -> Iterator[Round]:
    """A function that does one round; closes the engine in the end."""
    if isinstance(once, Once):
        _refuse_nothing(once, name)
        with once:
            yield lambda limit, tell: once.complete(limit, tell=tell)
    elif isinstance(once, AsyncOnce):
        _refuse_nothing(once, name)
        once._background.clear()  # between two rounds the loop stands still, and they would with it
        with asyncio.Runner() as runner:
            try:
                yield lambda limit, tell: runner.run(once.complete(limit, tell=tell))
            finally:
                runner.run(once.close())
    else:
        raise UsageProblem(
            f"{name} is a {type(once).__name__}; name the Once or AsyncOnce that your operations "
            "are registered with"
        )


def _refuse_nothing(once: Once | AsyncOnce, name: str) -> None:
    if not once.operations:
        raise UsageProblem(
            f"no operation is registered with {name}; name the module that registers them, by "
            "once.operation() or once.recover_with(), when it is imported"
        )


def until_nothing_is_due(one: Round, limit: int, tell: Tell) -> Completed:
    """Round after round; what failed now is not due again before its pause is over."""
    done: list[Completion] = []
    looked = 0
    while True:
        completed = one(limit, tell)
        done += completed.done
        looked += completed.looked
        if not completed.looked:
            return Completed(tuple(done), looked, completed.watching)


def survived(one: Round, limit: int, tell: Tell) -> Completed | StoreUnavailable:
    """A round that failed because the store is down is another round's business."""
    try:
        return one(limit, tell)
    except StoreUnavailable as error:
        return error
