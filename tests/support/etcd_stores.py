"""etcd stores for the suites that run on every store: a cluster that a run shares.

The cluster of three members is started once per run, for all of its processes, and stops when the
run ends; who uses it takes a prefix that nobody else has. A test that kills, pauses or isolates a
member starts its own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from aetcd import rpc
from tests.support.servers import processes
from tests.support.servers.etcd_cluster import EtcdCluster
from tests.support.servers.requirements import require
from tests.support.servers.server_lifetime import started
from tests.support.servers.shared_servers import shared_by_the_run

from oncekey.stores.etcd.etcd_store import AsyncEtcdStore, EtcdBase, EtcdStore
from oncekey.stores.etcd.keyspace import end_of
from oncekey.stores.etcd.shared_store import SharedStore
from oncekey.stores.etcd.transactions import transaction


def etcd() -> EtcdCluster:
    """The shared etcd cluster of three members."""
    return require(_etcd)


def etcd_alone() -> EtcdCluster:
    """The shared etcd cluster of one member."""
    return require(_etcd_alone)


@functools.cache
def _etcd() -> EtcdCluster:
    return shared_by_the_run("etcd", lambda: EtcdCluster(3, is_separable=False))


@functools.cache
def _etcd_alone() -> EtcdCluster:
    return started(EtcdCluster(1))


# --- stores that stay open from test to test ----------------------------------------------------
#
# A store connects, begins a session and starts a thread, which takes longer than most tests. So it
# stays open; before each test its prefix is emptied and its clock is replaced.


class ReplaceableClock:
    """A clock that reads the clock of the current test."""

    clock: Callable[[], int]

    def __call__(self) -> int:
        return self.clock()


class ReusedEtcdStore(EtcdStore):
    """A sync store whose `close` leaves it open."""

    def close(self) -> None:
        """End the test but not the connections."""

    def really_close(self) -> None:
        super().close()


class ReusedAsyncEtcdStore(AsyncEtcdStore):
    """An async store whose `close` leaves it open: it does not depend on the test's loop."""

    async def close(self) -> None:
        """End the test but not the connections."""

    def really_close(self) -> None:
        self._loop.close(self._end)


# Three members share two cores with the tests and their other servers.
PATIENCE = {"try_timeout": "20s", "call_timeout": "40s"}
_open_stores: dict[str, tuple[Any, ReplaceableClock]] = {}


def reused_etcd_store(clock: Callable[[], int], **options: Any) -> ReusedEtcdStore:
    """Return an empty sync store."""
    store: ReusedEtcdStore = _reuse(ReusedEtcdStore, clock, options)
    return store


def reused_async_etcd_store(clock: Callable[[], int], **options: Any) -> ReusedAsyncEtcdStore:
    """Return an empty async store."""
    store: ReusedAsyncEtcdStore = _reuse(ReusedAsyncEtcdStore, clock, options)
    return store


def _reuse(kind: type[Any], clock: Callable[[], int], options: dict[str, Any]) -> Any:
    name = f"{kind.__name__} {sorted(options.items())}"
    if name not in _open_stores:
        if not _open_stores:
            processes.at_exit(close_reused)
        replaceable = ReplaceableClock()
        prefix = f"reused-{os.getpid()}-{len(_open_stores)}"
        given = {**PATIENCE, **options}
        store = kind(etcd().addresses.split(","), prefix=prefix, clock=replaceable, **given)
        _open_stores[name] = store, replaceable
    store, replaceable = _open_stores[name]
    replaceable.clock = clock
    empty(store)
    return store


def empty(store: EtcdBase) -> None:
    """Delete everything that a store has, but for its sessions."""
    store._loop.run(store._on_loop(_delete_all))


async def _delete_all(cluster: SharedStore) -> None:
    keys = cluster.keys
    ranges = ((keys.root, keys.sessions), (end_of(keys.sessions), end_of(keys.root)))
    deletes = [
        rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=start, range_end=end))
        for start, end in ranges
    ]
    await cluster.members.call("Txn", transaction((), deletes), cluster.members.deadline())
    cluster.forget()


def close_reused() -> None:
    """Close every store, at the end of the run."""
    for store, _ in _open_stores.values():
        store.really_close()
    _open_stores.clear()
