"""The async store's connections: redis-py's pools, its own per event loop, or the caller's.

This module sends batches of commands and receives their responses, and it owns that a connection is
not used again if it broke or a response on it was abandoned, and that none outlives its event loop.
It repeats nothing and knows none of our scripts.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from contextlib import suppress
from typing import Any, Final

import redis.asyncio
from redis.asyncio import sentinel
from redis.asyncio.connection import ConnectionPool, parse_url
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from oncekey.core.errors import ConfigurationError
from oncekey.stores.loop_lifetime import ClosedWithLoop
from oncekey.stores.redis import durability, errors
from oncekey.stores.redis.addresses import (
    connection_settings,
    known_options,
    parse_address,
    sentinel_settings,
)
from oncekey.stores.redis.call_delivery import Batch, Failure, Outcome, Send
from oncekey.stores.redis.caller_clients import cluster_address, plain_mode
from oncekey.stores.redis.options import Options
from oncekey.stores.redis.packed_words import packed
from oncekey.stores.redis.sentinel_clients import keep_every_sentinel
from oncekey.stores.redis.slot_table import Node, SingleNode, SlotTable

# A write to a connection that has just been closed is an AttributeError in the asyncio of Python
# 3.12.0 and 3.12.1, and a RuntimeError in uvloop. redis-py passes both on.
ERRORS: Final = (RedisError, OSError, AttributeError, RuntimeError)


class LoopPools(ClosedWithLoop):
    """The pools of one event loop."""

    def __init__(self) -> None:
        self.by_node: dict[Node, Any] = {}
        super().__init__()

    async def close_all(self) -> None:
        while self.by_node:
            _, pool = self.by_node.popitem()
            with suppress(*ERRORS):
                await pool.disconnect()
            manager = getattr(pool, "sentinel_manager", None)
            for client in manager.sentinels if manager is not None else ():
                with suppress(*ERRORS):
                    await client.aclose()


class AsyncConnections:
    """The connections to the servers of one store, from every event loop."""

    def __init__(self, address: str | Any, options: Options) -> None:
        self._options = options
        self._given: Any = None
        self._closed = False
        self._inherited: list[Any] = []
        self._reset()
        if isinstance(address, str):
            self._address = parse_address(address, parse_url)
        elif isinstance(address, redis.asyncio.RedisCluster):
            self._address = cluster_address(address, address.nodes_manager)
        elif isinstance(address, redis.asyncio.Redis):
            self._given = address.connection_pool
            self._address = plain_mode(self._given, sentinel.SentinelConnectionPool)
        else:
            raise ConfigurationError(
                f"a {type(address).__name__} is neither an address nor an asyncio client of "
                "redis-py; a sync client needs RedisStore"
            )
        self.mode = self._address.mode
        self.table: SingleNode | SlotTable
        if self.mode == durability.CLUSTER:
            self.table = SlotTable(self._address.nodes)
        else:
            self.table = SingleNode(self._address.nodes[0])
        _alive.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPools]
        self._by_loop = weakref.WeakKeyDictionary()

    def disown(self) -> None:
        """Called in a forked child: the connections are the parent's. If the child closed them, the
        event loop's selector, which both share, would stop reporting them to the parent."""
        self._inherited.append(list(self._by_loop.items()))
        self._reset()

    async def exchange(self, send: Send) -> list[Outcome]:
        """Send all batches and receive their responses; several nodes work at once."""
        if self._closed:
            raise errors.store_closed()
        if len(send.batches) == 1:
            return [await self._exchange_one(send.batches[0], send.deadline)]
        return await asyncio.gather(
            *(self._exchange_one(batch, send.deadline) for batch in send.batches)
        )

    async def _exchange_one(self, batch: Batch, deadline: float) -> Outcome:
        pool = await self._pool(batch.node)
        connection: Any = None
        is_whole = False
        try:
            # One timer for everything. redis-py would start one for each response.
            async with asyncio.timeout(deadline - time.monotonic()):
                connection = await pool.get_connection()
                pieces = packed(connection, batch.commands)
                await connection.send_packed_command(pieces, check_health=False)
                responses = [await _response(connection) for _ in batch.commands]
            is_whole = not any(errors.ends_connection(response) for response in responses)
            return responses
        except TimeoutError as error:
            return Failure(error, is_sent=connection is not None, is_silent=True)
        except ERRORS as error:
            is_sent = connection is not None and not errors.was_refused(error)
            return Failure(error, is_sent=is_sent, is_silent=isinstance(error, RedisTimeoutError))
        finally:
            if connection is not None:
                if not is_whole:
                    await connection.disconnect(nowait=True)
                await pool.release(connection)

    async def _pool(self, node: Node) -> Any:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        own = self._by_loop.get(loop) or await self._add_loop(loop)
        pool = own.by_node.get(node)
        if pool is None:
            pool = own.by_node[node] = self._open(node)
        return pool

    async def _add_loop(self, loop: asyncio.AbstractEventLoop) -> LoopPools:
        own = LoopPools()
        with self._lock:
            # Forget loops that were closed; their connections were closed with them.
            for closed in [other for other in self._by_loop if other.is_closed()]:
                del self._by_loop[closed]
            first = self._by_loop.setdefault(loop, own)
        if first is own:
            await own.begin()
        return first

    def _open(self, node: Node) -> Any:
        settings = connection_settings(self._address, node, self._options, None)
        if self.mode != durability.SENTINEL:
            return known_options(ConnectionPool(**settings))
        manager: Any = sentinel.Sentinel(  # type: ignore[no-untyped-call]
            [(node.host, node.port) for node in self._address.nodes],
            sentinel_kwargs=sentinel_settings(
                self._address, self._options.seconds("reply_timeout")
            ),
        )
        keep_every_sentinel(manager)
        pool: Any = sentinel.SentinelConnectionPool  # redis-py gives it no types
        return known_options(pool(self._address.service, manager, **settings))

    async def close(self) -> None:
        """Close our own connections; a caller's stay open."""
        self._closed = True
        current = asyncio.get_running_loop()
        with self._lock:
            by_loop = list(self._by_loop.items())
        for loop, own in by_loop:
            if loop is current:
                await own.close_all()
            else:
                _close_elsewhere(loop, own)

    def abandon(self) -> None:
        """Close without waiting, from any thread: each loop closes its own connections."""
        self._closed = True
        with self._lock:
            by_loop = list(self._by_loop.items())
        for loop, own in by_loop:
            _close_elsewhere(loop, own)

    def reopen(self) -> None:
        self._closed = False


def _close_elsewhere(loop: asyncio.AbstractEventLoop, own: LoopPools) -> None:
    """Let another loop close its connections, unless it was closed, and they with it."""
    tasks: set[asyncio.Task[None]] = set()

    def close() -> None:
        task = loop.create_task(own.close_all())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    with suppress(RuntimeError):
        loop.call_soon_threadsafe(close)


async def _response(connection: Any) -> Any:
    """The next response; a server's error is a value."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


_alive: weakref.WeakSet[AsyncConnections] = weakref.WeakSet()


def _after_fork() -> None:
    for connections in list(_alive):
        connections.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
