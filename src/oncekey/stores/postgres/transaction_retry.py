"""Runs a whole transaction and retries it after a serialization failure or a deadlock.

At SERIALIZABLE and REPEATABLE READ the server may refuse a transaction that conflicts with another
one (40001), and at any level two transactions may deadlock (40P01). Then the whole transaction has
to be run again, which is safe because nothing of the first try is left. This module knows no
driver: any context manager that begins, commits and rolls back will do.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TypeVar

from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres import errors

C = TypeVar("C")
T = TypeVar("T")

TRANSACTION_TRIES_DEFAULT = 3
_PAUSE_FIRST_SECONDS = 0.01


def run_transaction(
    begin: Callable[[], AbstractContextManager[C]],
    work: Callable[[C], T],
    *,
    tries: int = TRANSACTION_TRIES_DEFAULT,
) -> T:
    """`with begin() as connection: return work(connection)`, at most `tries` times.

    `begin` opens a new transaction each time; `work` does everything that belongs into it,
    including `once.in_transaction(connection).run(...)`. Only a serialization failure or a deadlock
    is retried; any other error is raised at once.
    """
    _check(tries)
    for is_last in _tries(tries):
        try:
            with begin() as connection:
                return work(connection)
        except Exception as error:
            if is_last or not is_conflict(error):
                raise
        time.sleep(_pause())
    raise AssertionError("the last try returns or raises")


async def run_transaction_async(
    begin: Callable[[], AbstractAsyncContextManager[C]],
    work: Callable[[C], Awaitable[T]],
    *,
    tries: int = TRANSACTION_TRIES_DEFAULT,
) -> T:
    """`async with begin() as connection: return await work(connection)`, at most `tries` times. See
    run_transaction."""
    _check(tries)
    for is_last in _tries(tries):
        try:
            async with begin() as connection:
                return await work(connection)
        except Exception as error:
            if is_last or not is_conflict(error):
                raise
        await asyncio.sleep(_pause())
    raise AssertionError("the last try returns or raises")


def is_conflict(error: BaseException) -> bool:
    """True if the transaction failed only because it conflicted with another one."""
    return errors.sqlstate_of(error) in errors.SERIALIZATION


def _tries(tries: int) -> list[bool]:
    """For each try, True if it is the last one."""
    return [number == tries - 1 for number in range(tries)]


def _pause() -> float:
    return random.uniform(0, _PAUSE_FIRST_SECONDS)


def _check(tries: int) -> None:
    if not isinstance(tries, int) or tries < 1:
        raise ConfigurationError(f"tries={tries!r} must be 1 or more")
