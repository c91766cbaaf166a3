"""I16 for Celery, Dramatiq and FastStream: what a framework runs after the body, and may commit,
runs before the outcome is stored. Where that cannot be, somebody is told."""

# ruff: noqa: B008

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from celery import Celery, Task
from celery.app.trace import build_tracer
from dramatiq.brokers.stub import StubBroker
from faststream import AckPolicy, Depends
from faststream.rabbit import RabbitBroker, TestRabbitBroker
from tests.queues.late_commits import Database

from oncekey import AsyncOnce, ConfigurationError, Once, current_attempt
from oncekey.queues.celery import idempotent_task
from oncekey.queues.dramatiq import idempotent_actor
from oncekey.queues.faststream import IdempotencyMiddleware

WAIT_S = 90.0
KEPT = "steps stay finished"


@pytest.fixture
def database() -> Database:
    return Database()


# --- Celery ---------------------------------------------------------------------------------------


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
    yield app
    app.close()


@pytest.fixture
def once() -> Iterator[Once]:
    with Once("memory://") as opened:
        yield opened


def committing_base(database: Database, *, by_super: bool) -> type[Task]:
    """A base of tasks that commits when `run` has returned, as Flask's documentation has one for
    its context."""

    class Committing(Task):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            call = super().__call__ if by_super else self.run
            value = call(*args, **kwargs)
            database.commit(list(args))
            return value

    return Committing


@pytest.mark.parametrize("by_super", [False, True], ids=["run", "super"])
def test_i16_celery_task_whose_base_commits_around_it_runs_again_if_that_fails(
    app: Celery, once: Once, database: Database, by_super: bool
) -> None:
    runs: list[str] = []

    @idempotent_task(once, key=lambda name: name, retry_safe=True)
    @app.task(base=committing_base(database, by_super=by_super), name="ship", shared=False)
    def ship(name: str) -> str:
        runs.append(name)
        return "shipped"

    trace = build_tracer(ship.name, ship, app=app)

    def deliver(number: str) -> Any:
        id = f"{by_super}-{number}"  # the results in memory belong to all apps
        value, info, *_ = trace(id, ("a",), {}, {"id": id, "delivery_info": {}})
        return value if info is None else info.retval

    database.fails = True
    assert isinstance(deliver("1"), ConnectionError)
    database.fails = False
    assert [deliver("2"), deliver("3")] == ["shipped"] * 2
    assert ship("a") == ship.run("a") == "shipped", "both are guarded"
    assert (runs, database.rows) == (["a"] * 2, ["a"])
    assert database.ends == ["commit fails", "commit"]


@pytest.mark.parametrize("by_super", [False, True], ids=["run", "super"])
def test_celery_task_tells_of_steps_that_a_failed_commit_leaves_behind(
    app: Celery,
    once: Once,
    database: Database,
    by_super: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @idempotent_task(once, key=lambda name: name, retry_safe=True)
    @app.task(base=committing_base(database, by_super=by_super), name="ship", shared=False)
    def ship(name: str) -> None:
        attempt: Any = current_attempt()
        attempt.step("insert", lambda key: 1)
        if name == "fails":
            raise ValueError("the task itself fails")

    database.fails = True
    with pytest.raises(ValueError):
        ship("fails")
    assert [line for line in caplog.messages if KEPT in line] == []
    with pytest.raises(ConnectionError):
        ship("key-of-parcel")
    (line,) = [line for line in caplog.messages if KEPT in line]
    assert line.startswith("ship [")
    assert "'insert'" in line
    assert "key-of" not in line


def test_celery_base_may_run_its_task_again_by_itself(app: Celery, once: Once) -> None:
    runs: list[str] = []

    class Retrying(Task):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return self.run(*args, **kwargs)
            except ConnectionError:
                return self.run(*args, **kwargs)

    @idempotent_task(once, key=lambda name: name)
    @app.task(base=Retrying, name="ship", shared=False)
    def ship(name: str) -> str:
        runs.append(name)
        if len(runs) == 1:
            raise ConnectionError
        return ship.run("part") if name == "a" else name

    assert ship("a") == "part"
    assert runs == ["a", "a", "part"]
    assert ship("a") == ship("part") == "part"
    assert len(runs) == 3, "a task that runs another key of itself claims that one too"


def test_celery_hook_that_commits_after_the_task_is_told(
    app: Celery, once: Once, caplog: pytest.LogCaptureFixture
) -> None:
    class Late(Task):  # type: ignore[misc]
        def on_success(self, *args: Any) -> None:
            self.session.commit()

        def after_return(self, *args: Any) -> None: ...

    @idempotent_task(once, key=lambda name: name)
    @app.task(base=Late, name="ship", shared=False)
    def ship(name: str) -> None: ...

    app.finalize()
    (record,) = [each for each in caplog.records if each.name == "oncekey"]
    assert "Late.on_success names a commit" in record.getMessage()


# --- Dramatiq -------------------------------------------------------------------------------------


def test_dramatiq_middleware_that_commits_after_the_actor_is_told(
    once: Once, caplog: pytest.LogCaptureFixture
) -> None:
    class Sessions(dramatiq.Middleware):
        def after_process_message(self, *args: Any, **kwargs: Any) -> None:
            def end(session: Any) -> None:
                session.commit()

    class Observer(dramatiq.Middleware):
        def after_process_message(self, *args: Any, **kwargs: Any) -> None: ...

    broker = StubBroker()

    @idempotent_actor(once, key=lambda name: name)
    @dramatiq.actor(broker=broker)
    def ship(name: str) -> None: ...

    broker.add_middleware(Sessions())  # after the actor was declared
    broker.add_middleware(Observer())
    worker = dramatiq.Worker(broker, worker_timeout=10)
    worker.start()
    try:
        for name in ("a", "b"):
            ship.send(name)
        broker.join("default", timeout=int(WAIT_S * 1_000))
    finally:
        worker.stop()
        broker.close()
    (record,) = [each for each in caplog.records if each.name == "oncekey"]
    assert "Sessions.after_process_message names a commit" in record.getMessage()


def test_dramatiq_actor_of_a_class_that_runs_code_around_it_is_refused(once: Once) -> None:
    class Atomic(dramatiq.Actor[Any, Any]):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    broker = StubBroker()
    with pytest.raises(ConfigurationError, match=r"Atomic.__call__ runs around the guard.*below"):

        @idempotent_actor(once, key=lambda name: name)
        @dramatiq.actor(broker=broker, actor_class=Atomic)
        def ship(name: str) -> None: ...

    broker.close()


# --- FastStream -----------------------------------------------------------------------------------


def test_i16_faststream_handler_whose_dependency_fails_to_commit_runs_again(
    database: Database,
) -> None:
    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            guard = IdempotencyMiddleware(
                once, name="shipping", key="json:$.id", retry_safe=True, hold_max="0s"
            )
            broker = RabbitBroker(middlewares=[guard])

            @broker.subscriber("orders", ack_policy=AckPolicy.REJECT_ON_ERROR)
            async def ship(order: dict[str, Any], rows: Any = Depends(database.session)) -> None:
                rows.append(order["id"])

            async with TestRabbitBroker(broker):
                database.fails = True
                await broker.publish({"id": "a"}, "orders")
                database.fails = False
                for _ in range(2):
                    await broker.publish({"id": "a"}, "orders")
        assert database.rows == ["a"]
        assert database.ends == ["commit fails", "commit"]

    asyncio.run(main())
