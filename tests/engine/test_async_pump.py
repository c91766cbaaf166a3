"""However the pump of an AsyncCoalescer ends, nobody waits for ever (I11)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.support.coalescer_replies import async_reply_of

from oncekey.core.commands import Command, Look, Reply, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.aio.coalescer import AsyncCoalescer


def _stay() -> None:
    """The caller is cancelled and waits on, as for a finish."""


async def _good(commands: Sequence[Command]) -> list[Reply]:
    return [Seen(None, 1) for _ in commands]


def test_a_pump_cancelled_before_its_first_step_leaves_nobody_behind() -> None:
    async def main() -> None:
        coalescer = AsyncCoalescer(_good)
        caller = asyncio.create_task(async_reply_of(coalescer, Look(b"a"), _stay))
        await asyncio.sleep(0)
        (pump,) = coalescer._pumps
        pump.cancel()
        with pytest.raises(StoreUnavailable, match="event loop ended"):
            await caller
        assert await async_reply_of(coalescer, Look(b"b"), _stay) == Seen(None, 1)

    asyncio.run(main())


def test_a_store_that_exits_takes_the_loop_but_no_caller_hangs() -> None:
    async def exits(commands: Sequence[Command]) -> list[Reply]:
        await asyncio.sleep(0)
        raise SystemExit(3)

    async def main() -> None:
        coalescer = AsyncCoalescer(exits)
        await asyncio.gather(
            *(async_reply_of(coalescer, Look(bytes([n])), _stay) for n in range(3))
        )

    with pytest.raises(SystemExit):
        asyncio.run(main())
