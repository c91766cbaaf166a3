"""The event loop of a store, in a thread of its own.

Sync callers wait for it, and so do the event loops of async callers. Keepalives are sent from here,
so an app that blocks its own event loop for a while does not lose its claims. gRPC's threads do not
survive a fork: a process that was forked from one that had used its store gets a clear error.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from oncekey.core.errors import ConfigurationError, StoreUnavailable

T = TypeVar("T")


class StoreLoop:
    """Starts the thread at its first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = 0
        self._lock = threading.Lock()
        self._is_closed = False

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine there, and wait for its result in this thread."""
        future = self._submit(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise _closed_meanwhile() from None
        except BaseException:
            future.cancel()  # this thread was interrupted; nothing else is left to cancel
            raise

    async def run_async(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine there, and await its result on another event loop."""
        future = self._submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed and task is not None and not task.cancelling():
                raise _closed_meanwhile() from None
            raise

    def _submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        if self._loop is not None and self._process != os.getpid():
            raise ConfigurationError(
                "this process was forked from one that had used its etcd store, and gRPC does not "
                "survive a fork; use the store in the children only, or open it after the fork"
            )
        with self._lock:  # nothing is handed to a loop that is about to stop: it would never end
            if self._is_closed:
                raise StoreUnavailable("the store is closed", ambiguous=False, final=True)
            if self._loop is None:
                self._start()
                assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._main, args=(loop,), name="oncekey-etcd", daemon=True)
        try:
            thread.start()
        except BaseException:  # as when the machine has no more threads; the next call tries again
            loop.close()
            raise
        self._loop, self._thread, self._process = loop, thread, os.getpid()

    @staticmethod
    def _main(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.close()

    def close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a last coroutine, then end the thread. Calls in flight end with StoreUnavailable."""
        ending = self._end(work)
        if ending is None:
            return
        future, thread = ending
        try:
            future.result()
        finally:
            thread.join()

    def abandon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do the same without waiting for it, from any thread, also from that of a store."""
        self._end(work)

    def _end(
        self, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> tuple[concurrent.futures.Future[None], threading.Thread] | None:
        """Begin to end the thread. Only the process that started it has one."""
        with self._lock:
            self._is_closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None or self._process != os.getpid():
            return None
        future = asyncio.run_coroutine_threadsafe(_after_all_others(work), loop)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
        return future, thread

    def reopen(self) -> None:
        """Allow a new start after `close`."""
        with self._lock:
            self._is_closed = False


def run_alone(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run one coroutine on a loop of its own, also where the caller's thread has a running one."""
    loop = StoreLoop()
    try:
        return loop.run(work)
    finally:
        loop.close(_nothing)


async def _nothing() -> None:
    return


async def _after_all_others(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Cancel every other task of the loop, then run a last one."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await work()


def _closed_meanwhile() -> StoreUnavailable:
    return StoreUnavailable("the store was closed during the call", ambiguous=True)
