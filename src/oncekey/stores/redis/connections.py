"""The connections of the sync and the async store: redis-py's pools, a store's own or the caller's.

This module sends batches of commands and receives their responses. It owns that a connection is not
used again if it broke or a response on it was abandoned, and that none outlives its event loop. It
repeats nothing and knows none of our scripts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, Final, NamedTuple

import redis
import redis.asyncio
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from oncekey.core.errors import ConfigurationError
from oncekey.stores.connection_lifetime import ClosedWithLoop, PerLoop
from oncekey.stores.redis import errors
from oncekey.stores.redis.call_delivery import Batch, Failure, Outcome, Send
from oncekey.stores.redis.durability import CLUSTER, SENTINEL
from oncekey.stores.redis.keyspace import Node, SingleNode, SlotTable
from oncekey.stores.redis.options import (
    Options,
    cluster_address,
    connection_settings,
    known_options,
    parse_address,
    plain_address,
    sentinel_settings,
)

_pack: Any = None
try:
    from hiredis import pack_command as _pack
except ImportError:  # it makes things faster, and nothing else
    pass

# What is left of a deadline at least, to take in responses that have arrived already.
READ_SECONDS_MIN: Final = 0.01

ERRORS: Final = (RedisError, OSError)
# A write to a connection that has just been closed is an AttributeError in the asyncio of Python
# 3.12.0 and 3.12.1, and a RuntimeError in uvloop. redis-py passes both on.
ASYNC_ERRORS: Final = (*ERRORS, AttributeError, RuntimeError)


class SentinelClients(list[Any]):
    """redis-py's clients of the Sentinels, in the order in which it asks them for the master.

    redis-py moves the Sentinel that has answered to the front by two assignments to places that it
    read before it waited for the answer. If two callers do that at once, one Sentinel stands in the
    list twice and another one is gone: it is never asked again, and its connection is never closed.
    So this list moves a client, instead of overwriting the one that is in its place.
    """

    def __setitem__(self, place: Any, client: Any) -> None:
        """Move a client to the front. An assignment to another place is the second half of that,
        and has nothing left to do."""
        if place == 0:
            super().__setitem__(slice(None), [client, *(one for one in self if one is not client)])


class ConnectionsBase:
    """Where a store connects to, and how its pools are made.

    library       redis, or redis.asyncio, which has the same names
    expected      what an address may be beside text
    limits_reads  True if redis-py limits how long it reads
    """

    library: ModuleType
    expected: str
    limits_reads: bool = True

    def __init__(self, address: str | Any, options: Options) -> None:
        self._options = options
        self._closed = False
        self._given: Any = None  # the pool of the caller's client
        if isinstance(address, str):
            self._address = parse_address(address, self.library.connection.parse_url)
        elif isinstance(address, self.library.RedisCluster):
            self._address = cluster_address(address, address.nodes_manager)
        elif isinstance(address, self.library.Redis):
            self._given = address.connection_pool
            sentinel_pool = self.library.sentinel.SentinelConnectionPool
            self._address = plain_address(self._given, sentinel_pool)
        else:
            raise ConfigurationError(
                f"a {type(address).__name__} is neither an address nor {self.expected}"
            )
        self.mode = self._address.mode
        self.table: SingleNode | SlotTable
        if self.mode == CLUSTER:
            self.table = SlotTable(self._address.nodes)
        else:
            self.table = SingleNode(self._address.nodes[0])

    def _open(self, node: Node) -> Any:
        """A pool of our own connections to a node."""
        seconds = self._options.seconds("reply_timeout")
        read_seconds = seconds if self.limits_reads else None
        settings = connection_settings(self._address, node, self._options, read_seconds)
        if self.mode != SENTINEL:
            return known_options(self.library.ConnectionPool(**settings))
        manager = self.library.sentinel.Sentinel(
            [(node.host, node.port) for node in self._address.nodes],
            sentinel_kwargs=sentinel_settings(self._address, seconds),
        )
        manager.sentinels = SentinelClients(manager.sentinels)
        make_pool = self.library.sentinel.SentinelConnectionPool
        return known_options(make_pool(self._address.service, manager, **settings))

    def reopen(self) -> None:
        self._closed = False


def packed(connection: Any, commands: Sequence[Sequence[Any]]) -> Iterable[bytes]:
    """Commands in Redis' protocol, as the pieces that are sent. hiredis writes them twenty times as
    fast as redis-py's own code, which its asyncio client always uses; where hiredis is missing,
    redis-py's `connection` writes them."""
    if _pack is None:
        pieces: Iterable[bytes] = connection.pack_commands(commands)
        return pieces
    return [b"".join([_pack(command) for command in commands])]


def _failure(error: BaseException, *, is_sent: bool) -> Failure:
    return Failure(
        error,
        is_sent=is_sent and not errors.was_refused(error),
        is_silent=isinstance(error, RedisTimeoutError),
    )


def _sentinels_of(pool: Any) -> Sequence[Any]:
    """The clients by which a pool asks Sentinels."""
    manager = getattr(pool, "sentinel_manager", None)
    return manager.sentinels if manager is not None else ()


