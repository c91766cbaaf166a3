"""The part that the sync and the async store share: options, program and the state of the server.

This module decides what a failure means for the store as a whole: that it was never ready, or that
some of our commits may be on no standby yet. It opens nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from oncekey.core.commands import Command, Replay, Reply, Seen
from oncekey.core.errors import OncekeyError, StoreUnavailable
from oncekey.core.record import State
from oncekey.stores.postgres import durability, errors
from oncekey.stores.postgres.locked_rows import LockAwareBatch, LockedRows
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.queries import make_migrations
from oncekey.stores.postgres.schema import SchemaProgram, prepare
from oncekey.stores.postgres.standby_program import read_server
from oncekey.stores.postgres.statements import Statement, Statements
from oncekey.stores.replica_sightings import ReplicaMemory
from oncekey.stores.server_watch import STOP_SECONDS, CircuitBreaker

MAX_IN_FLIGHT: Final = 2  # while the server works on one batch, the next one is prepared
# Threads hand one interpreter over to each other: two half-full batches cost them more than waiting
# for one full batch.
MAX_IN_FLIGHT_THREADS: Final = 1
DEADLOCK_TRIES: Final = 5
# Migrations may take long; the script itself limits how long it waits for its lock.
SCRIPT_SECONDS: Final = 86_400.0

_ENDED: Final = frozenset((State.SUCCEEDED, State.FAILED))


class _Failure(NamedTuple):
    at: float
    error: OncekeyError


class PostgresBase:
    """The state of a store. Opens nothing."""

    immediate = False
    lazy = True
    max_in_flight = MAX_IN_FLIGHT

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = Options(**options)
        self._program = self._options.program()
        self._ready = False
        self._failure: _Failure | None = None
        self._unconfirmed: set[object] = set()  # one object per failure
        self._has_synchronous_standbys = False
        self._locked_rows = LockedRows()
        self._call_seconds = self._options.call_us / 1_000_000
        self._breaker = CircuitBreaker(self._call_seconds)
        self.guarantee = durability.NOT_CONNECTED
        self._memory = ReplicaMemory()  # of standbys
        self._program.watch.notify = self._on_settings
        layout = self._options.layout
        if layout.is_ring:
            self.sweep_lag = layout.sweep_lag
            self.terms_max = layout.terms_max

    # --- before the first use -------------------------------------------------------------------

    def _prepare_schema(self) -> SchemaProgram[durability.Server]:
        options = self._options
        return prepare(options.layout, make_migrations(options.layout), migrate=options.migrate)

    def _set_server(self, server: durability.Server, since: float | None = None) -> None:
        """The server was read. `since`: the monotonic time before the query was sent."""
        self._update_guarantee(server)
        if server.identity:
            self._program.identity, self._program.address = server.identity, server.address
            if since is not None:
                self._program.server_clock.observe(server.clock, int(since * 1_000_000))
        self._ready = True

    def _on_settings(self, settings: str) -> None:
        """A claim's reply has brought the server's current settings, or they were read for it."""
        self._update_guarantee(durability.parse_settings(settings))

    def _update_guarantee(self, server: durability.Server) -> None:
        options = self._options
        self._has_synchronous_standbys = server.synchronous_standbys
        sightings = self._memory.observe(server.seen(), server.remembered)
        guarantee = durability.guarantee(
            server, options.synchronous_commit, options.failover, sightings
        )
        if guarantee != self.guarantee:
            self.guarantee = guarantee
        self._program.watch.renew()  # last: from now on claims rely on what was read

    def _is_prepared(self, arrived: float) -> bool:
        """Called under the lock for preparing. A caller that waited while another one failed gets
        the same error: if each tried in turn, the last would wait for all of them."""
        failure = self._failure
        if not self._ready and failure is not None and failure.at >= arrived:
            raise failure.error
        return self._ready

    def _setup_failed(self, error: OncekeyError) -> OncekeyError:
        translated = errors.translate_setup_error(error)
        self._failure = _Failure(time.monotonic(), translated)
        return translated

    # --- calls ----------------------------------------------------------------------------------

    def _lock_aware(self, commands: Sequence[Command]) -> LockAwareBatch:
        options = self._options
        wait = 0.0 if options.claim == "portable" else options.us("lock_timeout") / 1_000_000
        return LockAwareBatch(commands, self._locked_rows, wait)

    def _deadline(self) -> float:
        """When a call that begins now must have ended."""
        return time.monotonic() + self._call_seconds

    def _should_retry(self, error: StoreUnavailable, number: int, end: float) -> bool:
        """True if nothing of a batch was done and another try may succeed, after `number` tries.

        1. Two batches deadlocked or conflicted, which sorted ids make rare.
        2. The server's clock was set ahead, so that a claim seemed too late while its sender was
           still waiting.
        """
        state = errors.sqlstate_of(error.__cause__)
        if state == errors.CLAIM_TOO_LATE:
            self._program.server_clock.forget()
            return number == 0 and time.monotonic() < end - STOP_SECONDS
        return number < DEADLOCK_TRIES - 1 and state in errors.SERIALIZATION

    # --- commits that may not be on a standby ---------------------------------------------------
    #
    # If a commit stops waiting for the standbys, it is done all the same and can be read. A
    # repeated finish would read that the record has ended, write nothing, wait for nothing, and
    # seem to be acknowledged. So after an ambiguous failure no reply is returned before a later
    # commit in the log was confirmed.
    #
    # Another process that reads such a record has had no failure. So where there are synchronous
    # standbys, no outcome that was read is returned before a later commit was confirmed.

    def _note_failure(self, error: StoreUnavailable) -> None:
        self._program.watch.expire()  # perhaps it is another server now
        if error.ambiguous and self._options.waits_for_standbys:
            self._unconfirmed.add(object())

    def _confirm_statements(self) -> SchemaProgram[durability.Server]:
        """Commit a write and read the server's settings: after a failover it may be another
        server."""
        yield Statement("confirm")
        return (yield from read_server())

    def _tells_outcome(self, replies: Sequence[Reply]) -> bool:
        """True if a reply has an outcome that was read, and that may be on no standby yet."""
        if not (self._has_synchronous_standbys and self._options.waits_for_standbys):
            return False
        return any(
            isinstance(reply, Replay)
            or (
                isinstance(reply, Seen)
                and reply.record is not None
                and reply.record.state in _ENDED
            )
            for reply in replies
        )

    def _outcome_statements(self) -> Statements[None]:
        yield Statement("confirm")

    def _confirmed(self, failures: set[object], server: durability.Server) -> None:
        self._unconfirmed.difference_update(failures)
        self._set_server(server)
