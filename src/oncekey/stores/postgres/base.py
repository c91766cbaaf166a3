"""What both colours of the store share: options, program, and what is learnt on the way.

Owns what a failure means for the store as a whole: that it was never ready, or that commits of
ours may be on no standby yet. Opens nothing.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from oncekey.core.errors import OncekeyError, StoreUnavailable
from oncekey.stores.postgres import durability, faults
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.program import Statement
from oncekey.stores.postgres.queries import make_migrations
from oncekey.stores.postgres.schema import Preparation, prepare

LANES: Final = 2  # while the server works on one batch, we make the next
DEADLOCK_TRIES: Final = 5
# The client's own patience. The server's statement_timeout ends most things sooner, but not a
# commit that waits for a standby, and it cannot be heard of when the network is silent.
GRACE_SECONDS: Final = 1.0
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
    lanes = LANES

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = Options(**options)
        self._program = self._options.program()
        self._ready = False
        self._failure: _Failure | None = None
        self._doubts: set[object] = set()
        self.guarantee = durability.UNSEEN
        layout = self._options.layout
        if layout.is_ring:
            self.sweep_lag = layout.sweep_lag
            self.terms_max = layout.terms_max

    # --- before the first use -------------------------------------------------------------------

    def _preparation(self) -> Preparation[durability.Server]:
        options = self._options
        return prepare(options.layout, make_migrations(options.layout), migrate=options.migrate)

    def _learn(self, server: durability.Server) -> None:
        options = self._options
        self.guarantee = durability.guarantee(server, options.synchronous_commit, options.failover)
        if server.identity:
            self._program.identity, self._program.address = server.identity, server.address
        self._ready = True

    def _is_prepared(self, arrived: float) -> bool:
        """Asked when the turn to prepare has come. Whoever waited for another one's vain try
        shares its error: were each to try in turn, the last would wait for all of them."""
        failure = self._failure
        if not self._ready and failure is not None and failure.at >= arrived:
            raise failure.error
        return self._ready

    def _failed(self, error: OncekeyError) -> OncekeyError:
        meaning = faults.preparing(error)
        self._failure = _Failure(time.monotonic(), meaning)
        return meaning

    # --- commits that may be here alone ---------------------------------------------------------
    #
    # Where a commit's wait for the standbys was cut short, it is done all the same and can be read.
    # A repeated finish would read that it is done, write nothing, wait for nothing, and be taken
    # for acknowledged. So after any failure that leaves a doubt, no answer is given before a
    # commit that comes later in the log was confirmed.

    def _note(self, error: StoreUnavailable) -> None:
        if error.ambiguous and self._options.waits_for_standbys:
            self._doubts.add(object())

    def _confirmation(self) -> Preparation[durability.Server]:
        """Write anything, and look who stands by now: after a failover it may be another server."""
        yield Statement("elect", (None, _CONFIRMED, b"", 0))
        return durability.server_of((yield Statement("server"))[0])

    def _confirmed(self, doubts: set[object], server: durability.Server) -> None:
        self._doubts.difference_update(doubts)
        self._learn(server)


def must_be_repeated(error: StoreUnavailable, turn: int) -> bool:
    """Whether a batch that two of them stood in each other's way for is worth another turn: the
    statement was undone as a whole. Sorted ids make this rare."""
    return turn < DEADLOCK_TRIES - 1 and faults.state_of(error.__cause__) in faults.SERIALIZATION
