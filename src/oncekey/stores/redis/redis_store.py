"""`RedisStore` and `AsyncRedisStore`: the sync and the async store, on redis-py.

They run programs: their calls are delivered (call_delivery.py) over connections (connections.py).
Every decision about a key is in program.py.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.commands import PUTTING, Command, Reply, Seen
from oncekey.core.errors import OncekeyError, StoreUnavailable
from oncekey.core.flow_driver import drive, drive_async
from oncekey.core.guarantees import Guarantee
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import (
    SWEEP_LIMIT_DEFAULT,
    AsyncCallerTransaction,
    CallerTransaction,
    Unfinished,
)
from oncekey.stores.redis import errors
from oncekey.stores.redis.call_delivery import CallDelivery, Delivery, Outcome, Pause, Send
from oncekey.stores.redis.connections import AsyncConnections, Connections
from oncekey.stores.redis.durability import CLUSTER
from oncekey.stores.redis.garbage import measure
from oncekey.stores.redis.keyspace import Keyspace
from oncekey.stores.redis.options import Options
from oncekey.stores.redis.program import Program
from oncekey.stores.redis.redis_search import search, unfinished
from oncekey.stores.redis.scripts import Calls, RecordCalls
from oncekey.stores.redis.server_settings import ServerSettings, forget, remembered
from oncekey.stores.replica_sightings import Remembered
from oncekey.stores.server_watch import CircuitBreaker

T = TypeVar("T")

# While the server works on one batch, an event loop prepares the next one: 1.6 times as many
# lifecycles on two processors as with one batch, for a tenth more of the sender's.
MAX_IN_FLIGHT: Final = 2
# Threads hand one interpreter over to each other: two half-full batches cost them more than waiting
# for one full batch.
MAX_IN_FLIGHT_THREADS: Final = 1


class _SetupFailure(NamedTuple):
    at: float
    error: OncekeyError


class RedisBase:
    """What the sync and the async store share. Sends nothing."""

    immediate = False
    lazy = True
    max_in_flight = MAX_IN_FLIGHT

    def __init__(self, connections: Connections | AsyncConnections, options: Options) -> None:
        self._options = options
        self._is_cluster = connections.mode == CLUSTER
        calls = RecordCalls(
            Keyspace(options.prefix), is_cluster=self._is_cluster, clock=options.clock
        )
        self._settings = ServerSettings(calls, connections.table, options, connections.mode)
        self._program = Program(calls, self._settings)
        self._delivery = CallDelivery(connections.table, options.seconds("reply_timeout"))
        self._ready = False
        self._failure: _SetupFailure | None = None
        self._call_seconds = options.seconds("call_timeout")
        self._breaker = CircuitBreaker(self._call_seconds)

    @property
    def guarantee(self) -> Guarantee:
        return self._settings.guarantee

    # --- before the first use -------------------------------------------------------------------

    def _preparation(self) -> Delivery[None]:
        """Load the scripts and read the servers' settings."""
        program = self._settings.prepare(self._program.server_clock)
        yield from self._delivery.run(program, self._deadline())
        self._ready = True

    def _is_prepared(self, arrived: float) -> bool:
        """Called under the lock for preparing. A caller that waited while another one failed gets
        the same error: if each tried in turn, the last would wait for all of them."""
        failure = self._failure
        if not self._ready and failure is not None and failure.at >= arrived:
            raise failure.error
        return self._ready

    def _setup_failed(self, error: OncekeyError) -> OncekeyError:
        if isinstance(error, StoreUnavailable):
            error = errors.translate_setup_error(error)
        self._failure = _SetupFailure(time.monotonic(), error)
        return error

    # --- calls ----------------------------------------------------------------------------------

    def _allowed(self, commands: Sequence[Command]) -> Sequence[Command]:
        """The commands without claims, if the servers' settings forbid these; what ends or renews a
        claim is sent in any case. Raises if nothing is left."""
        if not self._is_refused(commands):
            return commands
        others = [command for command in commands if not isinstance(command, PUTTING)]
        if not others:
            raise StoreUnavailable(self._settings.refusal, ambiguous=False)
        return others

    def _with_refused(self, commands: Sequence[Command], replies: list[Any]) -> list[Any]:
        """The replies to all commands; to refused claims it is an error of their own (S2)."""
        given = iter(replies)
        error = StoreUnavailable(self._settings.refusal, ambiguous=False)
        return [error if isinstance(c, PUTTING) else next(given) for c in commands]

    def _is_refused(self, commands: Sequence[Command]) -> bool:
        """True if these commands must wait for another reading of the settings."""
        return bool(self._settings.refusal) and any(isinstance(one, PUTTING) for one in commands)

    def _deadline(self) -> float:
        """When a call that begins now must have ended."""
        return time.monotonic() + self._call_seconds

    def _note_failure(self, error: Exception) -> bool:
        """A call has failed. True unless the server did not reply. On a cluster others may, so its
        nodes are watched one by one (call_delivery.py)."""
        if isinstance(error, StoreUnavailable):
            self._settings.watch.expire()  # perhaps it is another server now
        return self._is_cluster or not isinstance(error, errors.NoReply)


