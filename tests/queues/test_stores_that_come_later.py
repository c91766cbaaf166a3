"""A consumer in the form that the brokers' pages show, `with Once(URL)` and then `run`, whose store
is up only later: it waits, and then handles what is there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.queues.running_consumer import PATIENCE_S, send, wait_until
from tests.support import postgres_stores, redis_stores
from tests.support.log_records import Written, written_log
from tests.support.servers import processes
from tests.support.servers.proxy import Proxy

from oncekey import AsyncOnce, Once
from oncekey.queues import AsyncConsumer, AsyncMemoryBroker, Consumer
from oncekey.queues.aio import consumer as tasks
from oncekey.queues.blocking import consumer as threads
from oncekey.queues.memory_broker import MemoryBroker
from oncekey.queues.queue_message import Message

STORES = ("postgres", "redis", "moving")


class LateStore:
    """A store behind a closed port, which `proxy` opens."""

    def __init__(self, name: str) -> None:
        if name == "redis":
            self.proxy = Proxy(redis_stores.valkey().port)
        else:
            self.proxy = Proxy(postgres_stores.server().port)
        self.name = name
        self._schema = processes.fresh_name("late")  # a move leaves its mark there

    def __enter__(self) -> LateStore:
        self.proxy.start()
        self.proxy.refuse()
        return self

    def __exit__(self, *error: object) -> None:
        self.proxy.close()

    @property
    def url(self) -> str:
        if self.name == "redis":
            return f"redis://127.0.0.1:{self.proxy.port}/0"
        url = postgres_stores.server().url(postgres_stores.DATABASE, port=self.proxy.port)
        url += f"?schema={self._schema}"
        return f"moving://{url},memory://" if self.name == "moving" else url


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    for module in (threads, tasks):
        monkeypatch.setattr(module, "PAUSE_FIRST_S", 0.01)
        monkeypatch.setattr(module, "next_pause", lambda pause: pause)
    with written_log("oncekey", 10) as written:
        yield written


def run_in_threads(url: str, options: dict[str, Any], handled: list[str]) -> None:
    def handle(message: Message) -> None:
        handled.append(message.json()["id"])

    with Once(url) as once:
        consumer = Consumer(once, handle, options.pop("broker"), **options)
        consumer.on_settled = lambda message, disposition: consumer.stop()
        consumer.run()


def run_in_tasks(url: str, options: dict[str, Any], handled: list[str]) -> None:
    async def handle(message: Message) -> None:
        handled.append(message.json()["id"])

    async def main() -> None:
        async with AsyncOnce(url) as once:
            broker = AsyncMemoryBroker(options.pop("broker"))
            consumer = AsyncConsumer(once, handle, broker, **options)
            consumer.on_settled = lambda message, disposition: consumer.stop()
            await consumer.run()

    asyncio.run(main())


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("run", [run_in_threads, run_in_tasks])
def test_a_consumer_waits_for_a_store_that_is_not_up_yet(run: Any, name: str, log: Written) -> None:
    queue, handled, errors = MemoryBroker(), list[str](), list[BaseException]()
    id = processes.fresh_name("order")
    send(queue, id)
    options = {"broker": queue, "name": "shipping", "key": "json:$.id", "broker_name": id}

    def main() -> None:
        try:
            run(store.url, options, handled)
        except BaseException as error:
            errors.append(error)

    with LateStore(name) as store:
        thread = threading.Thread(target=main, daemon=True)
        thread.start()
        wait_until(lambda: bool(errors) or _waits(log), "the consumer waits")
        assert not errors
        store.proxy.accept()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert not errors
    assert handled == [id]
    assert any("the block begins, and the next call tries again" in line for line in log.lines)


def _waits(log: Written) -> bool:
    return any("consumer shipping cannot begin yet" in line for line in log.lines)
