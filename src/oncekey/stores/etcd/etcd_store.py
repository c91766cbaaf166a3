"""`EtcdStore` and `AsyncEtcdStore`: the sync and the async form of the same store.

Both run it on an event loop of its own, in a thread of its own, which starts with the first call;
they differ only in how they wait for it. Keepalives are sent from there, so an app that blocks its
own event loop for a while does not lose its claims. gRPC's threads do not survive a fork: a process
that was forked from one that had used its store gets a clear error. Every decision is in
command_rounds.py.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NoReturn, TypeVar

from oncekey.core.commands import Command, Reply, Seen
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import (
    SWEEP_LIMIT_DEFAULT,
    AsyncCallerTransaction,
    CallerTransaction,
    Unfinished,
)
from oncekey.stores.etcd.members import NOT_CONNECTED
from oncekey.stores.etcd.options import Options
from oncekey.stores.etcd.shared_store import SharedStore

# One full batch costs the servers and this process less than two half-full ones, and callers that
# wait for one another's batches are no faster with two.
MAX_IN_FLIGHT: Final = 1

T = TypeVar("T")
Work = Callable[[SharedStore], Coroutine[Any, Any, T]]


class EtcdBase:
    """What both stores share. Opens nothing before the first call."""

    immediate = False
    lazy = True
    max_in_flight = MAX_IN_FLIGHT

    def __init__(self, addresses: Sequence[str], **options: Any) -> None:
        if isinstance(addresses, str) or not addresses:
            raise ConfigurationError(
                "an etcd store takes a list of addresses: ['host:2379', ...]; to give a URL, use "
                "Once('etcd://host:2379,.../prefix')"
            )
        self.addresses = list(addresses)
        self.options = Options(**options)
        self.guarantee = NOT_CONNECTED
        self.sweep_lag = self.options.us("bucket")
        self.lease_min = self.options.lease_min
        self.outcome_max = self.record_max = self.options.value_max
        self._loop = StoreLoop()
        self._cluster: SharedStore | None = None

    def _on_loop(self, work: Work[T]) -> Callable[[], Coroutine[Any, Any, T]]:
        """The work, with the store, which is made on its event loop."""

        async def run() -> T:
            if self._cluster is None:
                self._cluster = SharedStore(self.addresses, self.options)
            return await work(self._cluster)

        return run

    async def _end(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.close()

    def abandon(self) -> None:
        """Close without waiting, from any thread. Called when a dropped engine had opened it."""
        self._loop.abandon(self._end)

    def reopen(self) -> None:
        """Make a closed store usable again: its next use connects."""
        self._loop.reopen()

    def _refuse(self) -> NoReturn:
        raise ConfigurationError("etcd has no transactions of yours to take part in")


class EtcdStore(EtcdBase):
    """A sync store in an etcd cluster, given by the addresses of its members. Its first call
    connects. The options are those of oncekey.stores.etcd.Options."""

    def _run(self, work: Work[T]) -> T:
        return self._loop.run(self._on_loop(work))

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self._run(lambda cluster: cluster.apply(commands))

    def bind(self, check: bytes, /) -> Seen:
        self.guarantee, mark = self._run(lambda cluster: cluster.bind(check))
        return mark

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return self._run(lambda cluster: cluster.sweep(limit))

    def elect(self, token: bytes, lease: int, /) -> bool:
        return self._run(lambda cluster: cluster.elect(token, lease))

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return self._run(lambda cluster: cluster.lists.unfinished(after, limit))

    def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return self._run(lambda cluster: cluster.lists.search(query, limit, after))

    def history(self, id: bytes, /) -> list[Record]:
        """Past generations of a key that are still in their audit window, oldest first."""
        return self._run(lambda cluster: cluster.lists.history(id))

    def measure(self) -> Measures:
        return self._run(lambda cluster: cluster.lists.measure())

    def join(self, connection: Any, /) -> CallerTransaction:
        self._refuse()

    def close(self) -> None:
        self._loop.close(self._end)


class AsyncEtcdStore(EtcdBase):
    """The same store for asyncio. Event loops may share it."""

    async def _run(self, work: Work[T]) -> T:
        return await self._loop.run_async(self._on_loop(work))

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return await self._run(lambda cluster: cluster.apply(commands))

    async def bind(self, check: bytes, /) -> Seen:
        self.guarantee, mark = await self._run(lambda cluster: cluster.bind(check))
        return mark

    async def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return await self._run(lambda cluster: cluster.sweep(limit))

    async def elect(self, token: bytes, lease: int, /) -> bool:
        return await self._run(lambda cluster: cluster.elect(token, lease))

    async def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return await self._run(lambda cluster: cluster.lists.unfinished(after, limit))

    async def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return await self._run(lambda cluster: cluster.lists.search(query, limit, after))

    async def history(self, id: bytes, /) -> list[Record]:
        """Past generations of a key that are still in their audit window, oldest first."""
        return await self._run(lambda cluster: cluster.lists.history(id))

    async def measure(self) -> Measures:
        return await self._run(lambda cluster: cluster.lists.measure())

    def join(self, connection: Any, /) -> AsyncCallerTransaction:
        self._refuse()

    async def close(self) -> None:
        # Ending the thread waits for it, which must not stop the caller's event loop.
        await asyncio.to_thread(self._loop.close, self._end)


# --- the store's event loop -----------------------------------------------------------------------


class StoreLoop:
    """The event loop of a store, in a thread of its own, which starts at its first use."""

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
