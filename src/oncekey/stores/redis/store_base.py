"""The part that the sync and the async store share: options, program and the state of the servers.

This module decides what the servers' settings mean for the store: what it can promise, and whether
claims are refused. It opens nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from oncekey.core.commands import PUTTING, Command
from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable
from oncekey.stores.circuit_breaker import CircuitBreaker
from oncekey.stores.redis import durability, errors
from oncekey.stores.redis.calls import EVERY_NODE, Answer, Call, Calls
from oncekey.stores.redis.keyspace import BUCKETS, Keyspace
from oncekey.stores.redis.options import Options
from oncekey.stores.redis.program import Program
from oncekey.stores.redis.record_calls import given
from oncekey.stores.redis.scripts import scripts
from oncekey.stores.redis.server_settings import (
    AOF_WAIT_MS,
    aof_calls,
    read_aof,
    read_remembered,
    read_servers,
    remember,
    server_calls,
    settings_calls,
    sightings_call,
)
from oncekey.stores.redis.slot_table import SingleNode, SlotTable
from oncekey.stores.replica_sightings import NOTHING, ReplicaMemory, Sighting

# While the server works on one batch, an event loop prepares the next one: 1.6 times as many
# lifecycles on two processors as with one batch, for a tenth more of the sender's.
MAX_IN_FLIGHT: Final = 2
# Threads hand one interpreter over to each other: two half-full batches cost them more than waiting
# for one full batch.
MAX_IN_FLIGHT_THREADS: Final = 1


class _SetupFailure(NamedTuple):
    at: float
    error: OncekeyError


class RedisBase:
    """The state of a store. Opens nothing."""

    immediate = False
    lazy = True
    max_in_flight = MAX_IN_FLIGHT

    def __init__(self, mode: str, table: SingleNode | SlotTable, options: dict[str, Any]) -> None:
        """`mode` is how the servers are reached: standalone, sentinel or cluster; `table` says
        which of them has a bucket."""
        self._options = Options(**options)
        self._mode = mode
        self._table = table
        self._program = Program(
            Keyspace(self._options.prefix),
            is_cluster=mode == durability.CLUSTER,
            clock=self._options.clock,
            settings_interval=self._options.seconds("guarantee_interval"),
        )
        self._program.watch.notify = self._on_settings
        self._program.follow_up = self._follow_up
        self._ready = False
        self._failure: _SetupFailure | None = None
        self._refusal = ""  # why claims are refused, if they are
        self._call_seconds = self._options.seconds("call_timeout")
        self._breaker = CircuitBreaker(self._call_seconds)
        self.guarantee = durability.NOT_CONNECTED
        self._memory = ReplicaMemory()
        self._remembered = NOTHING
        self._sightings: tuple[Sighting, ...] = ()
        self._server = durability.UNKNOWN_SERVER
        self._ordinary_rewrite: tuple[str, ...] = ()  # of a file that was in place before

    # --- before the first use -------------------------------------------------------------------

    def _prepare_calls(self) -> Calls[None]:
        """Load the scripts into every node, run one, and read the servers' settings."""
        load = [
            Call("", EVERY_NODE, (), ("SCRIPT", "LOAD", script.text))
            for script in scripts().values()
        ]
        answers = given((yield [*load, *server_calls(self._program.calls)]))
        server = read_servers(answers[len(load) :], self._mode)
        refused = [error for each in answers[: len(load)] for error in each if _is_error(error)]
        if server is None:
            raise errors.without_info(next((e for e in answers[len(load)] if _is_error(e)), None))
        if refused:
            server = server._replace(has_scripts=False)
        refusal = durability.refusal(server)
        if refusal:
            detail = f" ({refused[0]})" if refused else ""
            raise ConfigurationError(refusal + detail)
        (probe,) = self._program.calls.for_records("probe", [bytes(16)], [()])
        clock = self._program.server_clock
        since = clock.send_time()
        answers = yield [probe.call, sightings_call(self._program.calls)]
        ((at, *forbidden),) = given(answers[:1])
        if forbidden:
            raise errors.commands_forbidden(forbidden)
        clock.observe(int(at), since)  # so that even the first claim has its latest time
        self._set_server(server, given(answers)[1])
        yield from self._follow_up()
        self._ready = True

    def _is_prepared(self, arrived: float) -> bool:
        """Called under the lock for preparing. A caller that waited while another one failed gets
        the same error: if each tried in turn, the last would wait for all of them."""
        failure = self._failure
        if not self._ready and failure is not None and failure.at >= arrived:
            raise failure.error
        return self._ready

    def _setup_failed(self, error: OncekeyError) -> OncekeyError:
        if isinstance(error, StoreUnavailable):
            error = errors.translate_setup_error(error)
        self._failure = _SetupFailure(time.monotonic(), error)
        return error

    # --- the servers' settings ------------------------------------------------------------------

    def _on_settings(self, answers: Sequence[Answer]) -> None:
        """A claim's reply has brought the servers' current settings."""
        sightings, *others = answers
        server = read_servers(others, self._mode)
        if server is not None:
            self._set_server(server, sightings)

    def _set_server(self, server: durability.Server, sightings: Answer) -> None:
        """The servers were read, and the replicas that were seen before; if those could not be
        read, what was read of them earlier still holds."""
        self._refusal = durability.refusal(server)
        if not isinstance(sightings, Exception):
            self._remembered = read_remembered(sightings)
        # A replica takes no writes, and has other things to be said about it.
        seen = server.seen if server.role == "master" else ()
        self._sightings = self._memory.observe(seen, self._remembered)
        if server.aof_in_place is None and server.aof_rewrite == self._ordinary_rewrite:
            server = server._replace(aof_in_place=True)
        self._server = server
        if server.aof_in_place is not None:
            self._publish()

    def _publish(self) -> None:
        guarantee = durability.guarantee(self._server, self._options.failover, self._sightings)
        if guarantee != self.guarantee:
            self.guarantee = guarantee
        self._program.watch.renew()  # last: from now on claims rely on what was read

    def _follow_up(self) -> Calls[None]:
        """Write down which replicas were seen, and find out what the settings do not tell."""
        due = self._memory.take_due()
        if due:
            (answer,) = yield [remember(self._program.calls, due)]
            if isinstance(answer, Exception):
                self._memory.note_failure(due, answer)
            else:
                self._memory.note_written(due)
        server = self._server
        if server.aof and server.aof_in_place is None:
            nodes = {self._table.node_of(bucket): bucket for bucket in range(BUCKETS)}
            wait_ms = min(AOF_WAIT_MS, int(self._options.seconds("reply_timeout") * 500))
            answers = yield aof_calls(self._program.calls, sorted(nodes.values()), wait_ms)
            in_place = read_aof(answers)
            if in_place:
                self._ordinary_rewrite = server.aof_rewrite  # it is not the first one
            if self._server is server:  # and was not read again meanwhile
                self._server = server._replace(aof_in_place=in_place)
        self._publish()

    def _settings_calls(self) -> Calls[None]:
        """Read the settings, because claims are refused for what they were."""
        self._on_settings((yield settings_calls(self._program.calls)))
        yield from self._follow_up()

    def _is_refused(self, commands: Sequence[Command]) -> bool:
        """True if these commands must wait for another reading of the settings."""
        return bool(self._refusal) and any(isinstance(command, PUTTING) for command in commands)

    def _without_claims(self, commands: Sequence[Command]) -> list[Command]:
        """The commands that are sent though claims are refused: what ends or renews a claim."""
        return [command for command in commands if not isinstance(command, PUTTING)]

    def _merge_refused(self, commands: Sequence[Command], replies: list[Any]) -> list[Any]:
        """The replies to all commands; to refused claims it is an error of their own (S2)."""
        given = iter(replies)
        error = StoreUnavailable(self._refusal, ambiguous=False)
        merged = [error if isinstance(c, PUTTING) else next(given) for c in commands]
        if all(reply is error for reply in merged):
            raise error
        return merged

    # --- calls ----------------------------------------------------------------------------------

    def _deadline(self) -> float:
        """When a call that begins now must have ended."""
        return time.monotonic() + self._call_seconds

    def _has_replied(self, error: Exception) -> bool:
        """True unless the server did not reply. On a cluster others may, so its nodes are watched
        one by one (call_delivery.py)."""
        return self._mode == durability.CLUSTER or not isinstance(error, errors.NoReply)

    def _note_failure(self) -> None:
        self._program.watch.expire()  # perhaps it is another server now


def _is_error(answer: Answer) -> bool:
    return isinstance(answer, Exception)
