"""What the modules of the store contract share: the class with every rule, which runs on a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from tests.support.reused_stores import loop_for
from tests.support.store_table import MOVING, Opener, Row

from oncekey.core.store import AsyncStore, Store
from oncekey.testing.contract import StoreContract
from oncekey.testing.sync_facade import LoopThread

# These rules hold for each of two stores that keys move between, and not for the two as one: they
# have two clocks, no third one grants their fences, and each has a mark of its own.
OF_ONE_STORE = {
    "test_s8_bind_returns_the_mark_of_a_move_at_every_stage",
    "test_s8_the_mark_of_a_move_is_not_swept",
    "test_s3_one_decision_reads_one_time",
    "test_i6_a_claim_that_another_store_has_granted_gets_its_fence",
    "test_i6_a_claim_with_a_fence_that_the_key_had_here_is_refused",
    "test_i7_a_claim_that_another_store_has_granted_is_refused_as_any_other",
    "test_a_long_sweep_is_not_held_up_by_what_it_must_leave",  # it counts what one store removes
}
# It sends the fence of a claim in the same batch as the claim; the move's mark raises the floor of
# etcd to the clock, so that fences are higher.
KNOWS_ITS_FENCE = ("etcd-moving-sync", "test_s2_a_batch_keeps_its_order_within_an_id")


def promises(row: str, rule: str) -> bool:
    """True if the row promises what this rule of the contract asks for."""
    return not (row in MOVING and rule in OF_ONE_STORE) and (row, rule) != KNOWS_ITS_FENCE


class StoreContractRows(StoreContract):
    """Every rule of the contract, on the row that the fixture `kind` names."""

    rows: ClassVar[dict[str, Row]]
    opener: Opener
    shares_its_file: bool

    @pytest.fixture(autouse=True)
    def _use_row(self, kind: str, folder: Path) -> None:
        self.opener = lambda clock: self.rows[kind](folder, clock)
        # Stores on a server have several connections each, which race as two stores do.
        self.shares_its_file = kind in ("sqlite-sync", "sqlite-async")

    @pytest.fixture
    def loop(self, kind: str) -> Iterator[LoopThread]:
        yield from loop_for(kind)

    def open_store(self, clock: Callable[[], int]) -> Store | AsyncStore:
        return self.opener(clock)

    def open_beside(self, clock: Callable[[], int]) -> Store | AsyncStore | None:
        return self.opener(clock) if self.shares_its_file else None
