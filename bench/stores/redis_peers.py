"""The peers on Redis, each as it does best: fresh keys, a body that does nothing, many callers.

Powertools' layer is blocking, so it runs on threads, with a pool that has a connection for each of
them. idemkit runs on its asyncio API, with a connection for each task. Both decide one key per
round trip. Neither counts past generations, fences or steps.

Every slice opens what it needs, warms it up, measures and closes it again.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import redis
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer
from idemkit import MethodConfig, idempotent
from idemkit.backends.redis import RedisBackend

from bench.postgres import load

CALLERS = 64
OUTCOME = {"id": "ch_1"}
# How long a claim holds: 30 s, as a lease of ours.
_CONTEXT: Any = SimpleNamespace(get_remaining_time_in_millis=lambda: 30_000)


def peers(url: str) -> dict[str, Callable[[int], float]]:
    """By name: a slice, which gives the microseconds per lifecycle."""
    warnings.filterwarnings("ignore", "idemkit")  # that no scope is set: there is one caller
    return {
        f"powertools, {CALLERS} threads": lambda _: _powertools(url),
        f"idemkit, {CALLERS} tasks": lambda _: asyncio.run(_idemkit(url)),
    }


def _powertools(url: str) -> float:
    client: Any = redis.Redis.from_url(url, decode_responses=True, max_connections=CALLERS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it is to be renamed, not replaced
        layer = RedisCachePersistenceLayer(client=client)

    config = IdempotencyConfig(expires_after_seconds=86_400)
    config.register_lambda_context(_CONTEXT)

    @idempotent_function(data_keyword_argument="order", persistence_store=layer, config=config)
    def charge(*, order: str) -> dict[str, str]:
        return OUTCOME

    with client:
        return load.threads(CALLERS, lambda key: charge(order=key))


async def _idemkit(url: str) -> float:
    backend = RedisBackend.from_url(url, max_connections=CALLERS)

    @idempotent(backend=backend, config=MethodConfig(key_fields=["order"]))
    async def charge(order: str, cents: int) -> dict[str, str]:
        return OUTCOME

    async with backend:
        return await load.tasks(CALLERS, lambda key: charge(order=key, cents=100))
