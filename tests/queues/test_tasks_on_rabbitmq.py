"""Celery, Dramatiq and FastStream on RabbitMQ: connections are cut, and workers killed."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.rabbit import RabbitBroker, RabbitQueue
from tests.queues import moved_clock
from tests.queues.celery_workers import (
    deliveries,
    effects,
    loaded,
    open_gate,
    start_worker,
)
from tests.queues.dramatiq_workers import loaded_actors, start_dramatiq
from tests.queues.moved_clock import MovedClock
from tests.support.rabbitmq_queues import rabbitmq
from tests.support.redis_stores import valkey
from tests.support.servers import Proxy, processes
from tests.support.servers.processes import Process, wait_until
from tests.support.servers.rabbitmq_server import RabbitServer
from tests.support.servers.requirements import require

from oncekey import AsyncOnce, OncekeyError
from oncekey.queues.faststream import IdempotencyMiddleware

WAIT_S = 90.0
NOTES_DATABASE, RESULT_DATABASE = 12, 13  # of the shared Valkey


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with Proxy(rabbitmq().port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rabbitmq")


@pytest.fixture(scope="module")
def clock(folder: Path) -> MovedClock:
    """The clock of the store."""
    return MovedClock(folder / "clock")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A virtual host of its own: the names of the queues are those of the apps."""
    name = processes.fresh_name("tasks")
    rabbitmq().ask("PUT", f"vhosts/{name}", {})
    yield rabbitmq().url.replace("/%2F", f"/{name}")
    rabbitmq().ask("DELETE", f"vhosts/{name}")


@pytest.fixture(scope="module")
def environment(folder: Path, clock: MovedClock, url: str) -> dict[str, str]:
    return {
        moved_clock.VARIABLE: str(folder / "clock"),
        "ONCEKEY_TEST_BROKER": url,
        "ONCEKEY_TEST_BACKEND": valkey().url(RESULT_DATABASE),
        "ONCEKEY_TEST_NOTES": valkey().url(NOTES_DATABASE),
        "ONCEKEY_TEST_STORE": f"sqlite:///{folder}/keys.db",
    }


@pytest.fixture(scope="module")
def tasks(environment: dict[str, str]) -> Iterator[Any]:
    with loaded(environment, "tests.queues.celery_app") as module:
        yield module


@pytest.fixture(scope="module")
def worker(environment: dict[str, str], url: str, proxy: Proxy) -> Iterator[Process]:
    """A worker whose connections to the broker can be cut."""
    cut = url.replace(f":{rabbitmq().port}/", f":{proxy.port}/")
    through = {**environment, "ONCEKEY_TEST_BROKER": cut}
    worker = start_worker(through, name="rabbit", slots=3, queues="celery,forks,buried")
    yield worker
    worker.kill()


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex[:12]


def test_celery_task_whose_connection_was_cut_runs_once(
    tasks: Any, worker: Process, proxy: Proxy, name: str
) -> None:
    """The broker delivers the message again while its task still runs, with its old worker."""
    result = tasks.ship.delay(name)
    wait_until(lambda: bool(effects(tasks, name)), "the task runs", WAIT_S)
    proxy.cut()
    wait_until(lambda: deliveries(tasks, result) >= 3, "it came again, and was put off", WAIT_S)
    assert not result.ready()
    open_gate(tasks, name)
    assert result.get(timeout=WAIT_S) == {"shipped": name}
    assert len(effects(tasks, name)) == 1


def test_celery_task_whose_process_was_killed_runs_again_after_its_lease(
    tasks: Any, worker: Process, clock: MovedClock, name: str
) -> None:
    result = tasks.ship_again.delay(name)
    wait_until(lambda: len(effects(tasks, name)) == 1, "the task runs", WAIT_S)
    os.kill(int(effects(tasks, name)[0]), signal.SIGKILL)
    clock.advance(tasks.LEASE_S)
    wait_until(lambda: len(effects(tasks, name)) == 2, "the task runs again", WAIT_S)
    open_gate(tasks, name)
    assert result.get(timeout=WAIT_S) == {"run": 2}


def test_failed_celery_task_goes_to_the_dead_letter_exchange(
    tasks: Any, worker: Process, name: str
) -> None:
    with tasks.app.connection() as connection:
        graveyard = connection.SimpleQueue("graveyard")
        letter: Any = None
        for error in (ValueError, OncekeyError):
            result = tasks.fails_and_is_buried.apply_async((name,), queue="buried")
            with pytest.raises(error, match="no such address"):
                result.get(timeout=WAIT_S)
            letter = graveyard.get(timeout=WAIT_S)
            assert letter.headers["id"] == result.id
            letter.ack()
        assert len(effects(tasks, name)) == 1
        # An operator moves it back, with its headers: it runs again, and comes here again.
        with connection.Producer() as producer:
            producer.publish(
                letter.body,
                routing_key="buried",
                headers=letter.headers,
                content_type=letter.content_type,
                content_encoding=letter.content_encoding,
                correlation_id=letter.properties["correlation_id"],
            )
        graveyard.get(timeout=WAIT_S).ack()
        graveyard.close()
    assert len(effects(tasks, name)) == 2


