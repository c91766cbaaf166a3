"""Batches for tasks: as for threads; and a cancelled caller stays until the reply is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.coalescer_replies import async_reply_of

from oncekey.core.commands import Command, Look, Reply, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.aio.coalescer import AsyncCoalescer

PATIENCE = 20.0


def look(number: int) -> Look:
    return Look(number.to_bytes(16, "big"))


def number_of(command: Command) -> int:
    return int.from_bytes(command.id, "big")


def replies_to(commands: Sequence[Command]) -> list[Reply]:
    return [Seen(None, number_of(command)) for command in commands]


class Store:
    """Notes its batches; the first one waits at the gate. To be made on the loop."""

    def __init__(self, answer: Callable[[Sequence[Command]], list[Reply]] = replies_to) -> None:
        self.batches: list[list[int]] = []
        self.answer = answer
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.given_up = False

    async def apply(self, commands: Sequence[Command]) -> list[Reply]:
        self.batches.append([number_of(command) for command in commands])
        if not self.entered.is_set():
            self.entered.set()
            await self.gate.wait()
        return self.answer(commands)

    def ignore(self) -> None:
        """A caller that takes no notice of cancellations, until the test gives it up."""
        if self.given_up:
            raise asyncio.CancelledError

    async def all_of(self, tasks: Sequence[asyncio.Task[Reply]]) -> list[Any]:
        """Each caller's number as the store told it, or its error; nobody may be left waiting."""
        _, waiting = await asyncio.wait(tasks, timeout=PATIENCE)
        self.given_up = True
        assert not waiting, "left waiting"
        return [_outcome(task) for task in tasks]


def _outcome(task: asyncio.Task[Reply]) -> Any:
    error = task.exception()
    reply = task.result() if error is None else None
    return reply.now if isinstance(reply, Seen) else error


async def crowd(store: Store, count: int, **options: Any) -> list[Any]:
    """One caller at the store, the others queueing up; each one's number or error."""
    coalescer = AsyncCoalescer(store.apply, **options)
    tasks = [asyncio.create_task(async_reply_of(coalescer, look(0), store.ignore))]
    await store.entered.wait()
    for number in range(1, count):
        tasks.append(asyncio.create_task(async_reply_of(coalescer, look(number), store.ignore)))
    await asyncio.sleep(0)
    assert len(coalescer._queue) == count - 1
    store.gate.set()
    outcomes = await store.all_of(tasks)
    await asyncio.sleep(0)
    assert coalescer._pumps == {}, "no task stays behind"
    return outcomes


def run(answer: Callable[[Sequence[Command]], list[Reply]], count: int, **options: Any) -> Any:
    """The crowd's outcomes and the store's batches."""

    async def main() -> tuple[list[Any], list[list[int]]]:
        store = Store(answer)
        return await crowd(store, count, **options), store.batches

    return asyncio.run(main())


# --- forming batches ----------------------------------------------------------------------------


def test_a_lone_command_leaves_at_once_and_alone() -> None:
    async def main() -> None:
        store = Store()
        store.entered.set()
        coalescer = AsyncCoalescer(store.apply)
        for number in range(3):
            assert await async_reply_of(coalescer, look(number), store.ignore) == Seen(None, number)
        assert store.batches == [[0], [1], [2]]

    asyncio.run(main())


def test_who_came_while_a_batch_was_on_its_way_is_the_next_batch() -> None:
    outcomes, batches = run(replies_to, 64)
    assert batches == [[0], list(range(1, 64))], "in the order they came"
    assert outcomes == list(range(64)), "each has its own reply"


def test_a_batch_has_a_largest_size() -> None:
    outcomes, batches = run(replies_to, 8, most=3)
    assert batches == [[0], [1, 2, 3], [4, 5, 6], [7]]
    assert outcomes == list(range(8))


# --- failures -----------------------------------------------------------------------------------


def test_a_poisoned_command_fails_alone() -> None:
    def answer(commands: Sequence[Command]) -> list[Reply]:
        if 2 in map(number_of, commands):
            raise ValueError("cannot store 2")
        return replies_to(commands)

    outcomes, batches = run(answer, 5)
    assert [type(outcome) for outcome in outcomes] == [int, int, ValueError, int, int]
    assert batches == [[0], [1, 2, 3, 4], [1], [2], [3], [4]]


def test_an_unavailable_store_is_the_fate_of_all_and_is_not_asked_again() -> None:
    def down(commands: Sequence[Command]) -> list[Reply]:
        raise StoreUnavailable("gone")

    outcomes, batches = run(down, 5)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 5
    assert len(batches) == 2


@pytest.mark.parametrize("extra", [-1, 1])
def test_i8_too_few_or_too_many_replies_reach_nobody(extra: int) -> None:
    def miscounting(commands: Sequence[Command]) -> list[Reply]:
        return (replies_to(commands) * 2)[: max(0, len(commands) + extra)]

    outcomes, _ = run(miscounting, 4)
    assert [type(outcome) for outcome in outcomes] == [AssertionError] * 4


# --- cancellation (I14) -------------------------------------------------------------------------


def test_i14_a_cancelled_caller_is_told_and_stays_for_its_reply() -> None:
    async def main() -> None:
        store = Store()
        coalescer = AsyncCoalescer(store.apply)
        told: list[int] = []
        task = asyncio.create_task(async_reply_of(coalescer, look(5), lambda: told.append(1)))
        await store.entered.wait()
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        store.gate.set()
        assert await task == Seen(None, 5)
        assert told == [1, 1]

    asyncio.run(main())


def test_a_caller_may_leave_when_cancelled_and_the_others_are_served() -> None:
    def leave() -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        store = Store()
        coalescer = AsyncCoalescer(store.apply)
        stays = asyncio.create_task(async_reply_of(coalescer, look(1), store.ignore))
        await store.entered.wait()
        leaves = asyncio.create_task(async_reply_of(coalescer, look(2), leave))
        follows = asyncio.create_task(async_reply_of(coalescer, look(3), store.ignore))
        await asyncio.sleep(0)
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        store.gate.set()
        assert [await stays, await follows] == [Seen(None, 1), Seen(None, 3)]
        assert store.batches == [[1], [2, 3]], "its command was on the way all the same"

    asyncio.run(main())


def test_a_cancelled_pump_leaves_nobody_waiting() -> None:
    async def main() -> list[type[object]]:
        store = Store()
        coalescer = AsyncCoalescer(store.apply)
        tasks = [asyncio.create_task(async_reply_of(coalescer, look(0), store.ignore))]
        await store.entered.wait()
        tasks += [
            asyncio.create_task(async_reply_of(coalescer, look(n), store.ignore)) for n in (1, 2)
        ]
        await asyncio.sleep(0)
        (pump,) = coalescer._pumps
        pump.cancel()
        outcomes = await store.all_of(tasks)
        assert await async_reply_of(coalescer, look(3), store.ignore) == Seen(None, 3), (
            "and goes on working"
        )
        return [type(outcome) for outcome in outcomes]

    assert asyncio.run(main()) == [StoreUnavailable] * 3
