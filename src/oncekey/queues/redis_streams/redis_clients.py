"""Clients of redis-py: made of a URL or checked, and pipelines that run on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable

REPLY_TIMEOUT_S: Final = 5.0  # of our own clients, beyond the time of a blocking read
ERRORS: Final = (RedisError, OSError)
_OURS: Final = {
    "socket_timeout": REPLY_TIMEOUT_S,
    "socket_connect_timeout": REPLY_TIMEOUT_S,
}


def blocking_client(server: str | Any, *, other: str) -> Any:
    """A client for threads. `server` is a URL, or a client that stays the caller's; `other` is the
    class that takes clients of the other kind."""
    if isinstance(server, str):
        return _checked_url(redis.Redis, server, Retry(NoBackoff(), 0))
    if not isinstance(server, (redis.Redis, redis.RedisCluster)):
        raise _not_a_server(server, other)
    return server


def async_client(server: str | Any, *, other: str) -> Any:
    """A client for the tasks of one event loop: see `blocking_client`."""
    if isinstance(server, str):
        return _checked_url(redis.asyncio.Redis, server, AsyncRetry(NoBackoff(), 0))
    if not isinstance(server, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
        raise _not_a_server(server, other)
    return server


def run_pipeline(client: Any, commands: Iterable[list[Any]]) -> list[Any]:
    """Run commands in one round trip; their replies and errors, in order."""
    try:
        with client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return list(pipeline.execute(raise_on_error=False))
    except ERRORS as error:
        raise _away(error) from error


async def run_async_pipeline(client: Any, commands: Iterable[list[Any]]) -> list[Any]:
    """The same for asyncio."""
    try:
        async with client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return list(await pipeline.execute(raise_on_error=False))
    except ERRORS as error:
        raise _away(error) from error


def client_options(client: Any) -> dict[str, Any]:
    """What the connections of a client are made with."""
    pool = getattr(client, "connection_pool", None) or getattr(client, "nodes_manager", None)
    options: dict[str, Any] = getattr(pool, "connection_kwargs", None) or {}
    return options


def _checked_url(kind: Any, url: str, retry: Any) -> Any:
    try:
        return kind.from_url(url, **_OURS, retry=retry)
    except ValueError:
        # It is not shown: it may have a password in it.
        raise ConfigurationError(
            "server= is not an address Redis understands; write redis://user:password@host:6379/0"
        ) from None


def _not_a_server(server: object, other: str) -> ConfigurationError:
    return ConfigurationError(
        f"server= is a {type(server).__name__}; give a URL or a client of redis-py of this kind "
        f"(the other kind is for {other})"
    )


def _away(error: BaseException) -> BrokerUnavailable:
    first_line = str(error).strip().partition("\n")[0] or type(error).__name__
    return BrokerUnavailable(f"Redis does not answer as it should: {first_line}")
