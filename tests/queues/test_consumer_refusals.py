"""What a consumer refuses, when it is made or begins: settings, handlers, engines and queues that
cannot work."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from tests.queues.running_consumer import running, wait_until

from oncekey import AsyncOnce, Once, Policy
from oncekey.core.errors import ConfigurationError
from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.blocking.consumer import Consumer
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.disposition import Kind
from oncekey.queues.inbox import AsyncInbox, Inbox
from oncekey.queues.memory_broker import AsyncMemoryBroker, MemoryBroker
from oncekey.queues.queue_message import Message


@pytest.fixture(params=("threads", "tasks"))
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "delivery-id"}, "must be a function"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"batch": True}, "batch=True"),
        ({"max_tries": 0}, "max_tries=0"),
        ({"name": " "}, "name="),
        ({"request": "headers"}, "request='headers'"),
        ({"backoff": 3}, "leaves the unit open"),
        ({"leese": "3s"}, "unknown option leese"),
    ],
)
def test_a_mistake_in_the_settings_shows_when_the_consumer_is_made(
    options: dict[str, object], message: str
) -> None:
    given: dict[str, object] = {"name": "shipping", "key": "json:$.id", **options}
    with Once("memory://") as once, pytest.raises(ConfigurationError, match=message):
        Consumer(once, print, MemoryBroker(), **given)


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (lambda: None, "is called with the message"),
        (lambda message, database: None, "is called with the message"),
        (lambda attempt: None, "is called with the message"),
        (lambda message, connection: None, "only a consumer with inbox="),
        ("ship", "must be a function.*before the queue"),
    ],
)
def test_a_handler_that_cannot_be_called_is_refused_before_a_message_meets_it(
    handler: Any, message: str
) -> None:
    with Once("memory://") as once, pytest.raises(ConfigurationError, match=message):
        Consumer(once, handler, MemoryBroker(), name="shipping", key="json:$.id")


async def _ship_async(message: Message) -> None: ...


def _ships(message: Message) -> Any:
    yield message


async def _ships_async(message: Message) -> Any:
    yield message


class _Shipper:
    async def __call__(self, message: Message) -> None: ...


class _Shippers:
    def __call__(self, message: Message) -> Any:
        yield message


@pytest.mark.parametrize(
    "handler",
    [
        *(_ship_async, _ships, _ships_async),
        *(_Shipper(), _Shippers(), _Shipper().__call__, _Shippers().__call__),
    ],
)
@pytest.mark.parametrize("wrapped", [lambda each: each, functools.partial])
def test_a_handler_that_would_not_run_when_it_is_called_is_refused(
    handler: Any, wrapped: Any
) -> None:
    with Once("memory://") as once, pytest.raises(ConfigurationError, match=r"async|generator"):
        Consumer(once, wrapped(wrapped(handler)), MemoryBroker(), name="shipping", key="json:$.id")


def test_an_async_object_is_a_handler_of_an_async_consumer() -> None:
    queue = AsyncMemoryBroker(MemoryBroker())
    for handler in (_Shipper(), functools.partial(_Shipper())):
        AsyncConsumer(AsyncOnce("memory://"), handler, queue, name="shipping", key="json:$.id")


def test_an_engine_of_the_wrong_kind_is_refused(kind: str) -> None:
    async def ship_async(message: Message) -> None: ...

    options: Any = {"name": "shipping", "key": "json:$.id"}
    engines: list[Any] = ["sqlite:///keys.db", None]
    engines.append(AsyncOnce("memory://") if kind == "threads" else Once("memory://"))
    kinds: dict[str, Any] = {
        "threads": lambda once: Consumer(once, print, MemoryBroker(), **options),
        "tasks": lambda once: AsyncConsumer(
            once, ship_async, AsyncMemoryBroker(MemoryBroker()), **options
        ),
    }
    for once in engines:
        with pytest.raises(ConfigurationError, match="once must be of type"):
            kinds[kind](once)


def test_a_consumer_runs_once_at_a_time(kind: str) -> None:
    queue = MemoryBroker()
    queue.send('{"id": 1}')
    with running(kind, queue) as made:
        made.start(lambda message: None)
        wait_until(lambda: not len(queue), "the queue is empty")
        with pytest.raises(ConfigurationError, match="runs once"):
            made.consumer._begin()


class RefusedQueue(MemoryBroker):
    """A queue that cannot be consumed as it is set up, and that notes who leaves it."""

    closed = 0

    def facts(self) -> BrokerFacts:
        raise ConfigurationError("there is no such queue")

    def close(self) -> None:
        self.closed += 1


def test_a_consumer_that_refuses_to_begin_leaves_its_broker(kind: str) -> None:
    """Else each start of a supervisor would leave a connection behind."""
    queue = RefusedQueue()
    with running(kind, queue) as consumer:
        consumer.start(lambda message: None)
        consumer.join()
        assert isinstance(consumer.error, ConfigurationError)
    assert queue.closed == 1


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("memory://", "has no transactions"),
        ("sqlite:///{folder}/other.db", "must be the same file"),
        (
            "moving://sqlite:///{folder}/shop.db,sqlite:///{folder}/new.db",
            "belongs to one database",
        ),
    ],
)
def test_an_inbox_whose_key_cannot_commit_with_the_rows_is_refused_at_the_start(
    tmp_path: Path, kind: str, store: str, said: str
) -> None:
    """Otherwise each message would come again for ever."""
    url, path = store.format(folder=tmp_path), tmp_path / "shop.db"
    broker, message = MemoryBroker("orders"), Message(b"{}", "orders", delivery_id="1")
    settings: dict[str, Any] = {"name": "shop", "key": "delivery"}

    def handle(message: Message, connection: Any) -> None:
        pytest.fail("it ran")

    async def handle_async(message: Message, connection: Any) -> None:
        pytest.fail("it ran")

    async def in_tasks() -> None:
        async with AsyncOnce(url) as once:
            inbox = AsyncInbox(once, lambda: aiosqlite.connect(path))
            queue = AsyncMemoryBroker(broker)
            await AsyncConsumer(once, handle_async, queue, inbox=inbox, **settings).handle(message)

    def in_threads() -> None:
        with Once(url) as once:
            inbox = Inbox(once, lambda: sqlite3.connect(path))
            Consumer(once, handle, broker, inbox=inbox, **settings).handle(message)

    with pytest.raises(ConfigurationError, match=said):
        in_threads() if kind == "threads" else asyncio.run(in_tasks())


def test_an_engine_that_only_takes_transactions_may_have_a_consumer(tmp_path: Path) -> None:
    """The key that remembers the broker is in no transaction, and protects no effect."""
    path = tmp_path / "shop.db"
    with Once(f"sqlite:///{path}", policy=Policy(require="transactional")) as once:
        inbox = Inbox(once, lambda: sqlite3.connect(path))
        consumer = Consumer(
            once,
            lambda message, connection: None,
            MemoryBroker("orders"),
            name="shop",
            key="delivery",
            inbox=inbox,
        )
        message = Message(b"{}", "orders", delivery_id="1")
        assert consumer.handle(message).kind is Kind.REMOVE
