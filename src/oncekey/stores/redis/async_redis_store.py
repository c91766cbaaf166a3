"""`AsyncRedisStore`: the async store, on redis-py.

This module runs programs: it delivers their calls (call_delivery.py) over connections
(async_connections.py). Every decision is in program.py.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from oncekey.core.commands import Command, Reply, Seen
from oncekey.core.errors import OncekeyError, StoreUnavailable
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, AsyncCallerTransaction, Unfinished
from oncekey.stores.redis import errors
from oncekey.stores.redis.async_connections import AsyncConnections
from oncekey.stores.redis.call_delivery import CallDelivery, Delivery, Pause
from oncekey.stores.redis.calls import Calls
from oncekey.stores.redis.options import Options
from oncekey.stores.redis.redis_search import measure, search
from oncekey.stores.redis.server_settings import forget, remembered
from oncekey.stores.redis.store_base import RedisBase
from oncekey.stores.redis.unfinished import unfinished
from oncekey.stores.replica_sightings import Remembered

T = TypeVar("T")


class AsyncRedisStore(RedisBase):
    """An async store on Redis or Valkey. Its first call connects. Event loops may share it.

    `address` is a URL, or a redis.asyncio.Redis or RedisCluster of yours (of one event loop). The
    options are those of oncekey.stores.redis.Options.
    """

    def __init__(self, address: str | Any, **options: Any) -> None:
        self._connections = AsyncConnections(address, Options(**options))
        super().__init__(self._connections.mode, self._connections.table, options)
        self._delivery = CallDelivery(
            self._connections.table, self._options.seconds("reply_timeout")
        )
        self._preparing: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._preparing = weakref.WeakKeyDictionary()

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        end = self._deadline()
        if self._is_refused(commands):
            await self._run(self._settings_calls, end)
        if not self._is_refused(commands):
            return await self._run(lambda: self._program.apply(commands, end), end)
        others = self._without_claims(commands)
        replies = await self._run(lambda: self._program.apply(others, end), end) if others else []
        return self._merge_refused(commands, replies)

    async def bind(self, check: bytes, /) -> Seen:
        mark = await self._run(lambda: self._program.bind(check))
        if self._program.watch.is_due():
            await self._run(self._settings_calls)
        return mark

    async def elect(self, token: bytes, lease: int, /) -> bool:
        return await self._run(lambda: self._program.elect(token, lease))

    async def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return await self._run(lambda: unfinished(self._program.calls, after, limit))

    async def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /, *, tier: str = "all") -> int:
        return await self._run(lambda: self._program.garbage.sweep(limit, tier))

    async def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return await self._run(lambda: search(self._program.calls, query, limit, after))

    async def measure(self) -> Measures:
        return await self._run(lambda: measure(self._program.calls))

    async def history(self, id: bytes, /) -> list[Record]:
        """Past generations of a key that are still in their audit window, oldest first."""
        return await self._run(lambda: self._program.history(id))

    async def replicas(self) -> Remembered:
        """The replicas that were seen, and those that were forgotten."""
        return await self._run(lambda: remembered(self._program.calls))

    async def forget_replica(self, name: str, *, by: str, why: str) -> None:
        """Declare a replica gone for good: it counts no more, until it is seen again."""
        await self._run(lambda: forget(self._program.calls, name, by=by, why=why))
        await self._run(self._settings_calls)

    def join(self, connection: Any, /) -> AsyncCallerTransaction:
        raise errors.no_transactions()

    async def close(self) -> None:
        await self._connections.close()

    def abandon(self) -> None:
        """Close without waiting, from any thread. Called when a dropped engine had opened it."""
        self._connections.abandon()

    def reopen(self) -> None:
        """Make a closed store usable again: its next use connects."""
        self._connections.reopen()

    async def prepare(self) -> None:
        """Load the scripts and read the servers' settings. Done once."""
        arrived = time.monotonic()
        loop = asyncio.get_running_loop()
        async with self._preparing.setdefault(loop, asyncio.Lock()):
            if self._is_prepared(arrived):
                return
            try:
                await self._drive(self._delivery.run(self._prepare_calls(), self._deadline()))
            except OncekeyError as error:
                raise self._setup_failed(error) from error.__cause__

    async def _run(self, program: Callable[[], Calls[T]], end: float | None = None) -> T:
        if not self._ready:
            await self.prepare()
        is_trial = self._breaker.enter()
        replied: bool | None = None
        try:
            result = await self._drive(self._delivery.run(program(), end or self._deadline()))
            replied = True
        except Exception as error:
            replied = self._has_replied(error)
            if isinstance(error, StoreUnavailable):
                self._note_failure()
            raise
        finally:
            self._breaker.leave(is_trial, replied=replied)
        return result

    async def _drive(self, delivery: Delivery[T]) -> T:
        try:
            effect = next(delivery)
            while True:
                if isinstance(effect, Pause):
                    await asyncio.sleep(effect.seconds)
                    effect = delivery.send(())
                else:
                    effect = delivery.send(await self._connections.exchange(effect))
        except StopIteration as stop:
            result: T = stop.value
            return result
