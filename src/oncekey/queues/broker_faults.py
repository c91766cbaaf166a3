"""Which failures of a broker's call a new connection may cure, and which end a consumer: one rule.

    what a call raised                               the consumer
    ------------------------------------------------ -------------------------------------------
    BrokerUnavailable                                goes on after a pause
    another error of oncekey: the broker refuses     ends with it
    any other exception, whatever class it has       goes on after a pause, as for the first
    a cancellation that nobody asked for             the same: clients cancel what is in flight when
                                                     they lose a connection
    a cancellation of the caller; KeyboardInterrupt  ends with it

Clients raise more than they say: aiormq gives a bare `Exception` to the calls that are in flight
when a connection is closed. So no broker lists what its client may raise. Each lists the few
answers by which its server refuses, and drops the connection that anything else came from. At the
start of a consumer the same holds for what the broker's own calls raise, but not for errors of the
store, of an inbox or of the consumer itself (`asking`), and a refused login ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from oncekey.core.errors import OncekeyError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.disposition import describe

T = TypeVar("T")

# What a client that was cancelled in its start or its stop is given to close its connections.
CUT_OFF_S: Final = 1.0
CANCELLED: Final = "the broker's client has cancelled it, as it does if its connection is lost"


class ClientFault(BrokerUnavailable):
    """What a broker's client has raised in a class of its own: that error is the `__cause__`."""


def is_fault(error: BaseException) -> bool:
    """True if a new connection may cure what this error says; False for a refusal, and for what
    ends the caller itself."""
    if isinstance(error, asyncio.CancelledError):
        return not is_cancelled()
    if isinstance(error, OncekeyError):
        return isinstance(error, BrokerUnavailable)
    return isinstance(error, Exception)


def is_cancelled() -> bool:
    """True if somebody has cancelled the task that asks."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # it is a thread without an event loop
        return False
    return task is not None and task.cancelling() > 0


def reason_of(error: BaseException) -> str:
    """What a log says of a fault: the broker's own words, and for anything else its class too."""
    if isinstance(error, asyncio.CancelledError):
        return CANCELLED
    return str(error) if isinstance(error, OncekeyError) else describe(error)


@contextmanager
def asking() -> Iterator[None]:
    """Around a call of a broker among calls of others: a fault that is raised there leaves it as
    BrokerUnavailable."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OncekeyError):
            raise
        raise ClientFault(reason_of(error)) from error


async def answered(call: Awaitable[T]) -> T:
    """Await a call of a broker. A cancellation that came from its client is BrokerUnavailable."""
    try:
        return await call
    except asyncio.CancelledError as error:
        if is_fault(error):
            raise BrokerUnavailable(CANCELLED) from error
        raise
