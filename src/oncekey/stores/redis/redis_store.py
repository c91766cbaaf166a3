"""`RedisStore`: the sync store, on redis-py.

This module runs programs: it delivers their calls (call_delivery.py) over connections
(sync_connections.py). Every decision is in program.py.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from oncekey.core.commands import Command, Reply, Seen
from oncekey.core.errors import OncekeyError, StoreUnavailable
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, CallerTransaction, Unfinished
from oncekey.stores.redis import errors
from oncekey.stores.redis.call_delivery import CallDelivery, Delivery, Pause
from oncekey.stores.redis.calls import Calls
from oncekey.stores.redis.options import Options
from oncekey.stores.redis.redis_search import measure, search
from oncekey.stores.redis.server_settings import forget, remembered
from oncekey.stores.redis.store_base import MAX_IN_FLIGHT_THREADS, RedisBase
from oncekey.stores.redis.sync_connections import SyncConnections
from oncekey.stores.redis.unfinished import unfinished
from oncekey.stores.replica_sightings import Remembered

T = TypeVar("T")


class RedisStore(RedisBase):
    """A sync store on Redis or Valkey. Its first call connects.

    `address` is a URL, or a redis.Redis or redis.RedisCluster of yours. The options are those of
    oncekey.stores.redis.Options.
    """

    max_in_flight = MAX_IN_FLIGHT_THREADS

    def __init__(self, address: str | Any, **options: Any) -> None:
        self._connections = SyncConnections(address, Options(**options))
        super().__init__(self._connections.mode, self._connections.table, options)
        self._delivery = CallDelivery(
            self._connections.table, self._options.seconds("reply_timeout")
        )
        # By process, because a fork may copy a held lock.
        self._preparing: dict[int, threading.Lock] = {}

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        end = self._deadline()
        if self._is_refused(commands):
            self._run(self._settings_calls, end)
        if not self._is_refused(commands):
            return self._run(lambda: self._program.apply(commands, end), end)
        others = self._without_claims(commands)
        replies = self._run(lambda: self._program.apply(others, end), end) if others else []
        return self._merge_refused(commands, replies)

    def bind(self, check: bytes, /) -> Seen:
        mark = self._run(lambda: self._program.bind(check))
        if self._program.watch.is_due():
            self._run(self._settings_calls)
        return mark

    def elect(self, token: bytes, lease: int, /) -> bool:
        return self._run(lambda: self._program.elect(token, lease))

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
        self._run(self._settings_calls)

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
                self._drive(self._delivery.run(self._prepare_calls(), self._deadline()))
            except OncekeyError as error:
                raise self._setup_failed(error) from error.__cause__

    def _run(self, program: Callable[[], Calls[T]], end: float | None = None) -> T:
        if not self._ready:
            self.prepare()
        is_trial = self._breaker.enter()
        replied: bool | None = None
        try:
            result = self._drive(self._delivery.run(program(), end or self._deadline()))
            replied = True
        except Exception as error:
            replied = self._has_replied(error)
            if isinstance(error, StoreUnavailable):
                self._note_failure()
            raise
        finally:
            self._breaker.leave(is_trial, replied=replied)
        return result

    def _drive(self, delivery: Delivery[T]) -> T:
        try:
            effect = next(delivery)
            while True:
                if isinstance(effect, Pause):
                    time.sleep(effect.seconds)
                    effect = delivery.send(())
                else:
                    effect = delivery.send(self._connections.exchange(effect))
        except StopIteration as stop:
            result: T = stop.value
            return result
