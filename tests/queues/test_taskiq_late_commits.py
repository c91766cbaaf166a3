"""I16 for Taskiq: what a task depends on may commit when it ends, so it ends before the outcome of
the task is stored."""

# ruff: noqa: B008

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest
from taskiq import (
    Context,
    InMemoryBroker,
    TaskiqDepends,
    TaskiqMiddleware,
    TaskiqResult,
    TaskiqState,
)
from tests.queues.late_commits import Database

from oncekey import AsyncOnce, current_attempt
from oncekey.queues.taskiq import idempotent_task

WAIT_S = 90.0
KEPT = "steps stay finished"
# Taskiq throws errors into its dependencies by a form that Python 3.12 deprecates.
ignores_throw = pytest.mark.filterwarnings("ignore:the .type, exc, tb. signature")


@pytest.fixture
def database() -> Database:
    return Database()


def with_taskiq(test: Callable[[InMemoryBroker, AsyncOnce], Awaitable[None]]) -> None:
    async def main() -> None:
        broker = InMemoryBroker()
        async with AsyncOnce("memory://") as once:
            await test(broker, once)
            await broker.shutdown()

    asyncio.run(main())


async def result_of(task: Any, *args: Any, **kwargs: Any) -> TaskiqResult[Any]:
    sent = await task.kiq(*args, **kwargs)
    result: TaskiqResult[Any] = await sent.wait_result(timeout=WAIT_S)
    return result


@pytest.mark.parametrize("session", ["session", "async_session"])
def test_i16_taskiq_task_whose_dependency_fails_to_commit_runs_again(
    database: Database, session: str
) -> None:
    async def test(broker: InMemoryBroker, once: AsyncOnce) -> None:
        async def ship(name: str, rows: Any = TaskiqDepends(getattr(database, session))) -> str:
            rows.append(name)
            return "shipped"

        task: Any = idempotent_task(once, key=lambda name: name, retry_safe=True)(
            broker.task(task_name="ship")(ship)
        )
        database.fails = True
        result = await result_of(task, "a")
        assert isinstance(result.error, ConnectionError)
        found = await once.get("ship", "a")
        assert found is None or found.state != "succeeded"
        database.fails = False
        for _ in range(2):
            assert (await result_of(task, "a")).return_value == "shipped"
        assert database.rows == ["a"]
        assert database.ends == ["commit fails", "commit"], "a replay opens no session"

    with_taskiq(test)


@ignores_throw
def test_taskiq_task_tells_of_steps_that_a_failed_commit_leaves_behind(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def insert(key: str) -> int:
        return 1

    async def test(broker: InMemoryBroker, once: AsyncOnce) -> None:
        async def ship(name: str, rows: Any = TaskiqDepends(database.async_session)) -> None:
            attempt: Any = current_attempt()
            await attempt.step("insert", insert)
            if name == "fails":
                raise ValueError("the task itself fails")

        task: Any = idempotent_task(once, key=lambda name: name, retry_safe=True)(
            broker.task(task_name="ship")(ship)
        )
        assert isinstance((await result_of(task, "fails")).error, ValueError)
        assert [line for line in caplog.messages if KEPT in line] == []
        database.fails = True
        assert isinstance((await result_of(task, "key-of-parcel")).error, ConnectionError)
        (line,) = [line for line in caplog.messages if KEPT in line]
        assert line.startswith("ship [")
        assert "'insert'" in line
        assert "key-of" not in line

    with_taskiq(test)


@ignores_throw
def test_failed_taskiq_task_rolls_its_session_back(database: Database) -> None:
    async def test(broker: InMemoryBroker, once: AsyncOnce) -> None:
        async def ship(name: str, rows: Any = TaskiqDepends(database.async_session)) -> None:
            rows.append(name)
            raise ValueError("no such address")

        task: Any = idempotent_task(once, key=lambda name: name)(broker.task(ship))
        result = await result_of(task, "a")
        assert isinstance(result.error, ValueError)
        assert database.ends == ["rollback"]

    with_taskiq(test)


@ignores_throw
def test_taskiq_dependency_that_cannot_be_opened_leaves_the_key_free(database: Database) -> None:
    """The task has not begun, so its key is free, also if the task is not retry-safe."""
    errors: list[Exception] = [ConnectionError("the database does not answer")]

    async def connect(rows: Any = TaskiqDepends(database.async_session)) -> Any:
        if errors:
            raise errors.pop()
        return rows

    async def test(broker: InMemoryBroker, once: AsyncOnce) -> None:
        async def ship(name: str, rows: Any = TaskiqDepends(connect)) -> str:
            rows.append(name)
            return "shipped"

        task: Any = idempotent_task(once, key=lambda name: name)(broker.task(ship))
        assert isinstance((await result_of(task, "a")).error, ConnectionError)
        assert database.ends == ["rollback"]
        assert (await result_of(task, "a")).return_value == "shipped"
        assert database.rows == ["a"]

    with_taskiq(test)


def test_taskiq_injects_what_it_always_does() -> None:
    """The context, the state, what was added to the broker, and what replaces a dependency."""

    class Settings: ...

    def nobody() -> str:
        return "nobody"

    async def who(context: Annotated[Context, TaskiqDepends()]) -> str:
        return context.message.task_name

    async def test(broker: InMemoryBroker, once: AsyncOnce) -> None:
        settings = Settings()
        broker.add_dependency_context({Settings: settings})
        broker.dependency_overrides = {nobody: who}
        broker.state.colour = "red"
        seen: list[Any] = []

        async def ship(
            name: str,
            state: Annotated[TaskiqState, TaskiqDepends()],
            number: int = 1,
            *,
            given: Any = TaskiqDepends(Settings),
            caller: str = TaskiqDepends(nobody),
            **more: Any,
        ) -> None:
            seen.append((name, number, state.colour, given is settings, caller, more))

        task: Any = idempotent_task(once, key=lambda name, *_, **__: name, request=None)(
            broker.task(task_name="ship")(ship)
        )
        assert not (await result_of(task, "a", number="2", extra=3)).is_err
        # What is sent comes before what is injected, as without a guard.
        assert not (await result_of(task, name="b", caller="me")).is_err
        assert seen == [
            ("a", 2, "red", True, "ship", {"extra": 3}),
            ("b", 1, "red", True, "me", {}),
        ]
        await task("c", broker.state, given=settings, caller="you")  # called as a function
        assert seen[-1] == ("c", 1, "red", True, "you", {})

    with_taskiq(test)


def test_taskiq_middleware_that_commits_after_the_task_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Sessions(TaskiqMiddleware):
        session: Any = None

        async def post_execute(self, *args: Any) -> None:
            if self.session is not None:
                await self.session.commit()

    async def test(broker: InMemoryBroker, once: AsyncOnce) -> None:
        async def ship(name: str) -> None: ...

        task: Any = idempotent_task(once, key=lambda name: name)(broker.task(ship))
        broker.add_middlewares(Sessions())
        for name in ("a", "b"):
            assert not (await result_of(task, name)).is_err

    with_taskiq(test)
    (record,) = [each for each in caplog.records if each.name == "oncekey"]
    assert "Sessions.post_execute names a commit" in record.getMessage()
