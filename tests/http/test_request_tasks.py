"""Tasks that begin at once, and latches. To its work such a task is a task like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from oncekey.http.asgi.request_tasks import Latch, RequestTasks, start_now

number: ContextVar[int] = ContextVar("number", default=0)

Work = Callable[[], Coroutine[Any, Any, None]]


def run(main: Work) -> None:
    asyncio.run(asyncio.wait_for(main(), 60))


# --- tasks that begin at once ---------------------------------------------------------------------


def test_the_work_runs_to_its_first_wait_before_the_start_returns() -> None:
    async def main() -> None:
        steps: list[str] = []
        go = asyncio.Event()

        async def work() -> None:
            steps.append("began")
            await go.wait()
            steps.append("went on")

        task = start_now(work())
        assert steps == ["began"]
        await asyncio.sleep(0)
        assert not task.done()
        go.set()
        await task
        assert steps == ["began", "went on"]

    run(main)


def test_the_work_has_one_task_and_one_context_from_its_first_line_to_its_last() -> None:
    async def main() -> None:
        seen: list[Any] = []
        number.set(1)

        async def work() -> None:
            token = number.set(2)
            seen.append(asyncio.current_task())
            await asyncio.sleep(0)
            seen.append(asyncio.current_task())
            assert number.get() == 2
            number.reset(token)  # raises in another context than the one it was set in
            assert number.get() == 1

        caller = asyncio.current_task()
        task = start_now(work())
        assert asyncio.current_task() is caller
        assert number.get() == 1, "what the work sets does not reach its caller"
        await task
        assert seen == [task, task]

    run(main)


def test_a_cancel_scope_entered_in_the_first_step_is_left_in_a_later_one() -> None:
    async def main() -> None:
        left: list[bool] = []

        async def work() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 0)
                with anyio.move_on_after(0) as scope:
                    await anyio.sleep_forever()
                left.append(scope.cancelled_caught)

        await start_now(work())
        assert left == [True]

    run(main)


def test_timeout_of_the_first_step_cancels_a_later_one() -> None:
    async def main() -> None:
        async def work() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()

        await start_now(work())

    run(main)


@pytest.mark.parametrize("waits", [False, True])
def test_an_error_is_the_tasks(waits: bool) -> None:
    async def main() -> None:
        async def work() -> None:
            if waits:
                await asyncio.sleep(0)
            raise KeyError("its own")

        with pytest.raises(KeyError, match="its own"):
            await start_now(work())

    run(main)


def test_an_error_of_what_the_first_step_waits_for_reaches_the_work() -> None:
    async def main() -> None:
        failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        seen: list[str] = []

        async def work() -> None:
            try:
                await failing
            except ValueError as error:
                seen.append(str(error))
            await asyncio.sleep(0)
            seen.append("went on")

        task = start_now(work())
        failing.set_exception(ValueError("failed"))
        await task
        assert seen == ["failed", "went on"]

    run(main)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("catches", [False, True])
def test_a_cancellation_reaches_the_work_at_any_moment(steps: int, catches: bool) -> None:
    """0: before the task has made a step of its own."""

    async def main() -> None:
        seen: list[str] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                await asyncio.sleep(0)
                seen.append("cleaned up")
                if not catches:
                    raise

        task = start_now(work())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert seen == ["cancelled", "cleaned up"]
        assert task.cancelled() is not catches

    run(main)


def test_work_that_cancels_itself_in_its_first_step_is_cancelled_at_its_next_wait() -> None:
    async def main() -> None:
        seen: list[str] = []

        async def work() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            seen.append("went on")
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        task = start_now(work())
        await asyncio.wait({task})
        assert seen == ["went on", "cancelled"]
        assert task.cancelled()

    run(main)


def test_a_task_may_begin_others_in_its_first_step() -> None:
    async def main() -> None:
        tasks: list[Any] = []

        async def inner() -> None:
            tasks.append(asyncio.current_task())
            await asyncio.sleep(0)
            assert asyncio.current_task() is tasks[0]

        async def outer() -> None:
            own = asyncio.current_task()
            tasks.append(start_now(inner()))
            assert asyncio.current_task() is own
            await tasks[1]

        await start_now(outer())
        assert tasks[0] is tasks[1]

    run(main)


# --- the tasks of requests ------------------------------------------------------------------------


def test_a_task_that_never_waits_has_ended_when_it_is_started() -> None:
    async def main() -> None:
        ends: list[str] = []

        async def work() -> None:
            ends.append("work")

        task = RequestTasks().start(work(), lambda: ends.append("on_end"))
        assert task.ended.is_set
        assert ends == ["work", "on_end"]
        await task.join()

    run(main)


def test_join_raises_the_error_and_a_cancelled_join_leaves_the_task_alone() -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def work() -> None:
            await go.wait()
            raise KeyError("its own")

        task = RequestTasks().start(work())
        waiting = asyncio.create_task(task.join())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go.set()
        with pytest.raises(KeyError, match="its own"):
            await task.join()

    run(main)


def test_a_shutdown_waits_for_tasks_that_have_not_ended() -> None:
    async def main() -> None:
        tasks = RequestTasks()
        go = asyncio.Event()
        ended: list[bool] = []

        async def work() -> None:
            await go.wait()
            ended.append(True)

        tasks.start(work())
        waiting = asyncio.create_task(tasks.wait(30))
        await asyncio.sleep(0)
        assert not waiting.done()
        go.set()
        await waiting
        assert ended == [True]
        await tasks.wait(30)

    run(main)


# --- latches --------------------------------------------------------------------------------------


def test_every_waiter_of_a_latch_gets_its_value_and_a_cancelled_one_takes_nothing() -> None:
    async def main() -> None:
        latch: Latch[int] = Latch()
        waiters = [asyncio.create_task(latch.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        waiters[1].cancel()
        latch.set(1)
        latch.set(2)  # changes nothing
        assert await waiters[0] == await waiters[2] == await latch.wait() == 1
        await asyncio.wait({waiters[1]})
        assert waiters[1].cancelled()

    run(main)


def test_a_latch_whose_setting_was_interrupted_wakes_its_waiters_when_it_is_set_again() -> None:
    async def main() -> None:
        latch: Latch[int] = Latch()
        waiting = asyncio.create_task(latch.wait())
        await asyncio.sleep(0)
        latch.is_set, latch.value = True, 1  # and then a signal's handler raised
        latch.set(2)
        assert await waiting == 1

    run(main)
