"""Stores that fail by a script, which says which call fails and how.

    store = FaultyStore(MemoryStore(), {2: Fault.LOSE_REPLY})     # the second call of `apply`
    store = FaultyStore(inner, lambda number, commands: ...)      # or a function

A script gives, for each call, a `Fault`, an exception to raise before anything is applied, or None.
The wrapped store stays as it is. `FaultyStore` is sync, `AsyncFaultyStore` is async.
"""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oncekey.core.commands import Command, Reply, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.core.guarantees import Guarantee
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import (
    SWEEP_LIMIT_DEFAULT,
    AsyncCallerTransaction,
    AsyncStore,
    CallerTransaction,
    Store,
    StoreLimits,
    Unfinished,
)

ARRIVE_SECONDS = 30.0
# What a store may have besides its protocol; a faulty one has them if the wrapped store does.
_OPTIONAL = frozenset({"reopen", *StoreLimits._fields})


class Fault(enum.Enum):
    """How one call of `apply` fails."""

    LOSE_REPLY = "applied, and nobody is told"
    REFUSE = "not applied, and told so"
    VANISH = "not applied, and nobody can tell"
    APPLY_LATE = "not applied now, but when `deliver` is called"
    HOLD_BEFORE = "waits for `release`, then goes on"
    HOLD_AFTER = "applied, then waits for `release` before it answers"
    CRASH_BEFORE = "not applied, and whoever sent it is dead"
    CRASH_AFTER = "applied, and whoever sent it is dead"


class SimulatedCrash(Exception):
    """The owner of a command is dead: neither this command nor any later one of the same owner
    gets an answer. Whatever the code that gets this error still does, the store learns nothing of
    it, as after the end of a process."""


Script = (
    Mapping[int, Fault | Exception] | Callable[[int, Sequence[Command]], Fault | Exception | None]
)


class _Scripted:
    """The base of both stores: counts calls, chooses faults, waits for calls."""

    def __init__(self, script: Script | None, *, immediate: bool) -> None:
        self.script: Script = {} if script is None else script
        self.immediate = immediate
        self.calls: list[tuple[Command, ...]] = []
        self.down = False
        self._changed = threading.Condition()
        self._held = 0
        self._late: list[tuple[Command, ...]] = []
        self._dead: set[bytes] = set()  # the owners that have crashed

    def __getattr__(self, name: str) -> Any:
        if name in _OPTIONAL:
            return getattr(self.__dict__["inner"], name)
        raise AttributeError(f"a {type(self).__name__} has no {name}")

    def _next(self, commands: Sequence[Command]) -> Fault | Exception | None:
        with self._changed:
            self.calls.append(tuple(commands))
            number = len(self.calls)
            self._changed.notify_all()
        if self.down:
            return Fault.REFUSE
        if any(getattr(command, "owner", None) in self._dead for command in commands):
            return Fault.CRASH_BEFORE
        if isinstance(self.script, Mapping):
            return self.script.get(number)
        return self.script(number, commands)

    def _fail_before(self, fault: Fault | Exception | None, commands: Sequence[Command]) -> None:
        """Raises what a call raises that is not applied."""
        if isinstance(fault, Exception):
            raise fault
        if fault in (Fault.REFUSE, Fault.VANISH, Fault.APPLY_LATE):
            raise self._refused(fault, commands)
        if fault is Fault.CRASH_BEFORE:
            raise self._crash(fault, commands)

    def _fail_after(self, fault: Fault | Exception | None, commands: Sequence[Command]) -> None:
        """Raises what a call raises that was applied."""
        if fault is Fault.LOSE_REPLY:
            raise self._refused(fault, commands)
        if fault is Fault.CRASH_AFTER:
            raise self._crash(fault, commands)

    def _crash(self, fault: Fault, commands: Sequence[Command]) -> SimulatedCrash:
        owners = [getattr(command, "owner", None) for command in commands]
        self._dead.update(owner for owner in owners if owner is not None)
        return SimulatedCrash(f"injected: {fault.value}")

    def _refused(self, fault: Fault, commands: Sequence[Command]) -> StoreUnavailable:
        if fault is Fault.APPLY_LATE:
            self._late.append(tuple(commands))
        return StoreUnavailable(f"injected: {fault.value}", ambiguous=fault is not Fault.REFUSE)

    def _count_held(self, change: int) -> None:
        with self._changed:
            self._held += change
            self._changed.notify_all()

    @property
    def held(self) -> int:
        """How many calls are held."""
        return self._held

    def wait_held(self, count: int = 1) -> None:
        """Blocks until `count` calls are held."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._held >= count, ARRIVE_SECONDS):
                raise AssertionError(f"{self._held} calls are held, not {count}")

    def wait_calls(self, count: int) -> None:
        """Blocks until `apply` was called `count` times."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.calls) >= count, ARRIVE_SECONDS):
                raise AssertionError(f"{len(self.calls)} calls came, not {count}")

    def kinds(self) -> list[str]:
        """The names of the commands of all calls, in order."""
        return [type(command).__name__ for call in self.calls for command in call]


