"""Imports a store's driver in a parent process, so that its forks need not import it again.

Some stores import their driver when they are opened. Opening one in the parent would do, but some
drivers start threads, which forks lack.
"""

from __future__ import annotations

import importlib

_MODULES = {
    "sqlite": ("oncekey.stores.sqlite",),
    "postgresql": (
        "oncekey.stores.postgres.psycopg_store",
        "oncekey.stores.postgres.asyncpg_store",
    ),
    "redis": ("oncekey.stores.redis.redis_store",),
    "etcd": ("oncekey.stores.etcd", "aetcd"),
}


def import_driver(url: str) -> None:
    """Import what the store of this URL needs, sync and async."""
    scheme = url.partition(":")[0].partition("+")[0]
    for module in _MODULES.get(scheme, ()):
        importlib.import_module(module)
