"""oncekey's own slices: first runs, and replays from the store and from the cache.

Opened, warmed up, measured and closed in every slice, as the peers are.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from bench.figures import per_operation
from bench.postgres import load
from oncekey import AsyncOnce, Once, Policy

OUTCOME = {"id": "ch_1"}
REQUEST = {"cents": 100}
KNOWN_KEYS = 5_000
CACHED_REPLAYS = 20_000
POLICY = Policy(lease="30s", keep="24h")


async def body(attempt: Any) -> dict[str, str]:
    return OUTCOME


async def never(attempt: Any) -> dict[str, str]:
    raise AssertionError("a replay must not run the body")


def in_tasks(url: str, callers: int) -> float:
    """Microseconds per first run with this many tasks."""

    async def slice() -> float:
        async with AsyncOnce(url, policy=POLICY) as once:
            return await load.tasks(
                callers, lambda key: once.run("charge", key, body, request=REQUEST)
            )

    return asyncio.run(slice())


def in_threads(url: str, callers: int) -> float:
    with Once(url, policy=POLICY) as once:
        return load.threads(
            callers,
            lambda key: once.run("charge", key, lambda attempt: OUTCOME, request=REQUEST),
        )


class Known:
    """Keys that were finished before, to be replayed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keys = [load.fresh_key() for _ in range(KNOWN_KEYS)]
        asyncio.run(self._finish())

    def pick(self) -> str:
        return random.choice(self.keys)

    def from_the_store(self, callers: int) -> float:
        """Microseconds per replay, with the cache off, so that each one asks the store."""

        async def slice() -> float:
            async with AsyncOnce(self.url, policy=POLICY, cache=0) as once:
                return await load.tasks(
                    callers,
                    lambda key: once.run("charge", key, never, request=REQUEST),
                    self.pick,
                )

        return asyncio.run(slice())

    def from_the_cache(self) -> float:
        """Microseconds per replay with one caller that has seen the key before."""
        with Once(self.url, policy=POLICY) as once:
            key = self.keys[0]

            def replays(count: int) -> None:
                for _ in range(count):
                    once.run("charge", key, _never, request=REQUEST)

            replays(1)
            return per_operation(CACHED_REPLAYS, lambda: replays(CACHED_REPLAYS))

    async def _finish(self) -> None:
        await all_of(self.url, self.keys, body)


def _never(attempt: Any) -> dict[str, str]:
    raise AssertionError("a replay must not run the body")


async def all_of(url: str, keys: list[str], run: Callable[[Any], Any]) -> None:
    """Run the operation once for each of the keys, 64 at a time, nothing cached."""
    left = iter(keys)
    async with AsyncOnce(url, policy=POLICY, cache=0) as once:

        async def work() -> None:
            for key in left:
                await once.run("charge", key, run, request=REQUEST)

        await asyncio.gather(*(work() for _ in range(64)))
