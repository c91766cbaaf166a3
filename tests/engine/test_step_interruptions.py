"""Interrupted steps: Ctrl-C and cancellations while a step runs or is stored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oncekey import (
    AsyncOnce,
    Once,
    StoreUnavailable,
)
from oncekey.core.commands import Claim, Command, Release, Reply, SaveStep
from oncekey.stores.memory import AsyncMemoryStore


@pytest.fixture
def once() -> Iterator[Once]:
    with Once("memory://") as made:
        yield made


def test_after_ctrl_c_no_parallel_step_is_left_running(
    once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutdown = ThreadPoolExecutor.shutdown
    go, ended = threading.Event(), threading.Event()
    interrupts: list[bool] = []

    def interrupted(pool: ThreadPoolExecutor, *args: Any, **options: Any) -> None:
        if not interrupts:
            interrupts.append(True)
            raise KeyboardInterrupt
        go.set()
        shutdown(pool, *args, **options)

    def pay(key: str) -> None:
        assert go.wait(60)
        ended.set()

    def body(attempt: Any) -> None:
        with attempt.parallel() as steps:
            steps.step("pay", pay)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", interrupted)
    with pytest.raises(KeyboardInterrupt):
        once.run("op", "k", body, retry_safe=True)
    assert ended.is_set()


# --- cancellations --------------------------------------------------------------------------------


class Flaky(AsyncMemoryStore):
    """Loses the reply to the first command that `lose` selects; `applied` says whether it was
    applied."""

    def __init__(self, lose: Callable[[Command], bool], *, applied: bool = True) -> None:
        super().__init__()
        self._lose = lose
        self._applied = applied
        self.lost = asyncio.Event()
        self.seen: list[str] = []

    async def apply(self, commands: Any, /) -> list[Reply]:
        self.seen += [type(command).__name__ for command in commands]
        if any(self._lose(command) for command in commands) and not self.lost.is_set():
            if self._applied:
                await super().apply(commands)
            self.lost.set()
            raise StoreUnavailable("the reply was lost")
        return await super().apply(commands)


async def cancelled_when_lost(store: Flaky, work: Awaitable[Any]) -> None:
    task = asyncio.ensure_future(work)
    await store.lost.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_i10_a_caller_cancelled_during_its_claim_releases_the_key() -> None:
    async def main() -> None:
        store = Flaky(lambda command: isinstance(command, Claim))
        async with AsyncOnce(store) as once:
            await cancelled_when_lost(store, once.run("op", "k", _never))
            await once.drain(20)
            assert Release.__name__ in store.seen
            assert await once.get("op", "k") is None

    asyncio.run(main())


def test_i10_a_caller_cancelled_before_its_arguments_are_stored_releases_the_key() -> None:
    async def main() -> None:
        store = Flaky(lambda command: isinstance(command, SaveStep), applied=False)
        async with AsyncOnce(store) as once:
            operation = once.operation("op")(_never_with_request)
            await cancelled_when_lost(store, operation.run("k", 1))
            await once.drain(20)
            assert await once.get("op", "k") is None

    asyncio.run(main())


@pytest.mark.parametrize("applied", [True, False])
def test_i14_a_step_cancelled_while_its_result_is_stored_is_not_called_again(applied: bool) -> None:
    calls: list[str] = []

    async def main() -> Any:
        def is_result(command: Command) -> bool:
            return isinstance(command, SaveStep) and command.done

        store = Flaky(is_result, applied=applied)

        async def body(attempt: Any) -> Any:
            step = asyncio.ensure_future(attempt.step("pay", calls.append))
            await store.lost.wait()
            await asyncio.sleep(0)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            return await attempt.step("pay", calls.append)

        async with AsyncOnce(store) as once:
            await once.run("op", "k", body)

    asyncio.run(main())
    assert len(calls) == 1


def test_i1_a_cancelled_parallel_block_waits_for_its_steps() -> None:
    async def main() -> None:
        go, inside, running = asyncio.Event(), asyncio.Event(), 0

        async def stubborn(key: str) -> None:
            nonlocal running
            running += 1
            inside.set()
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    pass
            running -= 1

        async def body(attempt: Any) -> None:
            async with attempt.parallel() as steps:
                steps.step("pay", stubborn)

        async with AsyncOnce("memory://") as once:

            async def cancelled(attempt: Any) -> None:
                inner = asyncio.ensure_future(body(attempt))
                await inside.wait()
                for _ in range(3):
                    inner.cancel()
                    for _ in range(5):
                        await asyncio.sleep(0)
                    assert not inner.done()
                go.set()
                with pytest.raises(asyncio.CancelledError):
                    await inner
                assert running == 0

            await once.run("op", "k", cancelled, retry_safe=True)

    asyncio.run(main())


def test_drain_ends_though_a_task_was_cancelled_before_it_started() -> None:
    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            await once.run("op", "first", lambda attempt: asyncio.sleep(0))
            state = once._runner.loop_state()
            unstarted = asyncio.ensure_future(_never(None))
            unstarted.cancel()
            state.tasks.add(unstarted)
            await once.drain(0)
            state.tasks.clear()

    asyncio.run(asyncio.wait_for(main(), 20))


async def _never(attempt: Any) -> None:
    raise AssertionError("nothing was to run")


async def _never_with_request(attempt: Any, request: Any) -> None:
    raise AssertionError("nothing was to run")