@pytest.mark.soak  # starts a node of its own
def test_celery_task_in_a_quorum_queue_whose_node_was_killed_runs_once(
    environment: dict[str, str], name: str
) -> None:
    with require(RabbitServer) as node:
        own = {**environment, "ONCEKEY_TEST_BROKER": node.url}
        with loaded(own, "tests.queues.celery_app") as tasks:
            worker = start_worker(own, name="quorum", queues="quorum")
            try:
                result = tasks.ship.apply_async((name,), queue="quorum")
                wait_until(lambda: bool(effects(tasks, name)), "the task runs", WAIT_S)
                node.wait_until_known("quorum")
                node.kill()
                node.start()
                wait_until(lambda: deliveries(tasks, result) >= 2, "it came again", 2 * WAIT_S)
                assert not result.ready()
                open_gate(tasks, name)
                assert result.get(timeout=WAIT_S) == {"shipped": name}
                assert len(effects(tasks, name)) == 1
            finally:
                worker.kill()


def test_killed_dramatiq_workers_lose_no_message(
    environment: dict[str, str], clock: MovedClock
) -> None:
    with loaded_actors(environment) as actors:
        workers = [start_dramatiq(environment)]
        again, once_only = uuid.uuid4().hex, uuid.uuid4().hex
        try:
            actors.ship_again.send(again)
            actors.ship.send(once_only)
            runs = [f"effects:{each}" for each in (again, once_only)]
            wait_until(lambda: int(actors.notes.exists(*runs)) == 2, "both actors run", WAIT_S)
            workers[0].kill()
            clock.advance(actors.LEASE_S)
            workers.append(start_dramatiq(environment))
            actors.notes.rpush(f"gate:{again}", "open")

            def state(operation: str, key: str) -> object:
                return getattr(actors.once.get(operation, key), "state", None)

            def dead() -> int:
                return int(actors.broker.get_queue_message_counts("tasks")[2])

            wait_until(lambda: state("ship_again", again) == "succeeded", "one is done", WAIT_S)
            wait_until(lambda: state("ship", once_only) == "unknown", "one is unknown", WAIT_S)
            wait_until(lambda: dead() == 1, "it is a dead letter", WAIT_S)
            assert [int(actors.notes.llen(run)) for run in runs] == [2, 1]
        finally:
            for worker in workers:
                worker.kill()


def test_faststream_message_is_handled_once_and_a_failed_one_is_a_dead_letter(
    name: str, url: str
) -> None:
    arguments: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"}
    runs: list[str] = []

    async def main() -> None:
        done = asyncio.Event()
        async with AsyncOnce("memory://") as once:
            guard = IdempotencyMiddleware(once, name="shipping", key="header:order", backoff="10ms")
            broker = RabbitBroker(url, middlewares=[guard])
            queue = RabbitQueue(name, arguments=arguments)

            @broker.subscriber(queue, ack_policy=AckPolicy.REJECT_ON_ERROR)
            async def ship(order: dict[str, str]) -> None:
                runs.append(order["id"])
                if order["id"] == "bad":
                    raise ValueError("no such address")

            plain = RabbitBroker(url)

            @plain.subscriber(RabbitQueue(f"{name}-dead"))
            async def bury(order: dict[str, str]) -> None:
                runs.append(f"buried {order['id']}")
                done.set()

            guard.check(broker)
            await plain.start()
            await broker.start()
            for id in ("good", "good", "bad"):
                await broker.publish({"id": id}, queue, headers={"order": id})
            async with asyncio.timeout(WAIT_S):
                await done.wait()
            await broker.stop()
            await plain.stop()

    asyncio.run(main())
    assert sorted(runs) == ["bad", "buried bad", "good"]


def test_i8_faststream_handlers_of_two_virtual_hosts_do_not_share_a_scope(
    name: str, url: str
) -> None:
    node, host = rabbitmq(), processes.fresh_name("host")
    node.ask("PUT", f"vhosts/{host}", {})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    node.ask("PUT", f"permissions/{host}/guest", everything)
    ran: list[str] = []

    async def deliver(once: AsyncOnce, url: str, deliveries: int, **options: Any) -> None:
        """Send an order, and return when so many deliveries of it have come, or it was handled."""
        guard = IdempotencyMiddleware(
            once, name="shipping", key="json:$.id", hold_max="0s", **options
        )
        broker, seen, end = RabbitBroker(url, middlewares=[guard]), [], asyncio.Event()

        async def count(raw: Any, parse: Any) -> Any:
            seen.append(raw)
            if len(seen) == deliveries:
                end.set()
            return await parse(raw)

        @broker.subscriber(name, ack_policy=AckPolicy.REJECT_ON_ERROR, parser=count)
        async def ship(order: dict[str, Any]) -> None:
            ran.append(url)
            end.set()

        await broker.start()
        await broker.publish({"id": 1}, name)
        async with asyncio.timeout(WAIT_S):
            await end.wait()
        await broker.stop()

    async def main() -> None:
        other = url.rpartition("/")[0] + f"/{host}"
        async with AsyncOnce("memory://") as once:
            await deliver(once, url, 99)
            await deliver(once, other, 3)
            assert ran == [url], "it came back, and was neither handled nor removed"
            await deliver(once, other, 99, broker_name="eu")
            assert ran == [url, other]

    asyncio.run(main())
