"""What both colours of the store share: options, program, and what is learnt when it is opened."""

from __future__ import annotations

from typing import Any, Final

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.postgres import durability, faults
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.queries import make_migrations
from oncekey.stores.postgres.schema import Preparation, prepare

LANES: Final = 2  # while the server works on one batch, we make the next
DEADLOCK_TRIES: Final = 5
# The function of the server that warns of a commit no standby has confirmed; never translated.
UNREPLICATED: Final = "SyncRepWaitForLSN"


class PostgresBase:
    """Opens nothing."""

    immediate = False
    lazy = True
    lanes = LANES

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = Options(**options)
        self._program = self._options.program()
        self._ready = False
        self.guarantee = durability.UNSEEN
        layout = self._options.layout
        if layout.is_ring:
            self.sweep_lag = layout.sweep_lag
            self.terms_max = layout.terms_max

    def _preparation(self) -> Preparation[durability.Server]:
        options = self._options
        return prepare(options.layout, make_migrations(options.layout), migrate=options.migrate)

    def _learn(self, server: durability.Server) -> None:
        options = self._options
        self.guarantee = durability.guarantee(server, options.synchronous_commit, options.failover)
        self._ready = True


def must_be_repeated(error: StoreUnavailable, turn: int) -> bool:
    """Whether a batch that two of them stood in each other's way for is worth another turn: the
    statement was undone as a whole. Sorted ids make this rare."""
    return turn < DEADLOCK_TRIES - 1 and faults.state_of(error.__cause__) in faults.SERIALIZATION


def not_replicated() -> StoreUnavailable:
    return StoreUnavailable("committed here, but no synchronous standby has confirmed it in time")
