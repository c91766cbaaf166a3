"""`EtcdStore` and `AsyncEtcdStore`: the sync and the async form of the same store.

Both run it on an event loop of its own, in a thread of its own, which starts with the first call;
they differ only in how they wait for it. Every decision is in command_rounds.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NoReturn, TypeVar

from oncekey.core.commands import Command, Reply, Seen
from oncekey.core.errors import ConfigurationError
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import (
    SWEEP_LIMIT_DEFAULT,
    AsyncCallerTransaction,
    CallerTransaction,
    Unfinished,
)
from oncekey.stores.etcd.cluster_store import ClusterStore
from oncekey.stores.etcd.etcd_url import Options
from oncekey.stores.etcd.loop_thread import StoreLoop
from oncekey.stores.etcd.membership import NOT_CONNECTED

# One full batch costs the servers and this process less than two half-full ones, and callers that
# wait for one another's batches are no faster with two.
MAX_IN_FLIGHT: Final = 1

T = TypeVar("T")
Work = Callable[[ClusterStore], Coroutine[Any, Any, T]]


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
        self._cluster: ClusterStore | None = None

    def _on_loop(self, work: Work[T]) -> Callable[[], Coroutine[Any, Any, T]]:
        """The work, with the store, which is made on its event loop."""

        async def run() -> T:
            if self._cluster is None:
                self._cluster = ClusterStore(self.addresses, self.options)
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
