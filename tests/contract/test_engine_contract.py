"""The engine contract, for every store of tests/support/store_table.py, sync and async."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.row_shares import rows_of
from tests.support.reused_stores import loop_for, reused_async_store, reused_store
from tests.support.store_table import MOVING, STORES, Opener, Row

from oncekey.core.store import AsyncStore, Store
from oncekey.testing.contract import EngineContract
from oncekey.testing.sync_facade import LoopThread

ROWS: dict[str, Row] = {
    **STORES,
    "moving-memory-sync": MOVING["moving-memory-sync"],
    "postgres-psycopg-pooler": lambda path, clock: reused_store(clock, pooler=True),
    "postgres-asyncpg-pooler": lambda path, clock: reused_async_store(clock, pooler=True),
}
# Only `make soak` runs these rows. How commands reach a store through a pooler is the store
# contract's matter.
SOAK_ONLY = {"postgres-psycopg-pooler", "postgres-asyncpg-pooler"}

# The rules are those of the two engines, which run all of them with every case on memory. `make
# test` runs each of them on every store once, in turn with the sync and with the async engine.
TWINS = [
    ("sqlite-sync", "sqlite-async"),
    ("postgres-psycopg", "postgres-asyncpg"),
    ("postgres-asyncpg-ring", "postgres-psycopg-ring"),
    ("redis-sync", "redis-async"),
    ("etcd-async", "etcd-sync"),
]
ONE_CASE = ["moving-memory-sync", *(row for twins in TWINS for row in twins)]


@pytest.fixture(params=rows_of(ROWS, SOAK_ONLY))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class TestEngineContract(EngineContract):
    """Every rule of the contract, on every row."""

    opener: Opener

    @pytest.fixture(autouse=True)
    def _use_row(self, kind: str, tmp_path: Path) -> None:
        self.opener = lambda clock: ROWS[kind](tmp_path, clock)

    @pytest.fixture
    def loop(self, kind: str) -> Iterator[LoopThread]:
        yield from loop_for(kind)

    def open_store(self, clock: Callable[[], int]) -> Store | AsyncStore:
        return self.opener(clock)
