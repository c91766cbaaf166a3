"""The event loop of a store, in a thread of its own.

Sync callers wait for it, and so do the event loops of async callers. Keepalives are sent from here,
so an app that blocks its own event loop for a while does not lose its claims. gRPC's threads do not
survive a fork: a process that was forked from one that had used its store gets a clear error.
"""

from __future__ import annotations

import asyncio
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
        loop = self._started()
        future = asyncio.run_coroutine_threadsafe(work(), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # this thread was interrupted; nothing else is left to cancel
            raise

    async def run_async(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine there, and await its result on another event loop."""
        loop = self._started()
        future = asyncio.run_coroutine_threadsafe(work(), loop)
        return await asyncio.wrap_future(future)

    def _started(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is not None and self._process == os.getpid():
            return loop
        if loop is not None:
            raise ConfigurationError(
                "this process was forked from one that had used its etcd store, and gRPC does not "
                "survive a fork; use the store in the children only, or open it after the fork"
            )
        with self._lock:
            if self._is_closed:
                raise StoreUnavailable("the store is closed", ambiguous=False, final=True)
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._main, args=(loop,), name="oncekey-etcd", daemon=True
                )
                self._process = os.getpid()
                self._loop = loop
                self._thread.start()
            return self._loop

    @staticmethod
    def _main(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.close()

    def close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a last coroutine, then end the thread. Only the process that started it has one."""
        with self._lock:
            self._is_closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None or self._process != os.getpid():
            return
        try:
            asyncio.run_coroutine_threadsafe(work(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def abandon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The same without waiting for it, from any thread."""
        with self._lock:
            self._is_closed = True
            loop, self._loop, self._thread = self._loop, None, None
        if loop is None or self._process != os.getpid():
            return

        async def end() -> None:
            try:
                await work()
            finally:
                asyncio.get_running_loop().stop()

        asyncio.run_coroutine_threadsafe(end(), loop)

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
