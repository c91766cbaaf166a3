"""The loop of `oncekey recover`: finishes abandoned operations of a Once or an AsyncOnce.

Owns the event loop that an AsyncOnce needs. Prints nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from oncekey import AsyncOnce, Completed, Completion, Once
from oncekey.cli.open_store import UsageProblem
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.port import AsyncPort

OnCompletion = Callable[[Completion], object]
Recover = Callable[[int, OnCompletion], Completed]


@contextmanager
def recover_function(once: Any, name: str) -> Iterator[Recover]:
    """Gives a function that recovers up to `limit` operations; closes the engine at the end."""
    if isinstance(once, Once):
        _refuse_unregistered(once, name)
        with once:
            yield lambda limit, on_completion: once.complete(limit, on_completion=on_completion)
    elif isinstance(once, AsyncOnce):
        _refuse_unregistered(once, name)
        AsyncPort(once).run_nothing_in_background()
        with asyncio.Runner() as runner:
            try:
                yield lambda limit, on_completion: runner.run(
                    once.complete(limit, on_completion=on_completion)
                )
            finally:
                runner.run(once.close())
    else:
        raise UsageProblem(
            f"{name} is a {type(once).__name__}; name the Once or AsyncOnce that your operations "
            "are registered with"
        )


def _refuse_unregistered(once: Once | AsyncOnce, name: str) -> None:
    if not once.operations:
        raise UsageProblem(
            f"no operation is registered with {name}; name the module that registers them, by "
            "once.operation() or once.recover_with(), when it is imported"
        )


def recover_until_nothing_is_due(
    recover: Recover, limit: int, on_completion: OnCompletion
) -> Completed:
    """Recovers until nothing is due. What failed now is not due again before its pause is over."""
    done: list[Completion] = []
    looked = 0
    while True:
        completed = recover(limit, on_completion)
        done += completed.done
        looked += completed.looked
        if not completed.looked:
            return Completed(tuple(done), looked, completed.watching)


def recover_or_error(
    recover: Recover, limit: int, on_completion: OnCompletion
) -> Completed | StoreUnavailable:
    """Recovers up to `limit` operations; returns the error if the store is down."""
    try:
        return recover(limit, on_completion)
    except StoreUnavailable as error:
        return error
