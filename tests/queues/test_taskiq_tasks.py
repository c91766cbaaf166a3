"""Guarded Taskiq tasks: by Taskiq's own receiver, in memory, and in processes that are killed."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from taskiq import (
    AsyncTaskiqTask,
    BrokerMessage,
    Context,
    InMemoryBroker,
    SimpleRetryMiddleware,
    TaskiqDepends,
    TaskiqMessage,
)
from taskiq.brokers.shared_broker import async_shared_broker
from tests.queues import moved_clock
from tests.queues.moved_clock import MovedClock
from tests.support.servers import processes
from tests.support.servers.processes import Process, wait_until
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.requirements import require
from tests.support.servers.server_lifetime import started

from oncekey import AsyncOnce, ConfigurationError, Once
from oncekey.queues import taskiq as guard
from oncekey.queues.taskiq import idempotent_task
from oncekey.stores.memory import AsyncMemoryStore
from oncekey.stores.sqlite.sqlite_store import SQLiteStore
from oncekey.testing import AsyncFaultyStore

WAIT_S = 90.0
LEASE_S = 1  # of taskiq_app, which cannot be imported without its servers
_ROOT = Path(__file__).parent.parent.parent
_WORK = "import asyncio; from tests.queues import taskiq_app; asyncio.run(taskiq_app.work())"


class Shop:
    """A guarded task, and how often it ran. `body` is what it does."""

    def __init__(self, once: AsyncOnce, **options: Any) -> None:
        self.broker = InMemoryBroker()
        self.broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=5))
        self.runs: list[str] = []
        self.body: Callable[[str], Awaitable[Any]] = self._ship

        async def ship(name: str, context: Context = TaskiqDepends()) -> Any:  # noqa: B008
            assert context.message.task_name == "ship"
            self.runs.append(name)
            return await self.body(name)

        self.task: Any = idempotent_task(once, key=lambda name: name, **options)(
            self.broker.task(task_name="ship", retry_on_error=True)(ship)
        )

    async def _ship(self, name: str) -> dict[str, str]:
        return {"shipped": name}


def with_shop(test: Callable[[Shop, AsyncOnce], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            shop = Shop(once, **options)
            await test(shop, once)
            await shop.broker.shutdown()

    asyncio.run(main())


async def result_of(task: AsyncTaskiqTask[Any]) -> Any:
    return await task.wait_result(timeout=WAIT_S)


def test_tasks_sent_twice_run_once_and_all_have_the_result() -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        sent = [await shop.task.kiq("a"), await shop.task.kiq(name="a")]
        values = [(await result_of(each)).return_value for each in sent]
        assert values == [{"shipped": "a"}] * 2
        assert shop.runs == ["a"]

    with_shop(test)


def test_task_in_flight_elsewhere_is_sent_again_and_leaves_the_result_alone() -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        began, end, sent_again = asyncio.Event(), asyncio.Event(), asyncio.Event()
        sent: list[object] = []
        kick = shop.broker.kick

        async def counted_kick(message: BrokerMessage) -> None:
            sent.append(message)
            if len(sent) == 3:  # the two of this test, and the one that was put off
                sent_again.set()
            await kick(message)

        shop.broker.kick = counted_kick  # type: ignore[method-assign]

        async def body(name: str) -> str:
            began.set()
            await end.wait()
            return name

        shop.body = body
        first = await shop.task.kiq("a")
        await began.wait()
        # The broker delivers the same message again.
        again = await shop.task.kicker().with_task_id(first.task_id).kiq("a")
        async with asyncio.timeout(WAIT_S):
            await sent_again.wait()
        assert not await first.is_ready()
        end.set()
        assert (await result_of(again)).return_value == "a"
        await shop.broker.wait_all()
        assert shop.runs == ["a"]

    with_shop(test)


def test_message_with_a_time_limit_is_sent_again_before_that_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep
    putting_off: asyncio.Task[Any] | None = None

    async def noted_sleep(seconds: float) -> None:
        if asyncio.current_task() is not putting_off:
            await sleep(seconds)  # of a loop that another thread runs, or of the engine
            return
        pauses.append(seconds)
        await sleep(0)

    async def test(shop: Shop, once: AsyncOnce) -> None:
        nonlocal putting_off
        began, end = asyncio.Event(), asyncio.Event()

        async def body(name: str) -> str:
            began.set()
            await end.wait()
            return name

        shop.body = body
        first = await shop.task.kiq("a")
        await began.wait()
        again = TaskiqMessage(
            task_id=first.task_id,
            task_name="ship",
            labels={"timeout": 20.0, guard._PUT_OFFS: "9"},
            labels_types={},
            args=["a"],
            kwargs={},
        )
        sent_again = asyncio.Event()
        kick = shop.broker.kick

        async def noted_kick(message: BrokerMessage) -> None:
            sent_again.set()

        shop.broker.kick = noted_kick  # type: ignore[method-assign]
        receive = shop.broker.receiver.callback(shop.broker.formatter.dumps(again).message)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", noted_sleep)
            putting_off = asyncio.current_task()
            await receive
        assert sent_again.is_set()
        assert pauses == [10.0]
        assert not await first.is_ready()
        shop.broker.kick = kick  # type: ignore[method-assign]
        end.set()
        assert (await result_of(first)).return_value == "a"

    with_shop(test)


def test_call_after_a_task_that_ran_in_place_has_arguments_of_its_own() -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        broker = InMemoryBroker(await_inplace=True)

        async def double(number: int) -> int:
            return 2 * number

        task: Any = idempotent_task(once, key=lambda number: number)(broker.task(double))
        for _ in range(2):
            assert (await result_of(await task.kiq(1))).return_value == 2
        assert await task(2) == 4

    with_shop(test)


def test_failure_is_stored_and_a_retry_gets_it() -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        async def body(name: str) -> None:
            raise ValueError("no such address")

        shop.body = body
        result = await result_of(await shop.task.kiq("a"))
        assert type(result.error).__name__ == "OperationFailed"
        assert "ValueError: no such address" in str(result.error)
        assert shop.runs == ["a"]

    with_shop(test)


def test_retries_of_taskiq_run_a_retry_safe_task_again() -> None:
    async def test(shop: Shop, once: AsyncOnce) -> None:
        async def body(name: str) -> str:
            if len(shop.runs) < 3:
                raise ConnectionError("the carrier does not answer")
            return name

        shop.body = body
        assert (await result_of(await shop.task.kiq("a"))).return_value == "a"
        assert shop.runs == ["a"] * 3

    with_shop(test, retry_safe=True)


def test_store_that_is_down_removes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "STORE_PAUSE_S", 0.0)

    async def main() -> None:
        store = AsyncFaultyStore(AsyncMemoryStore(), {})
        async with AsyncOnce(store) as once:
            shop = Shop(once)
            store.down = True
            events: list[object] = []

            def recover_after_three(event: object) -> None:
                store.down = len(events) < 3
                events.append(event)

            once.subscribe(recover_after_three)
            result = await result_of(await shop.task.kiq("a"))
            assert result.return_value == {"shipped": "a"}
            assert len(events) > 3
            assert shop.runs == ["a"]
            await shop.broker.shutdown()

    asyncio.run(main())


def test_wrong_set_ups_are_refused() -> None:
    async def main() -> None:
        broker = InMemoryBroker()
        async with AsyncOnce("memory://") as once:
            guarded = idempotent_task(once, key=lambda: "k")

            async def task() -> None: ...

            with pytest.raises(ConfigurationError, match="is not async"):
                guarded(broker.task(task_name="sync")(lambda: None))
            with pytest.raises(ConfigurationError, match="can be lost"):
                guarded(broker.task(task_name="early", ack_type="when_received")(task))
            with pytest.raises(ConfigurationError, match="shared broker"):
                guarded(async_shared_broker.task(task_name="shared")(task))
            with pytest.raises(ConfigurationError, match="put it above"):
                guarded(task)  # type: ignore[type-var]
            with pytest.raises(ConfigurationError, match="unknown option"):
                idempotent_task(once, key=lambda: "k", leese="1s")(broker.task(task_name="x")(task))
        with pytest.raises(ConfigurationError, match="needs an AsyncOnce"):
            idempotent_task(Once, key=lambda: "k")  # type: ignore[arg-type]

    asyncio.run(main())


def _start(environment: dict[str, str]) -> Process:
    directory = processes.scratch() / processes.fresh_name("taskiq")
    directory.mkdir()
    return processes.launch(
        "taskiq worker",
        [sys.executable, "-c", _WORK],
        processes.User(),
        directory,
        death_signal="SIGKILL",
        env={**environment, "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}"},
    )


def test_killed_worker_loses_no_task_and_no_effect_is_doubled(tmp_path: Path) -> None:
    """I1, I10. One task may run again; the other is unknown, and its error is its result."""
    server = require(lambda: started(RedisServer()))
    url = f"redis://127.0.0.1:{server.port}"
    store = f"sqlite:///{tmp_path}/keys.db"
    notes = redis.Redis.from_url(url, decode_responses=True)
    clock = MovedClock(tmp_path / "clock")
    environment = {
        moved_clock.VARIABLE: str(tmp_path / "clock"),
        "ONCEKEY_TEST_BROKER": url,
        "ONCEKEY_TEST_STORE": store,
    }
    workers = [_start(environment)]
    names = {task: uuid.uuid4().hex for task in ("ship", "ship_again")}
    try:
        for task, name in names.items():
            message = TaskiqMessage(
                task_id=name,
                task_name=f"tests.queues.taskiq_app:{task}",
                labels={"ack_type": "when_saved"},
                args=[name],
                kwargs={},
            )
            notes.rpush("tasks", message.model_dump_json())
        wait_until(lambda: len(notes.keys("effects:*")) == 2, "both tasks run", WAIT_S)
        workers[0].kill()
        notes.rpush(f"gate:{names['ship_again']}", "open")
        clock.advance(LEASE_S)
        workers.append(_start(environment))

        def left() -> int:
            """The messages of both lists at one moment: workers move them from one to the other."""
            with notes.pipeline(transaction=True) as both:
                both.llen("tasks")
                both.llen("held")
                return sum(both.execute())

        wait_until(lambda: not left(), "every message is done", WAIT_S)
        runs = {task: int(notes.llen(f"effects:{name}")) for task, name in names.items()}
        assert runs == {"ship": 1, "ship_again": 2}
        with Once(SQLiteStore(tmp_path / "keys.db", clock=clock)) as once:
            states = {
                task: getattr(once.get(f"tests.queues.taskiq_app:{task}", name), "state", None)
                for task, name in names.items()
            }
        assert states == {"ship": "unknown", "ship_again": "succeeded"}
    finally:
        for worker in workers:
            worker.kill()
        notes.close()
        server.close()


def test_a_result_that_could_not_be_stored_is_refused_before_the_task_runs() -> None:
    async def main() -> None:
        broker = InMemoryBroker()
        async with AsyncOnce("memory://") as once:
            with pytest.raises(ConfigurationError, match=r"task 'open': it returns a Shop"):

                @idempotent_task(once, key=lambda name: name)
                @broker.task(task_name="open")
                async def open_it(name: str) -> Shop:
                    raise AssertionError("it must not run")

    asyncio.run(main())
