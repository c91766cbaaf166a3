"""RabbitMQ's brokers and consumers behind sync methods, so that a test runs for both clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.queues.moved_clock import still_store
from tests.queues.running_consumer import stop_consumer

from oncekey import AsyncOnce, Once
from oncekey.queues.broker import Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.queue_message import Message
from oncekey.queues.rabbitmq import AsyncRabbitConsumer, RabbitConsumer
from oncekey.queues.rabbitmq.consumers import AioPikaBroker, PikaBroker
from oncekey.queues.rabbitmq.settings import RabbitSettings

PATIENCE_S = 90.0


class BrokerUnderTest:
    """A broker of either kind. `receive` waits until there is a message, or for `wait` seconds."""

    def __init__(self, kind: str, url: str | list[str], queue: str, **options: Any) -> None:
        settings = RabbitSettings(url=url, queue=queue, **options)
        self._runner = asyncio.Runner() if kind == "async" else None
        self.broker: Any = AioPikaBroker(settings) if self._runner else PikaBroker(settings)

    def facts(self) -> BrokerFacts:
        found: BrokerFacts = self._call(self.broker.facts)
        return found

    def receive(self, most: int = 10, wait: float = PATIENCE_S) -> list[Message]:
        pauses = int(wait / 0.25)
        for _ in range(max(pauses, 1)):
            found = self._call(self.broker.receive, most, min(wait, 0.25), 30.0)
            if found:
                return list(found)
        return []

    def settle(self, settled: Sequence[Settled]) -> None:
        self._call(self.broker.settle, settled)

    def redrive(self, most: int, id: str) -> int:
        moved: int = self._call(self.broker.redrive, most, id)
        return moved

    def leave(self) -> None:
        self._call(self.broker.close)

    def close(self) -> None:
        self.leave()
        if self._runner is not None:
            self._runner.close()

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        if self._runner is not None:
            return self._runner.run(method(*arguments))
        return method(*arguments)


@contextmanager
def broker_of(
    kind: str, url: str | list[str], queue: str, **options: Any
) -> Iterator[BrokerUnderTest]:
    broker = BrokerUnderTest(kind, url, queue, **options)
    try:
        yield broker
    finally:
        broker.close()


@contextmanager
def consuming(
    kind: str, store: str, handler: Callable[[Message], Any], queue: str, **options: Any
) -> Iterator[Any]:
    """A consumer that runs in the background; it is stopped at the end, and must end by itself. The
    clock of its store stands still: no lease ends because the machine is slow."""
    options = {"name": "shipping", "key": "json:$.order", **options}
    made: list[Any] = []
    loops: list[asyncio.AbstractEventLoop] = []
    errors: list[BaseException] = []
    started = threading.Event()

    def in_threads() -> None:
        with Once(still_store(store)) as once:
            made.append(RabbitConsumer(once, handler, queue, **options))
            started.set()
            made[0].run()

    async def in_tasks() -> None:
        async def handle(message: Message) -> Any:
            return await asyncio.to_thread(handler, message)

        loops.append(asyncio.get_running_loop())
        async with AsyncOnce(still_store(store, is_async=True)) as once:
            made.append(AsyncRabbitConsumer(once, handle, queue, **options))
            started.set()
            await made[0].run()

    def main() -> None:
        try:
            if kind == "async":
                asyncio.run(in_tasks())
            else:
                in_threads()
        except BaseException as error:
            errors.append(error)
            started.set()

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    assert started.wait(PATIENCE_S)
    try:
        yield made[0] if made else None
    finally:
        if made:
            stop_consumer(made[0], loops[0] if loops else None)
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the consumer did not end"
    if errors:
        raise errors[0]
