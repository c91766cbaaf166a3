"""The drivers of a logical request, sync and async: they carry out the effects of its flow.

A driver also keeps the request's entry in the journal: the entry is on disk before the first try,
and closed when the outcome is known. A driver decides nothing. Each HTTP library hands in how one
try is made.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from oncekey.client.delivery import Progress
from oncekey.client.logical_request import LogicalRequest, Response
from oncekey.client.request_identity import tag_of
from oncekey.client.retry_clock import AsyncClock, Clock
from oncekey.client.retry_effects import (
    SECOND_US,
    Effect,
    EffectResult,
    EntryState,
    Notify,
    RequestOutcome,
    SendRequest,
    Sleep,
    TryResult,
)
from oncekey.core.flow_driver import drive, drive_async

if TYPE_CHECKING:
    from oncekey.client.journal import EntryHandle

R = TypeVar("R", bound=Response)

_logger = logging.getLogger("oncekey")


# --- sync ----------------------------------------------------------------------------------------


def deliver_sync(
    request: LogicalRequest[R],
    clock: Clock,
    send: Callable[[SendRequest], TryResult],
    close: Callable[[R], object],
) -> R:
    """Send a request until it has its outcome, and return the response for the caller. `close` ends
    a response that may still be streaming when the caller gets an exception instead."""
    entry = request.entry
    try:
        try:
            if entry is not None:
                entry.begin()
            outcome = _drive(request, clock, send)
            if entry is not None:
                _close_entry(request, entry, outcome.entry)
        except BaseException:
            if request.response is not None:
                with suppress(Exception):  # the exception under way says more
                    close(request.response)
            raise
        return request.conclude(outcome)
    finally:
        if entry is not None:
            entry.release()


def _drive(
    request: LogicalRequest[R], clock: Clock, send: Callable[[SendRequest], TryResult]
) -> RequestOutcome:
    def perform(effect: Effect) -> EffectResult:
        if isinstance(effect, SendRequest):
            return send(effect)
        if isinstance(effect, Sleep):
            clock.sleep(effect.us)
            return clock.now()
        _notify(request, effect)
        return None

    return drive(request.start(), perform)


# --- async ---------------------------------------------------------------------------------------


async def deliver_async(
    request: LogicalRequest[R],
    clock: AsyncClock,
    send: Callable[[SendRequest], Awaitable[TryResult]],
    close: Callable[[R], Awaitable[object]],
) -> R:
    """Like `deliver_sync`. The journal is written in a thread, so that the event loop does not wait
    for the disk."""
    entry = request.entry
    try:
        try:
            if entry is not None:
                await _in_thread(entry.begin)
            outcome = await _drive_async(request, clock, send)
            if entry is not None and outcome.entry is not EntryState.OPEN:
                await _in_thread(partial(_close_entry, request, entry, outcome.entry))
        except BaseException:
            if request.response is not None:
                await _close_shielded(request.response, close)
            raise
        return request.conclude(outcome)
    finally:
        if entry is not None:
            entry.release()


async def _drive_async(
    request: LogicalRequest[R],
    clock: AsyncClock,
    send: Callable[[SendRequest], Awaitable[TryResult]],
) -> RequestOutcome:
    async def perform(effect: Effect) -> EffectResult:
        if isinstance(effect, SendRequest):
            return await send(effect)
        if isinstance(effect, Sleep):
            await clock.sleep(effect.us)
            return clock.now()
        _notify(request, effect)
        return None

    return await drive_async(request.start(), perform)


async def _close_shielded(response: R, close: Callable[[R], Awaitable[object]]) -> None:
    """Close a response, even during a cancellation: else the pool would lose a connection."""
    from anyio import CancelScope

    with CancelScope(shield=True), suppress(Exception):
        await close(response)


async def _in_thread(call: Callable[[], None]) -> None:
    """Run a call that waits for the disk. If a cancellation comes before the call has begun, it
    never begins; if it comes later, it waits for the call's end."""
    from anyio import to_thread

    await to_thread.run_sync(call)


# --- both ----------------------------------------------------------------------------------------


def _close_entry(request: LogicalRequest[Any], entry: EntryHandle, state: EntryState) -> None:
    """Remove the entry or mark it as done; an open one stays as it is. Waits for the disk."""
    if not entry.held or state is EntryState.OPEN:
        return
    entry.close(done=state is EntryState.DONE)
    if state is EntryState.UNSENT:
        request.remove_key()


def _notify(request: LogicalRequest[Any], effect: Notify) -> None:
    """Call the caller's hook. An error in it is logged and does not disturb the request."""
    hook = request.settings.on_progress
    if hook is None:
        return
    progress = Progress(
        kind=effect.kind,
        method=request.identity.method,
        url=request.identity.display_url,
        tag=tag_of(request.key),
        attempt=effect.attempt,
        status=effect.status,
        seconds=effect.us / SECOND_US,
        why=effect.why,
    )
    try:
        hook(progress)
    except Exception:
        _logger.exception("on_progress raised at %r; the request goes on", effect.kind.value)
