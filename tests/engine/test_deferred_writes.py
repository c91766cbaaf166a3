"""Commands that a store did not take while their callers waited are sent again, within limits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from oncekey import AsyncOnce, Once, Policy
from oncekey.core.commands import Claim, Command, Done, Finish, Lost, Release, Reply
from oncekey.core.effects import CommandResult
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import State
from oncekey.engine.batches.batch import BATCH_BYTES_MAX, size_of
from oncekey.engine.batches.coalescer import Coalescer
from oncekey.engine.batches.deferred_writes import (
    DEFERRED_BYTES_MAX,
    DEFERRED_FOR_US,
    DEFERRED_MAX,
    RELEASE_AGAIN_US,
    SEND_EVERY_US,
    AsyncDeferredWriter,
    DeferredWrites,
)
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing.fake_clock import FakeClock
from oncekey.testing.sync_facade import yield_until

DOWN = StoreUnavailable("no answer")


class Vanishing(MemoryStore):
    """A store that applies the first command of a kind, loses its reply, and is then unavailable
    until `back`."""

    immediate = False

    def __init__(self, clock: FakeClock, kind: type) -> None:
        super().__init__(clock=clock.wall)
        self._kind = kind
        self.away = False
        self.refused = 0

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        if self.away:
            self.refused += 1
            raise StoreUnavailable("away", ambiguous=False)
        if self._kind in map(type, commands):
            self.away = True
            if self._kind is Claim:
                super().apply(commands)
            raise DOWN
        return super().apply(commands)

    def back(self) -> None:
        self.away, self._kind = False, type(None)


class AsyncVanishing(AsyncMemoryStore):
    immediate = False

    def __init__(self, store: Vanishing) -> None:
        super().__init__()
        self._inner = store

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self._inner.apply(commands)


CASES = [(Claim, "absent"), (Finish, "succeeded")]


@pytest.mark.parametrize(("kind", "state"), CASES)
def test_a_deferred_release_and_a_deferred_outcome_are_sent_once_the_store_is_back(
    kind: type, state: str
) -> None:
    clock = FakeClock()
    store = Vanishing(clock, kind)
    once = Once(store, policy=Policy(store_timeout="0s"), clock=clock)
    runs = 1 if kind is Finish else 0
    ran: list[int] = []
    with pytest.raises(StoreUnavailable) as caught:
        _moving(clock, once, lambda attempt: ran.append(1))
    assert len(ran) == runs
    del caught
    clock.wait_until_due(SEND_EVERY_US)
    before = store.refused
    clock.advance(SEND_EVERY_US)
    clock.wait_until_due(SEND_EVERY_US)
    assert store.refused > before  # without success
    store.back()
    clock.advance(SEND_EVERY_US)
    once.close()  # waits for the thread
    (record,) = store._records.values()
    assert record.state.name.lower() == state


def _moving(clock: FakeClock, once: Once, body: Any) -> None:
    """Run with pauses that take no time."""
    clock.wait = lambda event, us: False  # type: ignore[method-assign]
    try:
        once.run("op", "k", body)
    finally:
        del clock.wait


@pytest.mark.parametrize(("kind", "state"), CASES)
def test_async_deferred_writes_are_sent_once_the_store_is_back(kind: type, state: str) -> None:
    async def case() -> None:
        clock = FakeClock()
        store = Vanishing(clock, kind)
        once = AsyncOnce(AsyncVanishing(store), policy=Policy(store_timeout="0s"), clock=clock)

        async def body(attempt: Any) -> None:
            return None

        run = asyncio.ensure_future(once.run("op", "k", body))
        while not run.done():
            await asyncio.sleep(0)
            clock.advance(50_000)
        with pytest.raises(StoreUnavailable):
            run.result()
        store.back()
        clock.advance(SEND_EVERY_US)
        await yield_until(
            lambda: [r.state.name.lower() for r in store._records.values()] == [state]
        )
        await once.close()

    asyncio.run(case())


def test_a_deferred_write_the_store_raises_for_does_not_block_the_others() -> None:
    async def case() -> None:
        clock = FakeClock()
        taken: list[Command] = []

        async def answer(sent: Command) -> CommandResult:
            if sent == command(1):
                raise ValueError("choked")
            taken.append(sent)
            return CommandResult(Done(), 0, clock.now())

        offering = AsyncDeferredWriter(answer, clock)
        offering.add(command(1))
        for number in (2, 3):
            offering.add(command(number))
            while command(number) not in taken:
                await asyncio.sleep(0)
                clock.advance(SEND_EVERY_US)
        await offering.stop()

    asyncio.run(asyncio.wait_for(case(), 10))


def test_deferred_writes_are_sent_in_batches_bounded_by_bytes() -> None:
    sizes: list[int] = []

    def apply(commands: Sequence[Command]) -> list[Reply]:
        sizes.append(sum(map(size_of, commands)))
        return [Done()] * len(commands)

    large = [finish(number, 1_000_000) for number in range(10)]
    answers = Coalescer(apply).apply_many([command(1), *large, command(2)])
    assert [answer.reply for answer in answers] == [Done()] * 12
    assert max(sizes) <= BATCH_BYTES_MAX
    assert len(sizes) == 3


# --- the list -------------------------------------------------------------------------------------


def command(number: int) -> Release:
    return Release(number.to_bytes(16, "big"), b"o" * 16, None)


def finish(number: int, size: int = 0) -> Finish:
    return Finish(number.to_bytes(16, "big"), b"o" * 16, 1, State.SUCCEEDED, bytes(size))


def test_a_deferred_release_that_found_nothing_is_sent_once_more() -> None:
    left = DeferredWrites()
    left.add(command(1), 0)
    left.sent(command(1), CommandResult(Lost(), 0, 10))
    assert left.due(10 + RELEASE_AGAIN_US - 1) == []
    assert left.due(10 + RELEASE_AGAIN_US) == [command(1)]
    left.sent(command(1), CommandResult(Lost(), 0, 20))
    assert len(left) == 0


def test_deferred_writes_are_bounded_in_number_and_time() -> None:
    left = DeferredWrites()
    for number in range(DEFERRED_MAX + 1):
        left.add(command(number), number)
    assert len(left) == DEFERRED_MAX
    assert command(0) not in left.due(0) + left.due(10**9)
    left.sent(command(1), CommandResult(DOWN, 0, 0))
    left.sent(command(2), CommandResult(Done(), 0, 0))
    assert len(left) == DEFERRED_MAX - 1
    assert left.due(DEFERRED_FOR_US + DEFERRED_MAX) == []
    left.add(finish(1), 0)
    left.sent(finish(1), CommandResult(StoreUnavailable("closed", final=True), 0, 0))
    assert len(left) == 0


def test_deferred_writes_are_bounded_by_bytes() -> None:
    """Large outcomes of a long outage must not fill the memory; small ones stay."""
    left = DeferredWrites()
    left.add(command(1), 0)
    size = DEFERRED_BYTES_MAX // 4
    for number in range(6):
        left.add(finish(number, size), 0)
        left.add(finish(number, size), 0)  # a second time, but counted once
    assert left.due(0) == [command(1), *(finish(number, size) for number in (2, 3, 4, 5))]
    left.sent(finish(5, size), CommandResult(Done(), 0, 0))
    left.add(finish(7, size), 0)
    assert len(left) == 5
