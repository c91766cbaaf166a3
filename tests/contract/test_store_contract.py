"""The store contract, for every store of the table in conftest.py and every way PostgreSQL's can
be set up: each claim, each retention, each driver, behind a pooler, on a caller's pool.

Which driver sends a statement and which function it calls do not depend on each other: `make test`
meets each of those set-ups with one driver, `make soak` with both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.postgres_stores import RING
from tests.support.reused_stores import loop_for, reused_async_store, reused_store
from tests.support.store_table import STORES, Opener, Row

from oncekey.core.errors import ConfigurationError
from oncekey.core.store import AsyncStore, Store
from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore
from oncekey.testing.contract import StoreContract
from oncekey.testing.sync_facade import LoopThread

SOAK = bool(os.environ.get("ONCEKEY_SOAK"))

# name of the row -> the store's options
OPTIONS: dict[str, dict[str, Any]] = {
    "row-lock": {"claim": "row_lock"},
    "row-lock-ring": {"claim": "row_lock", **RING},
    "advisory-lock": {"claim": "advisory_lock"},
    "advisory-lock-ring": {"claim": "advisory_lock", **RING},
    "portable": {"claim": "portable"},
    "pooler": {"pooler": True},
    "given-pool": {"given": True},
    "server-15": {"major": 15},
}
# These do not depend on the driver.
ONCE: dict[str, dict[str, Any]] = {
    "pooler-ring": {"pooler": True, **RING},
    "not-transactional": {"transactional": False},
}
# Left to `make soak`; the other driver's row stays.
SOAKED = {
    "postgres-psycopg-row-lock",
    "postgres-psycopg-advisory-lock-ring",
    "postgres-asyncpg-row-lock-ring",
    "postgres-asyncpg-advisory-lock",
    "postgres-asyncpg-server-15",
}


def _row(open_it: Callable[..., Any], options: dict[str, Any]) -> Row:
    return lambda path, clock: open_it(clock, **options)


ROWS: dict[str, Row] = {
    **STORES,
    **{
        f"postgres-psycopg-{name}": _row(reused_store, options)
        for name, options in {**OPTIONS, **ONCE}.items()
    },
    **{f"postgres-asyncpg-{name}": _row(reused_async_store, o) for name, o in OPTIONS.items()},
}


@pytest.fixture(params=[name for name in ROWS if SOAK or name not in SOAKED])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class TestStoreContract(StoreContract):
    opener: Opener

    @pytest.fixture(autouse=True)
    def _of_this_kind(self, kind: str, tmp_path: Path) -> None:
        self.opener = lambda clock: ROWS[kind](tmp_path, clock)

    @pytest.fixture
    def loop(self, kind: str) -> Iterator[LoopThread]:
        yield from loop_for(kind)

    def open_store(self, clock: Callable[[], int]) -> Store | AsyncStore:
        return self.opener(clock)


@pytest.mark.parametrize("colour", [PostgresStore, AsyncPostgresStore])
def test_i1_the_ring_is_refused_where_nothing_would_make_its_keys_unique(colour: Any) -> None:
    with pytest.raises(ConfigurationError, match="'portable' does without"):
        colour("postgresql://nowhere", claim="portable", **RING)
