"""The store contract, for every set-up of PostgreSQL.

The set-ups are each kind of claim and of retention, each driver, a pooler, and a caller's pool. The
driver that sends a statement and the function that the statement calls are independent, so
`make test` runs each set-up with one driver, and one case of a rule where only the way of a command
to the store is different. Every case runs with every kind of claim, and with and without the ring.
`make soak` runs the whole product, see row_shares.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.row_shares import rows_of
from tests.contract.store_contract_rows import StoreContractRows
from tests.support.postgres_stores import RING
from tests.support.reused_stores import reused_async_store, reused_store
from tests.support.store_table import MOVING, STORES, Row

from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore

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


def _row(open_it: Callable[..., Any], options: dict[str, Any]) -> Row:
    return lambda path, clock: open_it(clock, **options)


ROWS: dict[str, Row] = {
    **{name: row for name, row in {**STORES, **MOVING}.items() if name.startswith("postgres")},
    **{
        f"postgres-psycopg-{name}": _row(reused_store, options)
        for name, options in {**OPTIONS, **ONE_DRIVER}.items()
    },
    **{f"postgres-asyncpg-{name}": _row(reused_async_store, o) for name, o in OPTIONS.items()},
}

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
    "postgres-moving-async",
}
# These rows share the code that decides with another row, which runs every case of every rule, or
# with two rows that are halves; `make test` runs every rule in them with one case.
ONE_CASE = [
    "postgres-asyncpg",
    "postgres-psycopg-ring",
    "postgres-asyncpg-pooler",
    "postgres-asyncpg-caller-pool",
    "postgres-psycopg-server-15",
    "postgres-psycopg-not-transactional",
    "postgres-moving-sync",
]
# The same statements by another way, or on another server: each has every other rule.
TWINS = [
    ("postgres-asyncpg-pooler", "postgres-asyncpg-caller-pool"),
    ("postgres-psycopg-server-15", "postgres-psycopg-not-transactional"),
    ("postgres-asyncpg", "postgres-moving-sync"),
]
# Each kind of claim, without the ring and with it.
HALVES = [
    ("postgres-psycopg", "postgres-asyncpg-ring"),
    ("postgres-asyncpg-row-lock", "postgres-psycopg-row-lock-ring"),
    ("postgres-psycopg-advisory-lock", "postgres-asyncpg-advisory-lock-ring"),
]


@pytest.fixture(params=rows_of(ROWS, SOAK_ONLY))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class TestStoreContract(StoreContractRows):
    """Every rule of the contract, on every row."""

    rows = ROWS


@pytest.mark.parametrize("store_class", [PostgresStore, AsyncPostgresStore])
def test_i1_a_portable_claim_refuses_the_ring_which_has_no_unique_keys(store_class: Any) -> None:
    with pytest.raises(ConfigurationError, match="'portable' does without"):
        store_class("postgresql://nowhere", claim="portable", **RING)
