"""Steps where something comes in between: wrong colours, cancellations, Ctrl-C, doubles."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from oncekey import (
    AsyncOnce,
    ConfigurationError,
    InvalidKey,
    NotReplayable,
    NotStarted,
    Once,
    StepResult,
    StoreUnavailable,
)
from oncekey.core.commands import Claim, Command, Release, Reply, SaveStep
from oncekey.stores.memory import AsyncMemoryStore


@pytest.fixture
def once() -> Iterator[Once]:
    with Once("memory://") as made:
        yield made


# --- the wrong kind of function -------------------------------------------------------------------


async def asynchronous(key: str) -> str:
    return "never runs"


def generating(key: str) -> Iterator[str]:
    yield "never runs"


@pytest.mark.parametrize("fn", [asynchronous, generating])
def test_a_step_that_gives_what_has_not_run_is_not_done(once: Once, fn: Any) -> None:
    with pytest.raises(NotStarted, match="has not run"):
        once.run("op", "k", lambda attempt: attempt.step("pay", fn))
    assert once.run("op", "k", lambda attempt: attempt.step("pay", lambda key: "paid")).value


def test_a_probe_that_has_not_run_has_said_nothing(once: Once) -> None:
    def body(attempt: Any) -> Any:
        def lost(key: str) -> None:
            raise TimeoutError

        try:
            attempt.step("pay", lost, probe=asynchronous, probe_grace="0s")
        except TimeoutError:
            return attempt.step("pay", lost, probe=asynchronous, probe_grace="0s")

    with pytest.raises(NotStarted, match="has not run"):
        once.run("op", "k", body, retry_safe=True)


def test_a_blocking_engine_takes_no_async_recover(once: Once) -> None:
    async def recover(unknown: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="async"):
        once.recover_with("op", recover)
    with pytest.raises(ConfigurationError, match="async"):
        once.operation("op", recover=recover)(lambda attempt, request: None)


# --- what cannot be kept --------------------------------------------------------------------------


def test_a_result_no_codec_takes_is_told_on_the_first_run(once: Once) -> None:
    made = datetime.now(UTC)
    with pytest.raises(NotReplayable, match="cannot be kept") as caught:
        once.run("op", "k", lambda attempt: attempt.step("pay", lambda key: made))
    assert caught.value.value is made


def test_a_name_that_cannot_be_told_loses_no_result(once: Once) -> None:
    class Mute:
        def __str__(self) -> str:
            raise ValueError

    def pay(key: str) -> Any:
        return StepResult("paid", external_id=Mute())  # type: ignore[arg-type]

    assert once.run("op", "k", lambda attempt: attempt.step("pay", pay)).value == "paid"


def test_another_stores_error_is_not_ours(once: Once) -> None:
    def pay(key: str) -> None:
        raise StoreUnavailable("theirs", value="paid")

    with pytest.raises(StoreUnavailable, match=r"^theirs$") as caught:
        once.run("op", "k", lambda attempt: attempt.step("pay", pay))
    assert caught.value.value == "paid"


def test_a_request_that_was_sent_cannot_be_left_out_later(once: Once) -> None:
    def lost(key: str, request: Any = None) -> None:
        raise TimeoutError

    def body(attempt: Any) -> None:
        try:
            attempt.step("pay", lost, request={"cents": 5})
        except TimeoutError:
            attempt.step("pay", lost)

    with pytest.raises(ConfigurationError, match="sent again as it was"):
        once.run("op", "k", body)


def test_in_a_transaction_nothing_is_promised_that_a_rollback_would_take(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with Once(f"sqlite:///{path}") as once:
        connection = sqlite3.connect(path)
        for options in ({"request": {"cents": 5}}, {"probe": lambda key: None}):

            def body(attempt: Any, options: dict[str, Any] = options) -> None:
                attempt.step("pay", lambda *args: "paid", **options)

            with connection, pytest.raises(ConfigurationError, match="in a transaction"):
                once.in_transaction(connection).run("op", "k", body)
        connection.close()


# --- twice at once --------------------------------------------------------------------------------


def test_i1_one_step_asked_for_by_many_threads_runs_once(once: Once) -> None:
    for number in range(40):
        calls: list[str] = []
        meet = threading.Barrier(4)

        def body(attempt: Any, calls: Any = calls, meet: Any = meet) -> None:
            def ask(_: int) -> None:
                meet.wait(20)
                try:
                    attempt.step("pay", calls.append)
                except ConfigurationError:
                    pass  # it is running already

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(ask, range(4)))

        once.run("op", f"k{number}", body)
        assert len(calls) == 1


def test_i11_parallel_steps_count_before_they_end(once: Once) -> None:
    def body(attempt: Any) -> None:
        with attempt.parallel() as steps:
            for number in range(101):
                steps.step(f"s{number}", lambda key: None)

    with pytest.raises(InvalidKey, match="at most 100"):
        once.run("op", "k", body)
    status = once.get("op", "k")
    assert status is not None
    assert len(status.steps) == 100


def test_ctrl_c_leaves_no_step_running_behind_the_body(
    once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutdown = ThreadPoolExecutor.shutdown
    go, ended = threading.Event(), threading.Event()
    told: list[bool] = []

    def interrupted(pool: ThreadPoolExecutor, *args: Any, **options: Any) -> None:
        if not told:
            told.append(True)
            raise KeyboardInterrupt
        go.set()
        shutdown(pool, *args, **options)

    def pay(key: str) -> None:
        assert go.wait(20)
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
    """Applies a command, loses its reply, and says when: while `lose` says so."""

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


def test_i10_a_caller_cancelled_in_its_claim_gives_the_key_back() -> None:
    async def main() -> None:
        store = Flaky(lambda command: isinstance(command, Claim))
        async with AsyncOnce(store) as once:
            await cancelled_when_lost(store, once.run("op", "k", _never))
            await once.drain(20)
            assert Release.__name__ in store.seen
            assert await once.get("op", "k") is None

    asyncio.run(main())


def test_i10_so_does_one_cancelled_before_its_arguments_are_kept() -> None:
    async def main() -> None:
        store = Flaky(lambda command: isinstance(command, SaveStep), applied=False)
        async with AsyncOnce(store) as once:
            operation = once.operation("op")(_never_asked)
            await cancelled_when_lost(store, operation.run("k", 1))
            await once.drain(20)
            assert await once.get("op", "k") is None

    asyncio.run(main())


@pytest.mark.parametrize("applied", [True, False])
def test_i14_a_step_cancelled_while_its_result_is_saved_keeps_it(applied: bool) -> None:
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


def test_i1_parallel_steps_end_before_the_block_does_however_often_it_is_cancelled() -> None:
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


def test_draining_ends_though_an_attempt_was_cancelled_before_its_first_step() -> None:
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


async def _never_asked(attempt: Any, request: Any) -> None:
    raise AssertionError("nothing was to run")
