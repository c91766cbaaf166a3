"""Counters of effects, for the fakes that stand for the outside world in a test.

A fake payment provider calls `effects.record()` where the real one would charge a card. A test then
knows how often the operation ran, and `assert_idempotent` can hold a handler at that very place
while duplicates of its request arrive. Knows neither stores nor clients.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, Final, Protocol

HOLD_MAX_SECONDS: Final = 30.0


class _Gate(Protocol):
    def open(self) -> None: ...


class _ThreadGate:
    def __init__(self) -> None:
        self._event = threading.Event()

    def wait(self) -> None:
        self._event.wait(HOLD_MAX_SECONDS)

    def open(self) -> None:
        self._event.set()


class _LoopGate:
    """The same for a task; it may be opened from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> None:
        await asyncio.wait([self._opened], timeout=HOLD_MAX_SECONDS)

    def open(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._open)

    def _open(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)


class EffectCounter:
    """The effects that were recorded, in their order, and whether the next one is to be held."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._effects: list[Any] = []
        self._keys: set[object] = set()
        self._is_armed = False
        self._gates: list[_Gate] = []  # those at which somebody waits

    def __len__(self) -> int:
        return len(self._effects)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._effects))

    def __bool__(self) -> bool:
        return True  # an empty counter is a counter: `effects or default` must not drop it

    def clear(self) -> None:
        """Forgets everything that was recorded."""
        with self._lock:
            self._effects.clear()
            self._keys.clear()

    def arm(self) -> None:
        """Has the next `record` wait for `release`, after it has counted."""
        with self._lock:
            self._is_armed = True

    def is_held(self) -> bool:
        """True while a `record` waits for `release`."""
        return bool(self._gates)

    def release(self) -> None:
        """Lets a held `record` go on, and holds none any more; may be called from any thread."""
        with self._lock:
            self._is_armed = False
            gates, self._gates = self._gates, []
        for gate in gates:
            gate.open()

    def _count(self, effect: Any, key: object, gate: _Gate | None) -> bool:
        """Counts an effect; True if its caller has to wait at the gate."""
        with self._lock:
            if key is None or key not in self._keys:
                self._effects.append(effect)
                self._keys.add(key)
            if gate is None or not self._is_armed:
                return False
            self._is_armed = False
            self._gates.append(gate)
            return True


class Effects(EffectCounter):
    """Counts effects. `len(effects)` is how many there were, and it can be iterated over.

    `effect` is anything that helps to read a failure. An effect with a `key` that was recorded
    before counts once, as at a provider that deduplicates by the key it is sent.
    """

    def record(self, effect: Any = None, *, key: object = None) -> None:
        """Counts one effect. It is called where the operation does to the world what must not
        happen twice."""
        # On an event loop nothing may wait: every other request of that loop would wait with it.
        gate = _ThreadGate() if asyncio._get_running_loop() is None else None
        if self._count(effect, key, gate) and gate is not None:
            gate.wait()


class AsyncEffects(EffectCounter):
    """The same for async code: `await effects.record()`."""

    async def record(self, effect: Any = None, *, key: object = None) -> None:
        """Counts one effect; see `Effects.record`."""
        gate = _LoopGate()
        if self._count(effect, key, gate):
            await gate.wait()
