"""The port of a broker over redis-py, for threads and for tasks: they run the flows of
stream_program.py, each with a client of its own kind. They repeat nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import redis
import redis.asyncio
from redis.crc import key_slot
from redis.exceptions import NoScriptError, ResponseError

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.queues.broker import Settled
from oncekey.queues.broker_faults import is_fault
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.queue_message import Message
from oncekey.queues.redis_streams.redis_clients import (
    ERRORS,
    async_client,
    blocking_client,
    client_options,
)
from oncekey.queues.redis_streams.stream_errors import translated
from oncekey.queues.redis_streams.stream_program import (
    AddEntry,
    AskServer,
    Flow,
    RunScript,
    StreamEffect,
    StreamProgram,
    WaitForEntry,
)
from oncekey.queues.redis_streams.stream_scripts import script
from oncekey.queues.redrive import GoOn, to_the_end

_log = logging.getLogger("oncekey")


class RedisStreamBroker:
    """A stream, from threads. `server` is a URL, or a client that stays the caller's."""

    def __init__(self, server: str | Any, program: StreamProgram) -> None:
        self.program = program
        self._is_own = isinstance(server, str)
        self._client = blocking_client(server, other="AsyncRedisStreamConsumer")
        _check_client(self._client, program)

    def facts(self) -> BrokerFacts:
        facts: BrokerFacts = self._drive(self.program.facts())
        return facts

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        messages: Sequence[Message] = self._drive(self.program.receive(most, wait, lease))
        return messages

    def settle(self, settled: Sequence[Settled]) -> None:
        self._drive(self.program.settle(settled))

    def extend(self, messages: Sequence[Message], seconds: float) -> None:
        self._drive(self.program.extend(messages, seconds))

    def redrive(self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end) -> int:
        moved: int = self._drive(self.program.redrive(most, id, parked, go_on))
        return moved

    def close(self) -> None:
        try:
            self._drive(self.program.leave())
        except OncekeyError as error:  # what is not given back comes when its lease is over
            _log.info("nothing is given back: %s", error)
        if self._is_own:
            self._client.close()

    def _drive(self, flow: Flow) -> Any:
        result = None
        while True:
            try:
                effect = flow.send(result)
            except StopIteration as stop:
                return stop.value
            try:
                result = self._perform(effect)
            except Exception as error:
                if not isinstance(error, ERRORS) and self._is_own:
                    self._client.close()  # what it has in its pool may be half read
                raise _translated(error, self.program) from error

    def _perform(self, effect: StreamEffect) -> Any:
        execute = self._client.execute_command
        if isinstance(effect, RunScript):
            try:
                return execute(*_script_command(effect, by_digest=True))
            except NoScriptError:
                return execute(*_script_command(effect, by_digest=False))
        if isinstance(effect, AddEntry):
            return execute("XADD", effect.stream, "*", *effect.words)
        if isinstance(effect, WaitForEntry):
            return execute(*_read_command(effect, self._client))
        assert isinstance(effect, AskServer)
        try:
            return _flat_info(self._client.info())
        except ResponseError:
            return {}


class AsyncRedisStreamBroker:
    """A stream, from tasks of one event loop: see `RedisStreamBroker`."""

    def __init__(self, server: str | Any, program: StreamProgram) -> None:
        self.program = program
        self._is_own = isinstance(server, str)
        self._client = async_client(server, other="RedisStreamConsumer")
        _check_client(self._client, program)

    async def facts(self) -> BrokerFacts:
        facts: BrokerFacts = await self._drive(self.program.facts())
        return facts

    async def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        messages: Sequence[Message] = await self._drive(self.program.receive(most, wait, lease))
        return messages

    async def settle(self, settled: Sequence[Settled]) -> None:
        await self._drive(self.program.settle(settled))

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        await self._drive(self.program.extend(messages, seconds))

    async def redrive(
        self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end
    ) -> int:
        moved: int = await self._drive(self.program.redrive(most, id, parked, go_on))
        return moved

    async def close(self) -> None:
        try:
            await self._drive(self.program.leave())
        except OncekeyError as error:
            _log.info("nothing is given back: %s", error)
        finally:  # also if it is cancelled, since the server does not answer
            if self._is_own:
                await self._client.aclose()

    async def _drive(self, flow: Flow) -> Any:
        result = None
        while True:
            try:
                effect = flow.send(result)
            except StopIteration as stop:
                return stop.value
            try:
                result = await self._perform(effect)
            except BaseException as error:
                if not is_fault(error):
                    raise
                if not isinstance(error, ERRORS) and self._is_own:
                    await self._client.aclose()  # what it has in its pool may be half read
                raise _translated(error, self.program) from error

    async def _perform(self, effect: StreamEffect) -> Any:
        execute = self._client.execute_command
        if isinstance(effect, RunScript):
            try:
                return await execute(*_script_command(effect, by_digest=True))
            except NoScriptError:
                return await execute(*_script_command(effect, by_digest=False))
        if isinstance(effect, AddEntry):
            return await execute("XADD", effect.stream, "*", *effect.words)
        if isinstance(effect, WaitForEntry):
            return await execute(*_read_command(effect, self._client))
        assert isinstance(effect, AskServer)
        try:
            return _flat_info(await self._client.info())
        except ResponseError:
            return {}


def _script_command(effect: RunScript, *, by_digest: bool) -> list[Any]:
    found = script(effect.name)
    name = ("EVALSHA", found.digest) if by_digest else ("EVAL", found.text)
    return [*name, len(effect.keys), *effect.keys, *effect.arguments]


def _read_command(effect: WaitForEntry, client: Any) -> list[Any]:
    """The blocking read. It must end before the client gives its connection up."""
    milliseconds = effect.milliseconds
    timeout = client_options(client).get("socket_timeout")
    if timeout is not None:
        milliseconds = max(1, min(milliseconds, int(timeout * 500)))
    return [
        *("XREADGROUP", "GROUP", effect.group, effect.consumer),
        *("COUNT", 1, "BLOCK", milliseconds, "STREAMS", effect.stream, ">"),
    ]


def _check_client(client: Any, program: StreamProgram) -> None:
    if client_options(client).get("decode_responses"):
        raise ConfigurationError(
            "this client has decode_responses=True, which changes bytes into text; give a client "
            "without it"
        )
    own = program.settings
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


def _translated(error: BaseException, program: StreamProgram) -> OncekeyError:
    return translated(error, program.settings.stream, program.settings.group)
