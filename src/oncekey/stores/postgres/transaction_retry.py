"""Whole transactions, tried again where PostgreSQL says so.

At SERIALIZABLE and REPEATABLE READ the server may refuse a transaction that met another one
(40001), and at any level two may lock each other out (40P01). Then all of it has to be done again
from the start, and doing it again is safe: nothing of the first try is left. Knows no driver: any
context manager that begins, commits and rolls back will do.
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

    `begin` opens a fresh transaction each time, `work` does everything that belongs into it,
    `once.in_transaction(connection).run(...)` included. Only a serialization failure or a deadlock
    is tried again; any other error is raised at once.
    """
    _check(tries)
    for last in _turns(tries):
        try:
            with begin() as connection:
                return work(connection)
        except Exception as error:
            if last or not must_be_repeated(error):
                raise
        time.sleep(_pause())
    raise AssertionError("the last turn returns or raises")


async def run_transaction_async(
    begin: Callable[[], AbstractAsyncContextManager[C]],
    work: Callable[[C], Awaitable[T]],
    *,
    tries: int = TRANSACTION_TRIES_DEFAULT,
) -> T:
    """The same for asyncio."""
    _check(tries)
    for last in _turns(tries):
        try:
            async with begin() as connection:
                return await work(connection)
        except Exception as error:
            if last or not must_be_repeated(error):
                raise
        await asyncio.sleep(_pause())
    raise AssertionError("the last turn returns or raises")


def must_be_repeated(error: BaseException) -> bool:
    """Whether the transaction failed only because of another one."""
    return errors.state_of(error) in errors.SERIALIZATION


def _turns(tries: int) -> list[bool]:
    return [turn == tries - 1 for turn in range(tries)]


def _pause() -> float:
    return random.uniform(0, _PAUSE_FIRST_SECONDS)


def _check(tries: int) -> None:
    if not isinstance(tries, int) or tries < 1:
        raise ConfigurationError(f"tries={tries!r} must be 1 or more")
