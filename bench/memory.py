"""The memory store with one sequential caller, beside idemkit's in-memory backend.

Like is compared with like: function guards on both sides, blocking with blocking, asyncio with
asyncio; idemkit's asyncio API is its faster one, so `Once` is held against that as well. A fresh
store per round and few keys: idemkit slows down as its store fills.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable

from idemkit import InMemoryBackend, MethodConfig, idempotent, idempotent_sync

from bench.figures import Ratio, Report, Timing, in_turns
from oncekey import AsyncOnce, Once

OPERATIONS = 300
ROUNDS = 15
FIRST_WANTED = {"oncekey Once": 5.0, "oncekey AsyncOnce": 4.0}
REPLAY_WANTED = 20.0

Pair = tuple[float, float]


def _timed(call: Callable[[str], object]) -> Pair:
    """Microseconds per first run and per replay."""
    times = []
    for _ in range(2):
        start = time.perf_counter()
        for number in range(OPERATIONS):
            call(f"order-{number}")
        times.append((time.perf_counter() - start) / OPERATIONS * 1_000_000)
    return times[0], times[1]


def _oncekey() -> Pair:
    with Once("memory://") as once:

        @once.guard("charge", key=lambda order, cents: order)
        def charge(order: str, cents: int) -> dict[str, str]:
            return {"id": "ch_1"}

        return _timed(lambda order: charge(order=order, cents=100))


def _idemkit_blocking() -> Pair:
    @idempotent_sync(backend=InMemoryBackend(), config=MethodConfig(key_fields=["order"]))
    def charge(order: str, cents: int) -> dict[str, str]:
        return {"id": "ch_1"}

    return _timed(lambda order: charge(order=order, cents=100))


async def _oncekey_async() -> Pair:
    async with AsyncOnce("memory://") as once:

        @once.guard("charge", key=lambda order, cents: order)
        async def charge(order: str, cents: int) -> dict[str, str]:
            return {"id": "ch_1"}

        times = []
        for _ in range(2):
            start = time.perf_counter()
            for number in range(OPERATIONS):
                await charge(order=f"order-{number}", cents=100)
            times.append((time.perf_counter() - start) / OPERATIONS * 1_000_000)
        return times[0], times[1]


async def _idemkit_async(local_cache: bool) -> Pair:
    config = MethodConfig(key_fields=["order"], use_local_cache=local_cache)

    @idempotent(backend=InMemoryBackend(), config=config)
    async def charge(order: str, cents: int) -> dict[str, str]:
        return {"id": "ch_1"}

    times = []
    for _ in range(2):
        start = time.perf_counter()
        for number in range(OPERATIONS):
            await charge(order=f"order-{number}", cents=100)
        times.append((time.perf_counter() - start) / OPERATIONS * 1_000_000)
    return times[0], times[1]


def run() -> list[Report]:
    warnings.simplefilter("ignore")  # idemkit warns that no scope is set; there is one caller
    replays: dict[str, list[float]] = {}

    def contestant(name: str, once: Callable[[], Pair]) -> Callable[[int], float]:
        def turn(_: int) -> float:
            first, replay = once()
            replays.setdefault(name, []).append(replay)
            return first

        return turn

    entries = {
        "oncekey Once": _oncekey,
        "idemkit blocking": _idemkit_blocking,
        "oncekey AsyncOnce": lambda: asyncio.run(_oncekey_async()),
        "idemkit asyncio": lambda: asyncio.run(_idemkit_async(False)),
        "idemkit asyncio, local cache": lambda: asyncio.run(_idemkit_async(True)),
    }
    firsts = in_turns({name: contestant(name, fn) for name, fn in entries.items()}, ROUNDS)
    again = {
        name: Timing(name, sorted(values)[len(values) // 2], min(values), max(values))
        for name, values in replays.items()
    }
    return [
        Report("Memory, one caller: first runs", list(firsts.values()), _ratios(firsts, True)),
        Report("Memory, one caller: replays", list(again.values()), _ratios(again, False)),
    ]


def _ratios(timings: dict[str, Timing], first: bool) -> list[Ratio]:
    def ratio(ours: str, theirs: str, *, is_context: bool = False) -> Ratio:
        goal = FIRST_WANTED[ours] if first else REPLAY_WANTED
        against = timings[theirs].us / timings[ours].us
        return Ratio(f"{ours} against {theirs}", against, None if is_context else goal)

    return [
        ratio("oncekey Once", "idemkit blocking"),
        ratio("oncekey Once", "idemkit asyncio"),
        ratio("oncekey AsyncOnce", "idemkit asyncio"),
        ratio("oncekey Once", "idemkit asyncio, local cache", is_context=True),
    ]
