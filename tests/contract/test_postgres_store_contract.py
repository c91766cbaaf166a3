"""The store contract, for every set-up of PostgreSQL.

The set-ups are each kind of claim and of retention, each driver, a pooler, and a caller's pool. The
driver that sends a statement and the function that the statement calls are independent, so
`make test` runs each set-up with one driver: every case without the ring; every rule with the ring,
without functions and with another kind of claim; a share of the rules where only the way of a
command to the store is different. `make soak` runs the whole product, see row_shares.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.row_shares import Shares
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

SHARES = Shares(
    whole=(),
    # The functions without the ring.
    dealt=(("postgres-psycopg", "postgres-asyncpg"),),
    one_case=(
        ("postgres-psycopg-ring",),
        ("postgres-psycopg-portable",),  # no functions: what they decide is decided by the core
        # The same functions, which claim in another way.
        (
            "postgres-asyncpg-row-lock",
            "postgres-psycopg-row-lock-ring",
            "postgres-psycopg-advisory-lock",
            "postgres-asyncpg-advisory-lock-ring",
        ),
    ),
    # The same statements by another way, or on another server.
    carriers=(
        "postgres-asyncpg-ring",
        "postgres-asyncpg-pooler",
        "postgres-asyncpg-caller-pool",
        "postgres-psycopg-server-15",
        "postgres-psycopg-not-transactional",
        "postgres-moving-sync",
    ),
    # `make test` has the row of the other driver.
    soak_only=(
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
    ),
)


class TestStoreContract(StoreContractRows):
    """Every rule of the contract, on every row."""

    rows = ROWS


@pytest.mark.parametrize("store_class", [PostgresStore, AsyncPostgresStore])
def test_i1_a_portable_claim_refuses_the_ring_which_has_no_unique_keys(store_class: Any) -> None:
    with pytest.raises(ConfigurationError, match="'portable' does without"):
        store_class("postgresql://nowhere", claim="portable", **RING)
