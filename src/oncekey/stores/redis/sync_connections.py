"""The sync store's connections: redis-py's pools, its own or the caller's.

This module sends batches of commands and receives their responses, and it owns that a connection is
not used again if it broke or a response on it was abandoned. It repeats nothing and knows none of
our scripts.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

import redis
from redis import sentinel
from redis.connection import parse_url
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from oncekey.core.errors import ConfigurationError
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

# What is left of a deadline at least, to take in responses that have arrived already.
READ_SECONDS_MIN: Final = 0.01

ERRORS: Final = (RedisError, OSError)


class _Loan(NamedTuple):
    """A connection on which commands were sent, and how many."""

    pool: redis.ConnectionPool
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
            return _failure(error)
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


class SyncConnections:
    """The connections to the servers of one store, from every thread of every process."""

    def __init__(self, address: str | Any, options: Options) -> None:
        self._options = options
        self._given: redis.ConnectionPool | None = None
        self._pools: dict[Node, redis.ConnectionPool] = {}
        self._closed = False
        if isinstance(address, str):
            self._address = parse_address(address, parse_url)
        elif isinstance(address, redis.RedisCluster):
            self._address = cluster_address(address, address.nodes_manager)
        elif isinstance(address, redis.Redis):
            self._given = address.connection_pool
            self._address = plain_mode(self._given, sentinel.SentinelConnectionPool)
        else:
            raise ConfigurationError(
                f"a {type(address).__name__} is neither an address nor a client of redis-py; an "
                "asyncio client needs AsyncRedisStore"
            )
        self.mode = self._address.mode
        self.table: SingleNode | SlotTable
        if self.mode == durability.CLUSTER:
            self.table = SlotTable(self._address.nodes)
        else:
            self.table = SingleNode(self._address.nodes[0])

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
            return Failure(error, is_sent=False, is_silent=isinstance(error, RedisTimeoutError))
        loan = _Loan(pool, connection, len(batch.commands))
        try:
            pieces = packed(connection, batch.commands)
            connection.send_packed_command(pieces, check_health=False)
        except BaseException as error:
            loan.discard()
            if not isinstance(error, ERRORS):
                raise
            return _failure(error)
        return loan

    def _pool(self, node: Node) -> redis.ConnectionPool:
        if self._given is not None:
            return self._given
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools.setdefault(node, self._open(node))
        return pool

    def _open(self, node: Node) -> redis.ConnectionPool:
        seconds = self._options.seconds("reply_timeout")
        settings = connection_settings(self._address, node, self._options, seconds)
        if self.mode != durability.SENTINEL:
            return known_options(redis.ConnectionPool(**settings))
        manager: Any = sentinel.Sentinel(  # type: ignore[no-untyped-call]
            [(node.host, node.port) for node in self._address.nodes],
            sentinel_kwargs=sentinel_settings(self._address, seconds),
        )
        keep_every_sentinel(manager)
        pool: Any = sentinel.SentinelConnectionPool  # redis-py gives it no types
        opened: redis.ConnectionPool = pool(self._address.service, manager, **settings)
        return known_options(opened)

    def close(self) -> None:
        """Close our own connections; a caller's stay open."""
        self._closed = True
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.disconnect()
            manager = getattr(pool, "sentinel_manager", None)
            for client in manager.sentinels if manager is not None else ():
                client.close()

    def reopen(self) -> None:
        self._closed = False


def _failure(error: BaseException) -> Failure:
    return Failure(
        error,
        is_sent=not errors.was_refused(error),
        is_silent=isinstance(error, RedisTimeoutError),
    )


def _response(connection: Any, seconds: float) -> Any:
    """The next response; a server's error is a value."""
    try:
        return connection.read_response(timeout=seconds)
    except ResponseError as error:
        return error
