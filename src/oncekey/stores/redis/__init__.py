"""`redis://host:6379/0`: a store on Redis or Valkey: one server, with Sentinel, or a Cluster."""

from __future__ import annotations

import importlib
from contextlib import closing
from typing import TYPE_CHECKING, Any

from oncekey.core.errors import ConfigurationError
from oncekey.stores.inspection import Checkup
from oncekey.stores.redis import record_checks
from oncekey.stores.redis.checkup_session import inspect, migration_script
from oncekey.stores.redis.options import Options, split_url
from oncekey.stores.redis.record_checks import CHECKS, is_same_store
from oncekey.stores.replica_sightings import Remembered

if TYPE_CHECKING:
    from oncekey.stores.redis.redis_store import AsyncRedisStore, RedisStore

__all__ = [
    "CHECKS",
    "AsyncRedisStore",
    "Options",
    "RedisStore",
    "checkup",
    "forget_replica",
    "inspect",
    "is_same_store",
    "migrate",
    "migration_script",
    "open_async",
    "open_blocking",
    "replicas",
]

_NEEDS = "the Redis store needs redis-py 8 or newer: pip install 'oncekey[redis]'"


def open_blocking(url: str) -> RedisStore:
    address, options = split_url(url)
    store: RedisStore = _store("RedisStore")(address, **_as_dict(options))
    return store


def open_async(url: str) -> AsyncRedisStore:
    address, options = split_url(url)
    store: AsyncRedisStore = _store("AsyncRedisStore")(address, **_as_dict(options))
    return store


def migrate(url: str) -> None:
    """There is nothing to create; only see whether a store would start there."""
    inspect(url)


def replicas(url: str) -> Remembered:
    """The replicas that were seen, and those that were forgotten."""
    with closing(open_blocking(url)) as store:
        return store.replicas()


def forget_replica(url: str, name: str, *, by: str, why: str) -> None:
    """Declare one of the replicas gone for good: it lowers the guarantee no more."""
    with closing(open_blocking(url)) as store:
        store.forget_replica(name, by=by, why=why)


def checkup(url: str) -> Checkup:
    """Check the health of the servers and of the keys, without writing anything."""
    return record_checks.checkup(url, open_blocking)


def __getattr__(name: str) -> Any:
    """The store classes, imported on first access, because they need redis-py."""
    if name in ("AsyncRedisStore", "RedisStore"):
        return _store(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _store(name: str) -> Any:
    try:
        module = importlib.import_module("oncekey.stores.redis.redis_store")
    except ImportError as error:
        raise ConfigurationError(_NEEDS) from error
    return getattr(module, name)


def _as_dict(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in Options.__dataclass_fields__}
