"""A consumer of Redis Streams in the background of a test, in threads or in tasks.

Handlers are plain functions; for a consumer in tasks they run in threads, so that a test can hold
them with the same barriers. Consumers of one test share the store's file, and its clock, which
stands still: no lease ends because the machine is slow.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.queues.moved_clock import still_store
from tests.queues.running_consumer import PATIENCE_S, stop_consumer

from oncekey import AsyncOnce, Once
from oncekey.queues.queue_message import Message
from oncekey.queues.redis_streams import AsyncRedisStreamConsumer, RedisStreamConsumer

OPTIONS = {
    "name": "shipping",
    "key": "json:$.order",
    "start": "first",
    "retention": "1h",
    "backoff": "50ms",
    "lease": "1s",
}


class RunningStreamConsumer:
    """One consumer; `error` is what its `run` raised."""

    def __init__(self, kind: str, store: str, server: str, stream: str) -> None:
        self.kind = kind
        self.consumer: Any = None
        self.error: BaseException | None = None
        self._where = (store, server, stream)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_made = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, handler: Callable[..., Any], **options: Any) -> None:
        run = self._in_threads if self.kind == "threads" else self._in_tasks
        arguments = (handler, {**OPTIONS, **options})
        self._thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._thread.start()
        assert self._is_made.wait(PATIENCE_S)

    def stop(self) -> None:
        stop_consumer(self.consumer, self._loop)

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the consumer did not end"

    def _in_threads(self, handler: Callable[..., Any], options: dict[str, Any]) -> None:
        store, server, stream = self._where
        with Once(still_store(store)) as once:
            self.consumer = RedisStreamConsumer(once, handler, stream, server=server, **options)
            self._is_made.set()
            try:
                self.consumer.run()
            except BaseException as error:
                self.error = error

    def _in_tasks(self, handler: Callable[..., Any], options: dict[str, Any]) -> None:
        store, server, stream = self._where

        async def handle(message: Message) -> Any:
            return await asyncio.to_thread(handler, message)

        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            async with AsyncOnce(still_store(store, is_async=True)) as once:
                self.consumer = AsyncRedisStreamConsumer(
                    once, handle, stream, server=server, **options
                )
                self._is_made.set()
                try:
                    await self.consumer.run()
                except BaseException as error:
                    self.error = error

        asyncio.run(main())


@contextmanager
def consuming(
    kind: str, store: str, server: str, stream: str, handler: Callable[..., Any], **options: Any
) -> Iterator[RunningStreamConsumer]:
    """A consumer that is stopped at the end, whatever happened."""
    made = RunningStreamConsumer(kind, store, server, stream)
    made.start(handler, **options)
    try:
        yield made
    finally:
        made.stop()
        made.join()
