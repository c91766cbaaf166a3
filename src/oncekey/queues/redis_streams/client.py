"""Clients of redis-py, for threads and for tasks: made of a URL or checked, they run programs of
calls, and pipelines. They repeat nothing.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from importlib import resources
from typing import Any, Final, NamedTuple, TypeVar

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.core.flow_driver import drive, drive_async
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.broker_faults import is_fault
from oncekey.queues.redis_streams.program import (
    AddEntry,
    AskServer,
    Program,
    RunScript,
    StreamCall,
    WaitForEntry,
)
from oncekey.queues.redis_streams.settings import StreamSettings, translated

T = TypeVar("T")

REPLY_TIMEOUT_S: Final = 5.0  # of our own clients, beyond the time of a blocking read
_ERRORS: Final = (RedisError, OSError)
_OURS: Final = {
    "socket_timeout": REPLY_TIMEOUT_S,
    "socket_connect_timeout": REPLY_TIMEOUT_S,
}
SCRIPT_NAMES: Final = ("open", "take", "settle", "extend", "tidy", "leave", "redrive")


class _ClientBase:
    """What both clients share: how they are made and checked.

    server     a URL, or a client of redis-py that stays the caller's
    other      the class that takes clients of the other kind
    settings   of the stream whose consumer it is for; None for a sender
    """

    def __init__(
        self,
        server: str | Any,
        kinds: tuple[Any, ...],
        retry: Any,
        other: str,
        settings: StreamSettings | None,
    ) -> None:
        self._is_own = isinstance(server, str)
        if not self._is_own and not isinstance(server, kinds):
            raise ConfigurationError(
                f"server= is a {type(server).__name__}; give a URL or a client of redis-py of this "
                f"kind (the other kind is for {other})"
            )
        self._client: Any = _of_url(kinds[0], server, retry) if self._is_own else server
        self._settings = settings
        if settings is not None:
            _check_client(self._client, settings)

    def _translated(self, error: BaseException) -> OncekeyError:
        assert self._settings is not None
        return translated(error, self._settings.stream, self._settings.group)


class StreamClient(_ClientBase):
    """A client for threads."""

    def __init__(
        self, server: str | Any, *, other: str, settings: StreamSettings | None = None
    ) -> None:
        kinds = (redis.Redis, redis.RedisCluster)
        super().__init__(server, kinds, Retry(NoBackoff(), 0), other, settings)

    def run(self, program: Program[T]) -> T:
        """Run a program of calls."""
        return drive(program, self.perform)

    def perform(self, call: StreamCall) -> Any:
        """Make a call; its errors are those of a consumer."""
        try:
            return self._execute(call)
        except Exception as error:
            if not isinstance(error, _ERRORS):
                self.close()  # what it has in its pool may be half read
            raise self._translated(error) from error

    def _execute(self, call: StreamCall) -> Any:
        execute = self._client.execute_command
        if isinstance(call, RunScript):
            try:
                return execute(*_script_command(call, by_digest=True))
            except NoScriptError:
                return execute(*_script_command(call, by_digest=False))
        if isinstance(call, AddEntry):
            return execute("XADD", call.stream, "*", *call.words)
        if isinstance(call, WaitForEntry):
            return execute(*read_command(call, self._client))
        assert isinstance(call, AskServer)
        try:
            return _flat_info(self._client.info())
        except ResponseError:
            return {}

    def pipeline(self, commands: Iterable[list[Any]]) -> list[Any]:
        """Run commands in one round trip; their replies and errors, in order."""
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return list(pipeline.execute(raise_on_error=False))
        except _ERRORS as error:
            raise _away(error) from error

    def close(self) -> None:
        """Close the client, if it was made here."""
        if self._is_own:
            self._client.close()


class AsyncStreamClient(_ClientBase):
    """A client for the tasks of one event loop."""

    def __init__(
        self, server: str | Any, *, other: str, settings: StreamSettings | None = None
    ) -> None:
        kinds = (redis.asyncio.Redis, redis.asyncio.RedisCluster)
        super().__init__(server, kinds, AsyncRetry(NoBackoff(), 0), other, settings)

    async def run(self, program: Program[T]) -> T:
        """Run a program of calls."""
        return await drive_async(program, self.perform)

    async def perform(self, call: StreamCall) -> Any:
        """Make a call; its errors are those of a consumer."""
        try:
            return await self._execute(call)
        except BaseException as error:
            if not is_fault(error):
                raise
            if not isinstance(error, _ERRORS):
                await self.close()  # what it has in its pool may be half read
            raise self._translated(error) from error

    async def _execute(self, call: StreamCall) -> Any:
        execute = self._client.execute_command
        if isinstance(call, RunScript):
            try:
                return await execute(*_script_command(call, by_digest=True))
            except NoScriptError:
                return await execute(*_script_command(call, by_digest=False))
        if isinstance(call, AddEntry):
            return await execute("XADD", call.stream, "*", *call.words)
        if isinstance(call, WaitForEntry):
            return await execute(*read_command(call, self._client))
        assert isinstance(call, AskServer)
        try:
            return _flat_info(await self._client.info())
        except ResponseError:
            return {}

    async def pipeline(self, commands: Iterable[list[Any]]) -> list[Any]:
        """Run commands in one round trip; their replies and errors, in order."""
        try:
            async with self._client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return list(await pipeline.execute(raise_on_error=False))
        except _ERRORS as error:
            raise _away(error) from error

    async def close(self) -> None:
        """Close the client, if it was made here."""
        if self._is_own:
            await self._client.aclose()


def _of_url(kind: Any, url: str, retry: Any) -> Any:
    try:
        return kind.from_url(url, **_OURS, retry=retry)
    except ValueError:
        # It is not shown: it may have a password in it.
        raise ConfigurationError(
            "server= is not an address Redis understands; write redis://user:password@host:6379/0"
        ) from None


def _options_of(client: Any) -> dict[str, Any]:
    """What the connections of a client are made with."""
    pool = getattr(client, "connection_pool", None) or getattr(client, "nodes_manager", None)
    options: dict[str, Any] = getattr(pool, "connection_kwargs", None) or {}
    return options


def _away(error: BaseException) -> BrokerUnavailable:
    first_line = str(error).strip().partition("\n")[0] or type(error).__name__
    return BrokerUnavailable(f"Redis does not answer as it should: {first_line}")


def _script_command(call: RunScript, *, by_digest: bool) -> list[Any]:
    found = script(call.name)
    name = ("EVALSHA", found.digest) if by_digest else ("EVAL", found.text)
    return [*name, len(call.keys), *call.keys, *call.arguments]


def read_command(call: WaitForEntry, client: Any) -> list[Any]:
    """The blocking read. It must end before the client gives its connection up."""
    milliseconds = call.milliseconds
    timeout = _options_of(client).get("socket_timeout")
    if timeout is not None:
        milliseconds = max(1, min(milliseconds, int(timeout * 500)))
    return [
        *("XREADGROUP", "GROUP", call.group, call.consumer),
        *("COUNT", 1, "BLOCK", milliseconds, "STREAMS", call.stream, ">"),
    ]


def _check_client(client: Any, own: StreamSettings) -> None:
    if _options_of(client).get("decode_responses"):
        raise ConfigurationError(
            "this client has decode_responses=True, which changes bytes into text; give a client "
            "without it"
        )
    keys = (own.stream, own.due_key, own.dead_key, own.parked_key, own.broker_key)
    is_cluster = isinstance(client, (redis.RedisCluster, redis.asyncio.RedisCluster))
    if is_cluster and len({key_slot(key.encode()) for key in keys}) > 1:
        raise ConfigurationError(
            "on a cluster all keys of a stream must be in one slot, since they change together; "
            f"name the stream with braces, such as {{{own.stream}}}"
        )


def _flat_info(info: Any) -> dict[str, Any]:
    """The fields of INFO; a cluster's client has them for each node, which is not looked at."""
    return info if isinstance(info, dict) and "redis_version" in info else {}


# --- scripts --------------------------------------------------------------------------------------


class Script(NamedTuple):
    """A script's text, and its digest, by which it is called."""

    text: str
    digest: str


@functools.cache
def script(name: str) -> Script:
    """The script of one of SCRIPT_NAMES."""
    folder = resources.files(__package__) / "lua"
    parts = [(folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("common", name)]
    text = "\n".join(parts)
    # The server names scripts by SHA-1; nothing secret depends on it.
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