# --- sync -----------------------------------------------------------------------------------------


class _Loan(NamedTuple):
    """A connection on which commands were sent, and how many."""

    pool: Any
    connection: Any
    commands: int

    def receive(self, deadline: float) -> Outcome:
        """The responses; the connection goes back to its pool."""
        responses: list[Any] = []
        is_whole = False
        try:
            for _ in range(self.commands):
                left = max(READ_SECONDS_MIN, deadline - time.monotonic())
                responses.append(_response(self.connection, left))
            is_whole = not any(errors.ends_connection(response) for response in responses)
        except ERRORS as error:
            return _failure(error, is_sent=True)
        finally:
            if is_whole:
                self.pool.release(self.connection)
            else:
                self.discard()
        return responses

    def discard(self) -> None:
        """Give the connection back closed, because its protocol state is unknown."""
        self.connection.disconnect()
        self.pool.release(self.connection)


class Connections(ConnectionsBase):
    """The connections of a sync store, from every thread of every process."""

    library = redis
    expected = "a client of redis-py; an asyncio client needs AsyncRedisStore"

    def __init__(self, address: str | Any, options: Options) -> None:
        super().__init__(address, options)
        self._pools: dict[Node, Any] = {}

    def exchange(self, send: Send) -> list[Outcome]:
        """Send all batches, then receive their responses, so that the nodes work at once."""
        if self._closed:
            raise errors.store_closed()
        begun: list[_Loan | Failure] = []
        outcomes: list[Outcome] = []
        try:
            for batch in send.batches:
                begun.append(self._begin(batch))
            while begun:
                loan = begun.pop(0)
                if isinstance(loan, Failure):
                    outcomes.append(loan)
                else:
                    outcomes.append(loan.receive(send.deadline))
        finally:
            for loan in begun:  # an interruption has left them
                if isinstance(loan, _Loan):
                    loan.discard()
        return outcomes

    def _begin(self, batch: Batch) -> _Loan | Failure:
        pool = self._pool(batch.node)
        try:
            connection: Any = pool.get_connection()
        except ERRORS as error:
            return _failure(error, is_sent=False)
        loan = _Loan(pool, connection, len(batch.commands))
        try:
            pieces = packed(connection, batch.commands)
            connection.send_packed_command(pieces, check_health=False)
        except BaseException as error:
            loan.discard()
            if not isinstance(error, ERRORS):
                raise
            return _failure(error, is_sent=True)
        return loan

    def _pool(self, node: Node) -> Any:
        if self._given is not None:
            return self._given
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools.setdefault(node, self._open(node))
        return pool

    def close(self) -> None:
        """Close our own connections; a caller's stay open."""
        self._closed = True
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.disconnect()
            for client in _sentinels_of(pool):
                client.close()


def _response(connection: Any, seconds: float) -> Any:
    """The next response; a server's error is a value."""
    try:
        return connection.read_response(timeout=seconds)
    except ResponseError as error:
        return error


# --- async ----------------------------------------------------------------------------------------


class LoopPools(ClosedWithLoop):
    """The pools of one event loop."""

    def __init__(self) -> None:
        self.by_node: dict[Node, Any] = {}
        super().__init__()

    async def close_all(self) -> None:
        while self.by_node:
            _, pool = self.by_node.popitem()
            with suppress(*ASYNC_ERRORS):
                await pool.disconnect()
            for client in _sentinels_of(pool):
                with suppress(*ASYNC_ERRORS):
                    await client.aclose()


class AsyncConnections(ConnectionsBase):
    """The connections of an async store, from every event loop."""

    library = redis.asyncio
    expected = "an asyncio client of redis-py; a sync client needs RedisStore"
    limits_reads = False  # one timer limits a whole batch, where redis-py would start many

    def __init__(self, address: str | Any, options: Options) -> None:
        super().__init__(address, options)
        self._loops = PerLoop(LoopPools)

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
            async with asyncio.timeout(deadline - time.monotonic()):
                connection = await pool.get_connection()
                pieces = packed(connection, batch.commands)
                await connection.send_packed_command(pieces, check_health=False)
                responses = [await _async_response(connection) for _ in batch.commands]
            is_whole = not any(errors.ends_connection(response) for response in responses)
            return responses
        except TimeoutError as error:
            return Failure(error, is_sent=connection is not None, is_silent=True)
        except ASYNC_ERRORS as error:
            return _failure(error, is_sent=connection is not None)
        finally:
            if connection is not None:
                if not is_whole:
                    await connection.disconnect(nowait=True)
                await pool.release(connection)

    async def _pool(self, node: Node) -> Any:
        if self._given is not None:
            return self._given
        own = self._loops.find() or await self._loops.add()
        pool = own.by_node.get(node)
        if pool is None:
            pool = own.by_node[node] = self._open(node)
        return pool

    async def close(self) -> None:
        """Close our own connections; a caller's stay open."""
        self._closed = True
        await self._loops.close()

    def abandon(self) -> None:
        """Close without waiting, from any thread: each loop closes its own connections."""
        self._closed = True
        self._loops.abandon()


async def _async_response(connection: Any) -> Any:
    """The next response; a server's error is a value."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
