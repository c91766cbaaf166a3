"""The store contract, for every store of tests/support/store_table.py but PostgreSQL, and for Redis
alone, as a Cluster and behind Sentinels. PostgreSQL is in test_postgres_store_contract.py.

`make test` runs every rule on every store, and of the rows that only differ in the way of a command
to the store a share of them; `make soak` runs the whole product, see row_shares.py.
"""

from __future__ import annotations

from tests.contract.row_shares import Shares
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

SHARES = Shares(
    # It is `state_machine.decide` and nothing else: the reference.
    whole=("memory-sync",),
    # The same statements, scripts and transactions, from a thread and from an event loop.
    dealt=(
        ("sqlite-sync", "sqlite-async"),
        ("redis-sync", "redis-async"),
        ("etcd-sync", "etcd-async"),
    ),
    one_case=(
        ("moving-memory-sync",),
        # The scripts of redis-sync, on another server and in a Cluster.
        ("redis-sync-redis8", "redis-async-cluster"),
    ),
    carriers=("memory-async",),
    # `make test` has the row of the other kind of store.
    soak_only=(
        "moving-memory-async",
        "etcd-moving-sync",
        "redis-async-redis8",
        "redis-sync-cluster",
        "redis-sync-sentinel",
    ),
)


class TestStoreContract(StoreContractRows):
    """Every rule of the contract, on every row."""

    rows = ROWS
