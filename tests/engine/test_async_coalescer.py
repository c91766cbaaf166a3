"""AsyncCoalescer: batches of commands from tasks. A cancelled caller stays until it has its reply.

However a pump ends, no caller waits for ever (I11).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.coalescer_replies import async_reply_of

from oncekey.core.commands import Command, Look, Reply, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batches.async_coalescer import AsyncCoalescer

PATIENCE = 60.0


def look(number: int) -> Look:
    return Look(number.to_bytes(16, "big"))


def number_of(command: Command) -> int:
    return int.from_bytes(command.id, "big")


def replies_to(commands: Sequence[Command]) -> list[Reply]:
    return [Seen(None, number_of(command)) for command in commands]


class Store:
    """A store that records its batches; the first one waits at the gate. Make it on the loop."""

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
        """Call as a caller that ignores cancellations, until the test gives up on it."""
        if self.given_up:
            raise asyncio.CancelledError

    async def all_of(self, tasks: Sequence[asyncio.Task[Reply]]) -> list[Any]:
        """Each caller's number in the store's reply, or its error; no caller may hang."""
        _, waiting = await asyncio.wait(tasks, timeout=PATIENCE)
        self.given_up = True
        assert not waiting, "left waiting"
        return [_outcome(task) for task in tasks]


def _outcome(task: asyncio.Task[Reply]) -> Any:
    error = task.exception()
    reply = task.result() if error is None else None
    return reply.now if isinstance(reply, Seen) else error


async def send_many(store: Store, count: int, **options: Any) -> list[Any]:
    """One caller is at the store, the others queue up; returns each one's number or error."""
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
    """The callers' results and the store's batches."""

    async def main() -> tuple[list[Any], list[list[int]]]:
        store = Store(answer)
        return await send_many(store, count, **options), store.batches

    return asyncio.run(main())


# --- forming batches ----------------------------------------------------------------------------


def test_a_single_command_is_sent_at_once_in_a_batch_of_its_own() -> None:
    async def main() -> None:
        store = Store()
        store.entered.set()
        coalescer = AsyncCoalescer(store.apply)
        for number in range(3):
            assert await async_reply_of(coalescer, look(number), store.ignore) == Seen(None, number)
        assert store.batches == [[0], [1], [2]]

    asyncio.run(main())


def test_commands_that_come_while_a_batch_is_in_flight_form_the_next_batch() -> None:
    outcomes, batches = run(replies_to, 64)
    assert batches == [[0], list(range(1, 64))], "in the order they came"
    assert outcomes == list(range(64)), "each has its own reply"


def test_a_batch_has_at_most_the_given_number_of_commands() -> None:
    outcomes, batches = run(replies_to, 8, most=3)
    assert batches == [[0], [1, 2, 3], [4, 5, 6], [7]]
    assert outcomes == list(range(8))


# --- failures -----------------------------------------------------------------------------------


def test_a_command_the_store_raises_for_fails_alone() -> None:
    def answer(commands: Sequence[Command]) -> list[Reply]:
        if 2 in map(number_of, commands):
            raise ValueError("cannot store 2")
        return replies_to(commands)

    outcomes, batches = run(answer, 5)
    assert [type(outcome) for outcome in outcomes] == [int, int, StoreUnavailable, int, int]
    assert batches == [[0], [1, 2, 3, 4], [1], [2], [3], [4]]


def test_an_unavailable_store_fails_the_whole_batch_without_a_second_call() -> None:
    def down(commands: Sequence[Command]) -> list[Reply]:
        raise StoreUnavailable("gone")

    outcomes, batches = run(down, 5)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 5
    assert len(batches) == 2


@pytest.mark.parametrize("extra", [-1, 1])
def test_i8_a_batch_with_too_few_or_too_many_replies_fails_for_every_caller(extra: int) -> None:
    def miscounting(commands: Sequence[Command]) -> list[Reply]:
        return (replies_to(commands) * 2)[: max(0, len(commands) + extra)]

    outcomes, _ = run(miscounting, 4)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 4


# --- cancellation (I14) -------------------------------------------------------------------------


def test_i14_a_cancelled_caller_stays_until_its_reply_is_there() -> None:
    async def main() -> None:
        store = Store()
        coalescer = AsyncCoalescer(store.apply)
        interrupted: list[int] = []
        task = asyncio.create_task(
            async_reply_of(coalescer, look(5), lambda: interrupted.append(1))
        )
        await store.entered.wait()
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        store.gate.set()
        assert await task == Seen(None, 5)
        assert interrupted == [1, 1]

    asyncio.run(main())


def test_a_caller_that_leaves_when_cancelled_does_not_affect_the_others() -> None:
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


def test_a_cancelled_pump_leaves_no_caller_waiting() -> None:
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


# --- the end of a pump ---------------------------------------------------------------------------


def _stay() -> None:
    """Go on waiting after a cancellation, as a caller that finishes a key does."""


async def _good(commands: Sequence[Command]) -> list[Reply]:
    return [Seen(None, 1) for _ in commands]


def test_a_pump_cancelled_before_its_first_step_leaves_no_caller_waiting() -> None:
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


def test_a_store_that_raises_system_exit_leaves_no_caller_waiting() -> None:
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
