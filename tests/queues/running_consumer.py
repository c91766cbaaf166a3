"""A consumer that runs in the background of a test, in threads or in tasks, on the memory broker.

Handlers are plain functions; for a consumer in tasks they run in threads, so that a test can hold
them with the same barriers. The clock of the store stands still, so that a lease ends when the test
says so, and not because the machine is slow.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from oncekey import AsyncOnce, Once
from oncekey.queues.aio.consumer import AsyncConsumer
from oncekey.queues.blocking.consumer import Consumer
from oncekey.queues.memory_broker import AsyncMemoryBroker, MemoryBroker
from oncekey.queues.queue_message import Message
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing import FakeClock
from oncekey.testing.faulty_store import AsyncFaultyStore, FaultyStore

PATIENCE_S = 90.0  # only what will never come takes so long


class RunningConsumer:
    """One consumer and its store. `down` switches the store off and on."""

    def __init__(self, kind: str, queue: MemoryBroker) -> None:
        self.kind = kind
        self.queue = queue
        self.clock = FakeClock()  # of the store
        self.consumer: Any = None
        self.store: Any = None
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()

    def start(
        self, handler: Callable[..., Any], *, broker: Any = None, **options: Any
    ) -> RunningConsumer:
        options = {"name": "shipping", "key": "json:$.id", **options}
        run = self._in_threads if self.kind == "threads" else self._in_tasks
        thread = threading.Thread(target=run, args=(handler, broker, options), daemon=True)
        self._thread = thread
        thread.start()
        assert self._started.wait(PATIENCE_S)
        return self

    def stop(self) -> None:
        stop_consumer(self.consumer, self._loop)

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the consumer did not end"

    def commands(self, kind: str) -> int:
        """How many commands of this kind the store was sent for messages. Before these, the start
        claims and finishes the key that remembers the broker."""
        kinds: list[str] = self.store.kinds()
        return kinds.count(kind) - (kind in ("Claim", "Finish"))

    def wait_until_begun(self) -> None:
        """Wait until broker and store have been asked; from then on both may fail."""
        wait_until(lambda: self.consumer._plan is not None, "the consumer has begun")

    def _in_threads(self, handler: Callable[..., Any], broker: Any, options: Any) -> None:
        self.store = FaultyStore(MemoryStore(clock=self.clock.wall), {}, immediate=False)
        with Once(self.store) as once:
            self.consumer = Consumer(once, handler, broker or self.queue, **options)
            self._started.set()
            try:
                self.consumer.run()
            except BaseException as error:
                self.error = error

    def _in_tasks(self, handler: Callable[..., Any], broker: Any, options: Any) -> None:
        async def handle(message: Message) -> Any:
            return await asyncio.to_thread(handler, message)

        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self.store = AsyncFaultyStore(
                AsyncMemoryStore(clock=self.clock.wall), {}, immediate=False
            )
            async with AsyncOnce(self.store) as once:
                queue = broker or self.queue
                self.consumer = AsyncConsumer(once, handle, AsyncMemoryBroker(queue), **options)
                self._started.set()
                try:
                    await self.consumer.run()
                except BaseException as error:
                    self.error = error

        asyncio.run(main())


def stop_consumer(consumer: Any, loop: asyncio.AbstractEventLoop | None) -> None:
    """Stop a consumer that may have ended by itself at any moment, with its loop if it has one."""
    if loop is None:
        consumer.stop()
    else:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(consumer.stop)


class Handled:
    """A handler that notes what it was called with, and can be held."""

    def __init__(self, *, held: bool = False) -> None:
        self.ids: list[str | int] = []
        self.lock = threading.Lock()
        self.gate = threading.Event()
        self.running = 0
        self.most = 0
        self.errors: dict[object, BaseException] = {}
        if not held:
            self.gate.set()

    def __call__(self, message: Message) -> None:
        id = message.json()["id"]
        with self.lock:
            self.ids.append(id)
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            assert self.gate.wait(PATIENCE_S)
            if id in self.errors:
                raise self.errors[id]
        finally:
            with self.lock:
                self.running -= 1


def send(queue: MemoryBroker, id: str | int, group: str | None = None, **fields: object) -> None:
    queue.send(json.dumps({"id": id, **fields}), order_group=group)


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for something that will be so, and fail if it is not."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if is_so():
            return
        pause.wait(0.005)
    raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE_S / 0.005)):
        if is_so():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not become so")


@contextmanager
def running(kind: str, queue: MemoryBroker) -> Iterator[RunningConsumer]:
    """A consumer that is stopped at the end, whatever happened."""
    made = RunningConsumer(kind, queue)
    try:
        yield made
    finally:
        if made.consumer is not None:
            made.stop()
            made.join()