class FaultyStore(_Scripted):
    """A sync store that fails by a script."""

    def __init__(
        self, inner: Store, script: Script | None = None, *, immediate: bool = False
    ) -> None:
        super().__init__(script, immediate=immediate)
        self.inner = inner
        self._gate = threading.Event()

    @property
    def guarantee(self) -> Guarantee:
        return self.inner.guarantee

    @property
    def lazy(self) -> bool:
        return self.inner.lazy

    @property
    def max_in_flight(self) -> int:
        return self.inner.max_in_flight

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        fault = self._next(commands)
        self._fail_before(fault, commands)
        if fault is Fault.HOLD_BEFORE:
            self._hold()
        replies = self.inner.apply(commands)
        if fault is Fault.HOLD_AFTER:
            self._hold()
        self._fail_after(fault, commands)
        return replies

    def _hold(self) -> None:
        gate = self._gate
        self._count_held(1)
        try:
            if not gate.wait(ARRIVE_SECONDS):
                raise AssertionError("a held call was never released")
        finally:
            self._count_held(-1)

    def release(self) -> None:
        """Lets every held call go on."""
        gate, self._gate = self._gate, threading.Event()
        gate.set()

    def deliver(self) -> list[Reply]:
        """Applies the batches that were kept back."""
        late, self._late = self._late, []
        return [reply for call in late for reply in self.inner.apply(call)]

    def bind(self, check: bytes, /) -> Seen:
        if self.down:
            raise self._refused(Fault.REFUSE, ())
        return self.inner.bind(check)

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return self.inner.sweep(limit)

    def elect(self, token: bytes, lease: int, /) -> bool:
        if self.down:
            raise self._refused(Fault.REFUSE, ())
        return self.inner.elect(token, lease)

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        if self.down:
            raise self._refused(Fault.REFUSE, ())
        return self.inner.unfinished(after, limit)

    def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        if self.down:
            raise self._refused(Fault.REFUSE, ())
        return self.inner.search(query, limit, after)

    def history(self, id: bytes, /) -> list[Record]:
        return self.inner.history(id)

    def measure(self) -> Measures:
        if self.down:
            raise self._refused(Fault.REFUSE, ())
        return self.inner.measure()

    def join(self, connection: Any, /) -> CallerTransaction:
        return self.inner.join(connection)

    def close(self) -> None:
        self.inner.close()


class AsyncFaultyStore(_Scripted):
    """An async store that fails by a script."""

    def __init__(
        self, inner: AsyncStore, script: Script | None = None, *, immediate: bool = False
    ) -> None:
        super().__init__(script, immediate=immediate)
        self.inner = inner
        self._gates: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @property
    def guarantee(self) -> Guarantee:
        return self.inner.guarantee

    @property
    def lazy(self) -> bool:
        return self.inner.lazy

    @property
    def max_in_flight(self) -> int:
        return self.inner.max_in_flight

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        fault = self._next(commands)
        self._fail_before(fault, commands)
        if fault is Fault.HOLD_BEFORE:
            await self._hold()
        replies = await self.inner.apply(commands)
        if fault is Fault.HOLD_AFTER:
            await self._hold()
        self._fail_after(fault, commands)
        return replies

    async def _hold(self) -> None:
        loop = asyncio.get_running_loop()
        gate: asyncio.Future[None] = loop.create_future()
        self._gates.append((loop, gate))
        self._count_held(1)
        try:
            await gate
        finally:
            self._count_held(-1)

    def release(self) -> None:
        """Lets every held call go on; may be called from any thread."""
        gates, self._gates = self._gates, []
        for loop, gate in gates:
            loop.call_soon_threadsafe(_open, gate)

    async def deliver(self) -> list[Reply]:
        """Applies the batches that were kept back."""
        late, self._late = self._late, []
        return [reply for call in late for reply in await self.inner.apply(call)]

    async def bind(self, check: bytes, /) -> Seen:
        if self.down:
            raise self._refused(Fault.REFUSE, ())
        return await self.inner.bind(check)

    async def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return await self.inner.sweep(limit)

    async def elect(self, token: bytes, lease: int, /) -> bool:
        if self.down:
            raise self._refused(Fault.REFUSE, ())
        return await self.inner.elect(token, lease)

    async def unfinished(self, after: int, limit: int, /) -> Unfinished:
        if self.down:
            raise self._refused(Fault.REFUSE, ())
        return await self.inner.unfinished(after, limit)

    async def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        if self.down:
            raise self._refused(Fault.REFUSE, ())
        return await self.inner.search(query, limit, after)

    async def history(self, id: bytes, /) -> list[Record]:
        return await self.inner.history(id)

    async def measure(self) -> Measures:
        if self.down:
            raise self._refused(Fault.REFUSE, ())
        return await self.inner.measure()

    def join(self, connection: Any, /) -> AsyncCallerTransaction:
        return self.inner.join(connection)

    async def close(self) -> None:
        await self.inner.close()


def _open(gate: asyncio.Future[None]) -> None:
    if not gate.done():
        gate.set_result(None)
