"""`redis://host:6379/0`: a store on Redis or Valkey: one server, with Sentinel, or a Cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncekey.core.errors import ConfigurationError
from oncekey.stores.redis.options import Options, split_url

if TYPE_CHECKING:
    from oncekey.stores.redis.async_redis_store import AsyncRedisStore
    from oncekey.stores.redis.redis_store import RedisStore

__all__ = ["AsyncRedisStore", "Options", "RedisStore", "open_async", "open_blocking"]

_NEEDS = "the Redis store needs redis-py 8 or newer: pip install 'oncekey[redis]'"


def open_blocking(url: str) -> RedisStore:
    address, options = split_url(url)
    return _sync_store()(address, **_as_dict(options))


def open_async(url: str) -> AsyncRedisStore:
    address, options = split_url(url)
    return _async_store()(address, **_as_dict(options))


def __getattr__(name: str) -> Any:
    """The store classes, imported on first access, because they need redis-py."""
    if name == "RedisStore":
        return _sync_store()
    if name == "AsyncRedisStore":
        return _async_store()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _sync_store() -> type[RedisStore]:
    try:
        from oncekey.stores.redis.redis_store import RedisStore
    except ImportError as error:
        raise ConfigurationError(_NEEDS) from error
    return RedisStore


def _async_store() -> type[AsyncRedisStore]:
    try:
        from oncekey.stores.redis.async_redis_store import AsyncRedisStore
    except ImportError as error:
        raise ConfigurationError(_NEEDS) from error
    return AsyncRedisStore


def _as_dict(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in Options.__dataclass_fields__}
