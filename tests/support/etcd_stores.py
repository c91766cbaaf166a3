"""etcd stores for the suites that run on every store: a cluster that a run shares.

The cluster of three members is started once per test process and stops when the run ends. A test
that kills, pauses or isolates a member starts its own.
"""

from __future__ import annotations

import functools

from tests.support.servers.etcd_cluster import EtcdCluster
from tests.support.servers.requirements import require
from tests.support.servers.server_lifetime import started


def etcd() -> EtcdCluster:
    """The shared etcd cluster of three members."""
    return require(_etcd)


def etcd_alone() -> EtcdCluster:
    """The shared etcd cluster of one member."""
    return require(_etcd_alone)


@functools.cache
def _etcd() -> EtcdCluster:
    return started(EtcdCluster(3))


@functools.cache
def _etcd_alone() -> EtcdCluster:
    return started(EtcdCluster(1))
