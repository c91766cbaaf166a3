"""The store contract, for every store of tests/support/store_table.py but PostgreSQL, and for Redis
alone, as a Cluster and behind Sentinels. PostgreSQL is in test_postgres_store_contract.py.

`make test` runs one case of a rule where only the way of a command to the store is different, and
`make soak` the whole product, see row_shares.py.
"""

from __future__ import annotations

import pytest
from tests.contract.row_shares import rows_of
from tests.contract.store_contract_rows import StoreContractRows
from tests.support.reused_redis_stores import reused_async_redis_store, reused_redis_store
from tests.support.store_table import MOVING, STORES, Row

# On other servers than the one Valkey of the table: name of the row -> how it is opened.
REDIS: dict[str, Row] = {
    "redis-sync-redis8": lambda path, clock: reused_redis_store(clock, "redis"),
    "redis-async-redis8": lambda path, clock: reused_async_redis_store(clock, "redis"),
    "redis-sync-cluster": lambda path, clock: reused_redis_store(clock, "cluster"),
    "redis-async-cluster": lambda path, clock: reused_async_redis_store(clock, "cluster"),
    "redis-sync-sentinel": lambda path, clock: reused_redis_store(clock, "sentinel"),
}
ROWS: dict[str, Row] = {
    **{name: row for name, row in {**STORES, **MOVING}.items() if not name.startswith("postgres")},
    **REDIS,
}

# Only `make soak` runs these rows; `make test` has the row of the other kind of store.
SOAK_ONLY = {
    "moving-memory-async",
    "etcd-moving-sync",
    "redis-async-redis8",
    "redis-sync-cluster",
    "redis-sync-sentinel",
}
# These rows share the code that decides with another row, which runs every case of every rule;
# `make test` runs every rule in them with one case.
ONE_CASE = [
    "memory-async",
    "sqlite-async",
    "redis-sync-redis8",
    "redis-async-cluster",
]
# The same scripts on another server and in a Cluster: each has every other rule.
TWINS = [("redis-sync-redis8", "redis-async-cluster")]
# The same scripts and transactions, from a thread and from an event loop.
HALVES = [("redis-sync", "redis-async"), ("etcd-sync", "etcd-async")]


@pytest.fixture(params=rows_of(ROWS, SOAK_ONLY))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class TestStoreContract(StoreContractRows):
    """Every rule of the contract, on every row."""

    rows = ROWS
