"""The current attempt and step in tasks: each task has its own, and none has one that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.engine.current_context import NOTHING, Seen, current

from oncekey import AsyncOnce


def play(case: Callable[[AsyncOnce], Any]) -> None:
    async def run() -> None:
        async with AsyncOnce("memory://") as once:
            await case(once)
            assert current() == NOTHING

    asyncio.run(run())


def test_the_attempt_and_its_step_are_current_in_async_body_and_step() -> None:
    async def case(once: AsyncOnce) -> None:
        async def pay(key: str) -> str | None:
            assert current()[1] == "pay"
            await asyncio.sleep(0)
            return current()[1]

        async def body(attempt: Any) -> None:
            assert current() == (attempt, None)
            assert await attempt.step("pay", pay) == "pay"
            assert await attempt.step("plain", lambda key: current()[1]) == "plain"
            assert current() == (attempt, None)

        await once.run("op", "k", body)

    play(case)


def test_each_of_many_operations_has_its_own_current_attempt() -> None:
    async def case(once: AsyncOnce) -> None:
        async def body(attempt: Any) -> str:
            async def step(key: str) -> None:
                for _ in range(3):
                    assert current() == (attempt, "pay")
                    await asyncio.sleep(0)

            for _ in range(3):
                assert current() == (attempt, None)
                await asyncio.sleep(0)
            await attempt.step("pay", step)
            assert current() == (attempt, None)
            return str(attempt.key)

        keys = [str(number) for number in range(100)]
        results = await asyncio.gather(*(once.run("op", key, body) for key in keys))
        assert [result.value for result in results] == keys

    play(case)


@pytest.mark.parametrize("how", ["parallel", "gather"])
def test_each_parallel_step_is_current_in_its_own_task(how: str) -> None:
    async def case(once: AsyncOnce) -> None:
        async def body(attempt: Any) -> list[str]:
            async def look(key: str) -> str | None:
                await asyncio.sleep(0)
                assert current()[0] is attempt
                return current()[1]

            names = [str(number) for number in range(10)]
            if how == "gather":
                found: list[str] = await asyncio.gather(*(attempt.step(n, look) for n in names))
                return found
            async with attempt.parallel() as steps:
                tasks = [steps.step(name, look) for name in names]
            assert current() == (attempt, None)
            return [task.result() for task in tasks]

        assert (await once.run("op", "k", body)).value == [str(number) for number in range(10)]

    play(case)


def test_nothing_is_current_in_a_task_that_outlives_its_body() -> None:
    async def case(once: AsyncOnce) -> None:
        go, looked, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        seen: list[Seen] = []

        async def straggler() -> None:
            seen.append(current())
            await go.wait()
            seen.append(current())
            looked.set()
            await gone.wait()
            seen.append(current())

        async def body(attempt: Any) -> None:
            async def step(key: str) -> None:
                left.append(asyncio.create_task(straggler()))
                await asyncio.sleep(0)

            await attempt.step("pay", step)
            go.set()
            await looked.wait()
            assert seen == [(attempt, "pay"), (attempt, None)]

        left: list[asyncio.Task[None]] = []
        await once.run("op", "k", body)
        gone.set()
        await left[0]
        assert seen[2] == NOTHING

    play(case)


def test_a_task_that_outlives_its_step_does_not_see_the_next_run_of_it() -> None:
    """The step of a second run is another step: nothing is current in the old task meanwhile."""

    async def case(once: AsyncOnce) -> None:
        seen: list[Seen] = []
        look, looked = asyncio.Event(), asyncio.Event()

        async def straggler() -> None:
            await look.wait()
            seen.append(current())
            looked.set()

        async def body(attempt: Any) -> None:
            async def step(key: str) -> None:
                if attempt.number == 1 and not tasks:
                    tasks.append(asyncio.create_task(straggler()))
                    raise ConnectionError
                look.set()
                await looked.wait()

            await attempt.step("pay", step)

        tasks: list[asyncio.Task[None]] = []
        with pytest.raises(ConnectionError):
            await once.run("op", "k", body, retry_safe=True)
        await once.run("op", "k", body, retry_safe=True)
        await tasks[0]
        assert seen == [NOTHING]

    play(case)


def test_an_attempt_whose_caller_was_cancelled_stays_current_in_its_body() -> None:
    async def case(once: AsyncOnce) -> None:
        begun, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
        seen: list[bool] = []

        async def body(attempt: Any) -> None:
            begun.set()
            await go.wait()
            seen.append(current() == (attempt, None))
            done.set()

        caller = asyncio.create_task(once.run("op", "k", body))
        await begun.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        go.set()
        await done.wait()
        assert seen == [True]

    play(case)


def test_a_thread_that_a_task_starts_has_its_current_attempt() -> None:
    """`to_thread` carries the context over, a bare executor does not."""

    async def case(once: AsyncOnce) -> None:
        async def body(attempt: Any) -> None:
            async def step(key: str) -> None:
                assert await asyncio.to_thread(current) == (attempt, "pay")
                loop = asyncio.get_running_loop()
                assert await loop.run_in_executor(None, current) == NOTHING

            assert await asyncio.to_thread(current) == (attempt, None)
            await attempt.step("pay", step)

        await once.run("op", "k", body)

    play(case)


def test_an_async_generator_has_the_current_attempt_of_its_consumer() -> None:
    async def case(once: AsyncOnce) -> None:
        async def looks() -> AsyncIterator[Seen]:
            while True:
                await asyncio.sleep(0)
                yield current()

        left: list[AsyncIterator[Seen]] = []

        async def body(attempt: Any) -> None:
            async def step(key: str) -> str | None:
                return (await anext(generator))[1]

            generator = looks()
            assert await anext(generator) == (attempt, None)
            assert await attempt.step("pay", step) == "pay"
            left.append(generator)

        await once.run("op", "k", body)
        assert await anext(left[0]) == NOTHING

    play(case)
