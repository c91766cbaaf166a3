"""A store asks every Sentinel it was given, however many callers look for the master at once."""

from __future__ import annotations

import asyncio
from typing import Any

import redis

from oncekey.stores.redis.connections import AsyncConnections, Connections, SentinelClients
from oncekey.stores.redis.options import Options

URL = "redis+sentinel://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/shop"
MASTER = {"ip": "127.0.0.1", "port": 4, "is_master": True, "num-other-sentinels": 2}
MASTER |= {"is_sdown": False, "is_odown": False}


class SilentSentinel:
    """Lets its callers wait until they are all there, and then fails."""

    def __init__(self, callers: int) -> None:
        self._barrier = asyncio.Barrier(callers)

    async def sentinel_masters(self) -> dict[str, Any]:
        await self._barrier.wait()
        raise redis.ConnectionError("down")


class AnsweringSentinel(SilentSentinel):
    """Lets its callers wait until they are all there, and then answers."""

    async def sentinel_masters(self) -> dict[str, Any]:
        await self._barrier.wait()
        return {"shop": MASTER}


def test_no_sentinel_is_lost_if_two_callers_find_the_master_at_once() -> None:
    async def main() -> None:
        connections = AsyncConnections(URL, Options())
        manager = connections._open(connections.table.nodes()[0]).sentinel_manager
        silent, answering, last = SilentSentinel(2), AnsweringSentinel(2), SilentSentinel(2)
        manager.sentinels.clear()
        manager.sentinels.extend([silent, answering, last])
        both = await asyncio.gather(*(manager.discover_master("shop") for _ in range(2)))
        assert both == [("127.0.0.1", 4)] * 2
        assert manager.sentinels == [answering, silent, last]

    asyncio.run(main())


def test_a_sync_store_has_the_same_list_of_sentinels() -> None:
    connections = Connections(URL, Options())
    pool: Any = connections._open(connections.table.nodes()[0])
    assert isinstance(pool.sentinel_manager.sentinels, SentinelClients)
    assert len(pool.sentinel_manager.sentinels) == 3