class RedisStore(RedisBase):
    """A sync store on Redis or Valkey. Its first call connects.

    `address` is a URL, or a redis.Redis or redis.RedisCluster of yours. The options are those of
    oncekey.stores.redis.Options.
    """

    max_in_flight = MAX_IN_FLIGHT_THREADS

    def __init__(self, address: str | Any, **options: Any) -> None:
        checked = Options(**options)
        self._connections = Connections(address, checked)
        super().__init__(self._connections, checked)
        # By process, because a fork may copy a held lock.
        self._preparing: dict[int, threading.Lock] = {}

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        end = self._deadline()
        if self._is_refused(commands):
            self._run(self._settings.reread, end)
        sent = self._allowed(commands)
        replies = self._run(lambda: self._program.apply(sent, end), end)
        return replies if sent is commands else self._with_refused(commands, replies)

    def bind(self, check: bytes, /) -> Seen:
        mark = self._run(lambda: self._program.bind(check))
        if self._settings.watch.is_due():
            self._run(self._settings.reread)
        return mark

    def elect(self, token: bytes, lease: int, /) -> bool:
        return self._run(lambda: self._program.garbage.elect(token, lease))

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return self._run(lambda: unfinished(self._program.calls, after, limit))

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /, *, tier: str = "all") -> int:
        return self._run(lambda: self._program.garbage.sweep(limit, tier))

    def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return self._run(lambda: search(self._program.calls, query, limit, after))

    def measure(self) -> Measures:
        return self._run(lambda: measure(self._program.calls))

    def history(self, id: bytes, /) -> list[Record]:
        """Past generations of a key that are still in their audit window, oldest first."""
        return self._run(lambda: self._program.history(id))

    def replicas(self) -> Remembered:
        """The replicas that were seen, and those that were forgotten."""
        return self._run(lambda: remembered(self._program.calls))

    def forget_replica(self, name: str, *, by: str, why: str) -> None:
        """Declare a replica gone for good: it counts no more, until it is seen again."""
        self._run(lambda: forget(self._program.calls, name, by=by, why=why))
        self._run(self._settings.reread)

    def join(self, connection: Any, /) -> CallerTransaction:
        raise errors.no_transactions()

    def close(self) -> None:
        self._connections.close()

    def reopen(self) -> None:
        """Make a closed store usable again: its next use connects."""
        self._connections.reopen()

    def prepare(self) -> None:
        """Load the scripts and read the servers' settings. Done once."""
        arrived = time.monotonic()
        with self._preparing.setdefault(os.getpid(), threading.Lock()):
            if self._is_prepared(arrived):
                return
            try:
                drive(self._preparation(), self._perform)
            except OncekeyError as error:
                raise self._setup_failed(error) from error.__cause__

    def _run(self, program: Callable[[], Calls[T]], end: float | None = None) -> T:
        if not self._ready:
            self.prepare()
        is_trial = self._breaker.enter()
        replied: bool | None = None
        try:
            delivery = self._delivery.run(program(), end or self._deadline())
            result = drive(delivery, self._perform)
            replied = True
        except Exception as error:
            replied = self._note_failure(error)
            raise
        finally:
            self._breaker.leave(is_trial, replied=replied)
        return result

    def _perform(self, effect: Send | Pause) -> Sequence[Outcome]:
        if isinstance(effect, Pause):
            time.sleep(effect.seconds)
            return ()
        return self._connections.exchange(effect)


class AsyncRedisStore(RedisBase):
    """An async store on Redis or Valkey. Its first call connects. Event loops may share it.

    `address` is a URL, or a redis.asyncio.Redis or RedisCluster of yours (of one event loop). The
    options are those of oncekey.stores.redis.Options.
    """

    def __init__(self, address: str | Any, **options: Any) -> None:
        checked = Options(**options)
        self._connections = AsyncConnections(address, checked)
        super().__init__(self._connections, checked)
        self._preparing: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._preparing = weakref.WeakKeyDictionary()

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        end = self._deadline()
        if self._is_refused(commands):
            await self._run(self._settings.reread, end)
        sent = self._allowed(commands)
        replies = await self._run(lambda: self._program.apply(sent, end), end)
        return replies if sent is commands else self._with_refused(commands, replies)

    async def bind(self, check: bytes, /) -> Seen:
        mark = await self._run(lambda: self._program.bind(check))
        if self._settings.watch.is_due():
            await self._run(self._settings.reread)
        return mark

    async def elect(self, token: bytes, lease: int, /) -> bool:
        return await self._run(lambda: self._program.garbage.elect(token, lease))

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
        await self._run(self._settings.reread)

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
                await drive_async(self._preparation(), self._perform)
            except OncekeyError as error:
                raise self._setup_failed(error) from error.__cause__

    async def _run(self, program: Callable[[], Calls[T]], end: float | None = None) -> T:
        if not self._ready:
            await self.prepare()
        is_trial = self._breaker.enter()
        replied: bool | None = None
        try:
            delivery = self._delivery.run(program(), end or self._deadline())
            result = await drive_async(delivery, self._perform)
            replied = True
        except Exception as error:
            replied = self._note_failure(error)
            raise
        finally:
            self._breaker.leave(is_trial, replied=replied)
        return result

    async def _perform(self, effect: Send | Pause) -> Sequence[Outcome]:
        if isinstance(effect, Pause):
            await asyncio.sleep(effect.seconds)
            return ()
        return await self._connections.exchange(effect)
