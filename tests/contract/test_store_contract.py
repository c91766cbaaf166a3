"""The store contract, for every store of tests/support/store_table.py, every PostgreSQL set-up, and
Redis alone, as a Cluster and behind Sentinels.

The set-ups are each kind of claim and of retention, each driver, a pooler, and a caller's pool. The
driver that sends a statement and the function that the statement calls are independent, so
`make test` runs each set-up with one driver, and one case of a rule where only the way of a command
to the store is different. `make soak` runs the whole product.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.postgres_stores import RING
from tests.support.reused_redis_stores import reused_async_redis_store, reused_redis_store
from tests.support.reused_stores import loop_for, reused_async_store, reused_store
from tests.support.store_table import MOVING, STORES, Opener, Row

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
    "caller-pool": {"caller_pool": True},
    "server-15": {"major": 15},
}
# These set-ups do not depend on the driver.
ONE_DRIVER: dict[str, dict[str, Any]] = {
    "pooler-ring": {"pooler": True, **RING},
    "not-transactional": {"transactional": False},
}
# These rules hold for each of two stores that keys move between, and not for the two as one.
OF_ONE_STORE = {
    "test_s3_one_decision_reads_one_time",
    "test_i6_a_claim_that_another_store_has_granted_gets_its_fence",
    "test_i6_a_claim_with_a_fence_that_the_key_had_here_is_refused",
    "test_i7_a_claim_that_another_store_has_granted_is_refused_as_any_other",
    "test_a_long_sweep_is_not_held_up_by_what_it_must_leave",  # it counts what one store removes
}
# It sends the fence of a claim in the same batch as the claim.
KNOWS_ITS_FENCE = ("etcd-moving-sync", "test_s2_a_batch_keeps_its_order_within_an_id")
# Only `make soak` runs these rows; `make test` has the row of the other driver.
SOAK_ONLY = {
    "postgres-psycopg-row-lock",
    "postgres-psycopg-advisory-lock-ring",
    "postgres-asyncpg-row-lock-ring",
    "postgres-asyncpg-advisory-lock",
    "postgres-asyncpg-server-15",
    "postgres-asyncpg-portable",
    "postgres-psycopg-caller-pool",
    "postgres-psycopg-pooler",
    "postgres-psycopg-pooler-ring",
    "moving-memory-async",
    "postgres-moving-async",
    "etcd-moving-sync",
}


# On other servers than the one Valkey of the table: name of the row -> how it is opened.
REDIS: dict[str, Row] = {
    "redis-sync-redis8": lambda path, clock: reused_redis_store(clock, "redis"),
    "redis-async-redis8": lambda path, clock: reused_async_redis_store(clock, "redis"),
    "redis-sync-cluster": lambda path, clock: reused_redis_store(clock, "cluster"),
    "redis-async-cluster": lambda path, clock: reused_async_redis_store(clock, "cluster"),
    "redis-sync-sentinel": lambda path, clock: reused_redis_store(clock, "sentinel"),
}
SOAK_ONLY |= {"redis-async-redis8", "redis-sync-cluster", "redis-sync-sentinel"}

# These rows share the code that decides with another row, which runs every case of every rule;
# `make test` runs every rule in them with one case, see row_shares.py.
ONE_CASE = [
    "memory-async",
    "sqlite-async",
    "postgres-asyncpg",
    "postgres-psycopg-ring",
    "postgres-asyncpg-pooler",
    "postgres-asyncpg-caller-pool",
    "postgres-psycopg-server-15",
    "postgres-psycopg-not-transactional",
    "redis-async",
    "redis-sync-redis8",
    "redis-async-cluster",
    "etcd-sync",
    "postgres-moving-sync",
]


def _row(open_it: Callable[..., Any], options: dict[str, Any]) -> Row:
    return lambda path, clock: open_it(clock, **options)


ROWS: dict[str, Row] = {
    **STORES,
    **MOVING,
    **{
        f"postgres-psycopg-{name}": _row(reused_store, options)
        for name, options in {**OPTIONS, **ONE_DRIVER}.items()
    },
    **{f"postgres-asyncpg-{name}": _row(reused_async_store, o) for name, o in OPTIONS.items()},
    **REDIS,
}


@pytest.fixture(params=[name for name in ROWS if SOAK or name not in SOAK_ONLY])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class TestStoreContract(StoreContract):
    """Every rule of the contract, on every row."""

    opener: Opener
    shares_its_file: bool

    @pytest.fixture(autouse=True)
    def _use_row(self, kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        if kind in MOVING and request.function.__name__ in OF_ONE_STORE:
            pytest.skip("two stores have two clocks, and no third one grants their fences")
        if (kind, request.function.__name__) == KNOWS_ITS_FENCE:
            pytest.skip(
                "the move's mark raises the floor of etcd to the clock, so fences are higher"
            )
        self.opener = lambda clock: ROWS[kind](tmp_path, clock)
        # Stores on a server have several connections each, which race as two stores do.
        self.shares_its_file = kind in ("sqlite-sync", "sqlite-async")

    @pytest.fixture
    def loop(self, kind: str) -> Iterator[LoopThread]:
        yield from loop_for(kind)

    def open_store(self, clock: Callable[[], int]) -> Store | AsyncStore:
        return self.opener(clock)

    def open_beside(self, clock: Callable[[], int]) -> Store | AsyncStore | None:
        return self.opener(clock) if self.shares_its_file else None


@pytest.mark.parametrize("store_class", [PostgresStore, AsyncPostgresStore])
def test_i1_a_portable_claim_refuses_the_ring_which_has_no_unique_keys(store_class: Any) -> None:
    with pytest.raises(ConfigurationError, match="'portable' does without"):
        store_class("postgresql://nowhere", claim="portable", **RING)
