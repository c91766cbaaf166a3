"""Two thin drivers: they do what the flow asks for, blocking or awaiting. The rules are there.

Must not decide anything. What a try is, each library hands in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from oncekey.client.logical_request import Errand
from oncekey.client.retry_clock import AsyncClock, Clock
from oncekey.client.retry_effects import Answer, Answered, Begin, Broke, Leave, Send, Verdict, Wait

R = TypeVar("R")


def deliver_blocking(
    errand: Errand[R],
    clock: Clock,
    send: Callable[[Send], Answered | Broke],
    close: Callable[[R], object],
) -> R:
    """`close` ends a response that may still flow, where the caller is not going to get it."""
    try:
        try:
            verdict = _drive(errand, clock, send)
        except BaseException:
            if errand.response is not None:
                with suppress(Exception):  # what is under way says more
                    close(errand.response)
            raise
        return errand.conclude(verdict)
    finally:
        errand.release()


def _drive(errand: Errand[R], clock: Clock, send: Callable[[Send], Answered | Broke]) -> Verdict:
    answer: Answer = None
    while True:
        try:
            ask = errand.flow.send(answer)
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict
        answer = None
        if isinstance(ask, Send):
            answer = send(ask)
        elif isinstance(ask, Wait):
            clock.sleep(ask.us)
            answer = clock.now()
        elif isinstance(ask, Begin):
            errand.enter()
            answer = errand.begun()
        elif isinstance(ask, Leave):
            errand.leave(settled=ask.settled)
        else:
            errand.tell(ask)


async def deliver_async(
    errand: Errand[R],
    clock: AsyncClock,
    send: Callable[[Send], Awaitable[Answered | Broke]],
    close: Callable[[R], Awaitable[object]],
) -> R:
    try:
        try:
            verdict = await _drive_async(errand, clock, send)
        except BaseException:
            if errand.response is not None:
                await _close(errand.response, close)
            raise
        return errand.conclude(verdict)
    finally:
        errand.release()


async def _drive_async(
    errand: Errand[R], clock: AsyncClock, send: Callable[[Send], Awaitable[Answered | Broke]]
) -> Verdict:
    answer: Answer = None
    while True:
        try:
            ask = errand.flow.send(answer)
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict
        answer = None
        if isinstance(ask, Send):
            answer = await send(ask)
        elif isinstance(ask, Wait):
            await clock.sleep(ask.us)
            answer = clock.now()
        elif isinstance(ask, Begin):
            await _on_disk(errand, errand.enter)
            answer = errand.begun()
        elif isinstance(ask, Leave):
            if ask.settled or errand.unsent:
                await _on_disk(errand, partial(errand.leave, settled=ask.settled))
        else:
            errand.tell(ask)


async def _close(response: R, close: Callable[[R], Awaitable[object]]) -> None:
    """Also while a cancellation is under way: else the pool has one connection less for good."""
    from anyio import CancelScope

    with CancelScope(shield=True), suppress(Exception):
        await close(response)


async def _on_disk(errand: Errand[R], call: Callable[[], None]) -> None:
    """In a thread: the loop must not wait for the disk. A cancellation that comes before it has
    begun undoes it; one that comes later waits, or leaves a ticket that is over."""
    if errand.journaled:
        from anyio import to_thread

        await to_thread.run_sync(call)
