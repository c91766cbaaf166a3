"""What both colours of the store share: options, program, and what is learnt on the way.

Owns what a failure means for the store as a whole: that it was never ready, or that commits of
ours may be on no standby yet. Opens nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from oncekey.core.commands import Command
from oncekey.core.errors import OncekeyError, StoreUnavailable
from oncekey.stores.postgres import durability, errors
from oncekey.stores.postgres.locked_rows import Isolation, LockedRows
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.program import Statement
from oncekey.stores.postgres.queries import make_migrations
from oncekey.stores.postgres.schema import Preparation, prepare
from oncekey.stores.postgres.server_clock import STOP_SECONDS, Breaker

MAX_IN_FLIGHT: Final = 2  # while the server works on one batch, we make the next
DEADLOCK_TRIES: Final = 5
# Migrations take as long as they take; the script itself bounds its wait for its turn.
SCRIPT_SECONDS: Final = 86_400.0

_CONFIRMED: Final = "confirmed"


class _Failure(NamedTuple):
    at: float
    error: OncekeyError


class PostgresBase:
    """Opens nothing."""

    immediate = False
    lazy = True
    max_in_flight = MAX_IN_FLIGHT

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = Options(**options)
        self._program = self._options.program()
        self._ready = False
        self._failure: _Failure | None = None
        self._doubts: set[object] = set()
        self._locked_rows = LockedRows()
        self._call_seconds = self._options.call_us / 1_000_000
        self._breaker = Breaker(self._call_seconds)
        self.guarantee = durability.UNSEEN
        self._program.watch.tell = self._heard_settings
        layout = self._options.layout
        if layout.is_ring:
            self.sweep_lag = layout.sweep_lag
            self.terms_max = layout.terms_max

    # --- before the first use -------------------------------------------------------------------

    def _preparation(self) -> Preparation[durability.Server]:
        options = self._options
        return prepare(options.layout, make_migrations(options.layout), migrate=options.migrate)

    def _learn(self, server: durability.Server, since: float | None = None) -> None:
        """`since`: the monotonic time before the server was asked."""
        self._promise(server)
        self._program.watch.renew()
        if server.identity:
            self._program.identity, self._program.address = server.identity, server.address
            if since is not None:
                self._program.server_clock.heard(server.clock, int(since * 1_000_000))
        self._ready = True

    def _heard_settings(self, settings: str) -> None:
        """A claim's reply has told what the server is set to now."""
        self._promise(durability.settings_of(settings))

    def _promise(self, server: durability.Server) -> None:
        options = self._options
        told = durability.guarantee(server, options.synchronous_commit, options.failover)
        if told != self.guarantee:
            self.guarantee = told

    def _is_prepared(self, arrived: float) -> bool:
        """Asked when the turn to prepare has come. Whoever waited for another one's vain try
        shares its error: were each to try in turn, the last would wait for all of them."""
        failure = self._failure
        if not self._ready and failure is not None and failure.at >= arrived:
            raise failure.error
        return self._ready

    def _failed(self, error: OncekeyError) -> OncekeyError:
        meaning = errors.preparing(error)
        self._failure = _Failure(time.monotonic(), meaning)
        return meaning

    # --- calls ----------------------------------------------------------------------------------

    def _isolation(self, commands: Sequence[Command]) -> Isolation:
        options = self._options
        patience = 0.0 if options.claim == "portable" else options.us("lock_timeout") / 1_000_000
        return Isolation(commands, self._locked_rows, patience)

    def _end(self) -> float:
        """When a call that begins now has to be over."""
        return time.monotonic() + self._call_seconds

    def _must_be_repeated(self, error: StoreUnavailable, turn: int, end: float) -> bool:
        """Whether nothing of a batch was done, and another turn may do it: two of them stood in
        each other's way, which sorted ids make rare; or the server's clock was set ahead, so that
        a claim seemed too late while its sender was still waiting."""
        state = errors.state_of(error.__cause__)
        if state == errors.NOT_IN_TIME:
            self._program.server_clock.forget()
            return turn == 0 and time.monotonic() < end - STOP_SECONDS
        return turn < DEADLOCK_TRIES - 1 and state in errors.SERIALIZATION

    # --- commits that may be here alone ---------------------------------------------------------
    #
    # Where a commit's wait for the standbys was cut short, it is done all the same and can be read.
    # A repeated finish would read that it is done, write nothing, wait for nothing, and be taken
    # for acknowledged. So after any failure that leaves a doubt, no answer is given before a
    # commit that comes later in the log was confirmed.

    def _note(self, error: StoreUnavailable) -> None:
        self._program.watch.expire()  # perhaps it is another server now
        if error.ambiguous and self._options.waits_for_standbys:
            self._doubts.add(object())

    def _confirmation(self) -> Preparation[durability.Server]:
        """Write anything, and look who stands by now: after a failover it may be another server."""
        yield Statement("elect", (None, _CONFIRMED, b"", 0))
        return durability.server_of((yield Statement("server"))[0])

    def _confirmed(self, doubts: set[object], server: durability.Server) -> None:
        self._doubts.difference_update(doubts)
        self._learn(server)
