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
from oncekey.stores.redis.keyspace import Keyspace
from oncekey.stores.redis.options import Options
from oncekey.stores.redis.program import Program
from oncekey.stores.redis.record_calls import given
from oncekey.stores.redis.scripts import scripts
from oncekey.stores.redis.server_settings import SETTINGS_CALLS, read_servers

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

    def __init__(self, mode: str, options: dict[str, Any]) -> None:
        """`mode` is how the servers are reached: standalone, sentinel or cluster."""
        self._options = Options(**options)
        self._mode = mode
        self._program = Program(
            Keyspace(self._options.prefix),
            is_cluster=mode == durability.CLUSTER,
            clock=self._options.clock,
            settings_interval=self._options.seconds("guarantee_interval"),
        )
        self._program.watch.notify = self._on_settings
        self._ready = False
        self._failure: _SetupFailure | None = None
        self._refusal = ""  # why claims are refused, if they are
        self._call_seconds = self._options.seconds("call_timeout")
        self._breaker = CircuitBreaker(self._call_seconds)
        self.guarantee = durability.NOT_CONNECTED

    # --- before the first use -------------------------------------------------------------------

    def _prepare_calls(self) -> Calls[None]:
        """Load the scripts into every node, run one, and read the servers' settings."""
        load = [
            Call("", EVERY_NODE, (), ("SCRIPT", "LOAD", script.text))
            for script in scripts().values()
        ]
        answers = given((yield [*load, *SETTINGS_CALLS]))
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
        probe = self._program.calls.for_records("probe", [bytes(16)], [()])
        clock = self._program.server_clock
        since = clock.send_time()
        ((at, *forbidden),) = given((yield [part.call for part in probe]))
        if forbidden:
            raise errors.commands_forbidden(forbidden)
        clock.observe(int(at), since)  # so that even the first claim has its latest time
        self._set_server(server)

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
        server = read_servers(answers, self._mode)
        if server is not None:
            self._set_server(server)

    def _set_server(self, server: durability.Server) -> None:
        self._program.watch.renew()
        self._refusal = durability.refusal(server)
        guarantee = durability.guarantee(server, self._options.failover)
        if guarantee != self.guarantee:
            self.guarantee = guarantee
        self._ready = True

    def _settings_calls(self) -> Calls[None]:
        """Read the settings, because claims are refused for what they were."""
        self._on_settings((yield list(SETTINGS_CALLS)))

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
