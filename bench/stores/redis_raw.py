"""The raw limit on Redis and Valkey: oncekey's own scripts, sent by redis-py alone.

There are two forms. "Pipelined" sends one call per key, as a program would that has the scripts and
knows redis-py's pipelines. "Batched" sends one call for all keys of a batch, as the store itself
does: nothing that Python sends could be less. Both have 64 lifecycles under way, claim them all and
then finish them all, and check every reply.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis.asyncio

from bench.postgres.load import SECONDS, WARM_UP_SECONDS, Calls
from oncekey.core.record import FOREVER_US, Record, State
from oncekey.stores.record_format import pack_record
from oncekey.stores.redis.keyspace import Keyspace
from oncekey.stores.redis.scripts import scripts

CALLERS = 64
KNOWN_KEYS = 5_000
PREFIX = "raw"
BODY = b'\x01{"id":"ch_1"}'
_DAY_US = 86_400_000_000
_PENDING = Record(
    id=b"", state=State.PENDING, fingerprint=b"\x01" + bytes(16), owner=bytes(16), fence=0,
    attempt=1, retry_safe=False, created_at=0, lease_until=30_000_000, finished_at=0, keep=_DAY_US,
    audit=7 * _DAY_US, scope="", label="charge", key="order-01234567-100000", steps=(), body=b"",
    note="", keep_unknown=FOREVER_US,
)  # fmt: skip
_TEMPLATE = pack_record(_PENDING, 0)
_ENDED = bytes([State.SUCCEEDED])


class RawScripts:
    """A client that claims and finishes keys by the scripts alone."""

    def __init__(self, client: Any) -> None:
        """`client` is a redis.asyncio.Redis; its methods have no types of their own."""
        self._client = client
        self._keyspace = Keyspace(PREFIX)

    async def load(self) -> None:
        for script in scripts().values():
            await self._client.script_load(script.text)

    def _words(self, name: str, keys: Sequence[bytes], *args: bytes) -> tuple[Any, ...]:
        digest = scripts()[name].digest
        return ("EVALSHA", digest, len(keys), *keys, b"", b"%d" % len(keys), *args)

    def keys(self) -> list[bytes]:
        """Keys of records that nobody had before."""
        return [self._keyspace.record(os.urandom(16)) for _ in range(CALLERS)]

    async def pipelined(self, keys: Sequence[bytes]) -> None:
        """One call per key, all of a kind in one round trip."""
        claims = self._client.pipeline(transaction=False)
        for key in keys:
            claims.execute_command(*self._words("claim", [key], b"", _TEMPLATE))
        fences = [reply[0] for reply in await claims.execute()]
        finishes = self._client.pipeline(transaction=False)
        for key, fence in zip(keys, fences, strict=True):
            finishes.execute_command(*self._words("finish", [key], _end(fence), BODY))
        assert all(len(reply) == 1 for reply in await finishes.execute())

    async def batched(self, keys: Sequence[bytes]) -> None:
        """One call for all keys."""
        reply = await self._client.execute_command(
            *self._words("claim", keys, b"", *[_TEMPLATE] * len(keys))
        )
        parts = [part for _ in keys for part in (_end(reply[0]), BODY)]
        reply = await self._client.execute_command(*self._words("finish", keys, *parts))
        assert len(reply) == 1


def _end(fence: int) -> bytes:
    return _ENDED + fence.to_bytes(8, "big") + _PENDING.owner


def lifecycles(url: str, form: str) -> float:
    """Microseconds per lifecycle: a claim and a finish."""

    async def measure() -> float:
        async with redis.asyncio.Redis.from_url(url, protocol=2) as client:
            raw = RawScripts(client)
            await raw.load()
            send = getattr(raw, form)
            return await _during(lambda: send(raw.keys()))

    return asyncio.run(measure())


def look_ups(url: str) -> float:
    """Microseconds per GET of a finished record, in pipelines of 64."""

    async def measure() -> float:
        async with redis.asyncio.Redis.from_url(url, protocol=2) as client:
            value = _TEMPLATE + BODY
            keys = [f"{PREFIX}:known:{number}" for number in range(KNOWN_KEYS)]
            await client.mset(dict.fromkeys(keys, value))
            place = 0

            async def send() -> None:
                nonlocal place
                pipeline = client.pipeline(transaction=False)
                for number in range(CALLERS):
                    pipeline.get(keys[(place + number) % KNOWN_KEYS])
                place += CALLERS
                assert all(found == value for found in await pipeline.execute())

            return await _during(send)

    return asyncio.run(measure())


async def _during(send: Callable[[], Awaitable[None]]) -> float:
    """Microseconds per key, after a warm-up."""

    async def repeat(seconds: float) -> float:
        start = time.perf_counter()
        ends, rounds = start + seconds, 0
        while time.perf_counter() < ends:
            await send()
            rounds += 1
        Calls.made += rounds * CALLERS
        return (time.perf_counter() - start) / (rounds * CALLERS) * 1_000_000

    await repeat(WARM_UP_SECONDS)
    return await repeat(SECONDS)
