"""Calls of a coalescer that return the reply or raise the store's error."""

from __future__ import annotations

from collections.abc import Callable

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batches.async_coalescer import AsyncCoalescer
from oncekey.engine.batches.coalescer import Coalescer


def reply_of(coalescer: Coalescer, command: Command) -> Reply:
    return _raised(coalescer.send(command)[0])


async def async_reply_of(
    coalescer: AsyncCoalescer, command: Command, interrupted: Callable[[], None]
) -> Reply:
    return _raised((await coalescer.send(command, interrupted))[0])


def _raised(reply: Reply | StoreUnavailable) -> Reply:
    if isinstance(reply, StoreUnavailable):
        raise reply
    return reply
