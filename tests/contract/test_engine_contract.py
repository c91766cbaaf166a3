"""The engine contract, for every store of tests/support/store_table.py, sync and async."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.row_shares import Shares
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
SHARES = Shares(
    # The rules are those of the two engines.
    whole=("memory-sync", "memory-async"),
    # An engine sees of a store what the store contract proves: replies. So each rule meets each
    # kind of store once, with the sync or with the async engine.
    one_case=(
        ("sqlite-sync", "sqlite-async"),
        (
            "postgres-psycopg",
            "postgres-asyncpg-ring",
            "postgres-asyncpg",
            "postgres-psycopg-ring",
        ),
        ("redis-sync", "redis-async"),
        ("etcd-async", "etcd-sync"),
    ),
    carriers=("moving-memory-sync",),
    # How commands reach a store through a pooler is the store contract's matter.
    soak_only=("postgres-psycopg-pooler", "postgres-asyncpg-pooler"),
)


class TestEngineContract(EngineContract):
    """Every rule of the contract, on every row."""

    opener: Opener

    @pytest.fixture(autouse=True)
    def _use_row(self, kind: str, folder: Path) -> None:
        self.opener = lambda clock: ROWS[kind](folder, clock)

    @pytest.fixture
    def loop(self, kind: str) -> Iterator[LoopThread]:
        yield from loop_for(kind)

    def open_store(self, clock: Callable[[], int]) -> Store | AsyncStore:
        return self.opener(clock)
