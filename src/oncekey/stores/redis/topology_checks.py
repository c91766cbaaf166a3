"""The checks of `oncekey doctor` on how Redis and Valkey servers stand together and are reached: by
replicas, Sentinels and Clusters, and over which connection.

Each check is a function of what was read. Checks of the single servers are in server_checks.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from oncekey.stores.checkup import Check, Finding
from oncekey.stores.redis.durability import CLUSTER, SENTINEL
from oncekey.stores.redis.server_checks import Nodes
from oncekey.stores.replica_sightings import Sighting, forget_hint

SENTINELS_MIN: Final = 3
SLOTS: Final = 16_384

FAILOVER: Final = Check(
    "redis.failover",
    "whether a replica can be promoted, also one that was seen earlier",
    "replication is asynchronous: a promoted replica lacks the last acknowledged writes, and their "
    "operations run a second time, also if it was cut off long before. WAIT does not help, as "
    "others may have read them before",
    "accept best effort, or use one server without replicas, PostgreSQL with a synchronous "
    "standby, or etcd; `oncekey guarantee --forget NAME` for a replica that is gone for good; add "
    "failover=never to the URL if no replica is ever promoted",
)
CLUSTER_STATE: Final = Check(
    "redis.cluster",
    "whether every slot of the Cluster is served",
    "keys in a slot that nobody serves cannot be claimed, and with cluster-require-full-coverage "
    "no key can",
    "bring the missing nodes back, or give their slots to others",
)
SENTINELS: Final = Check(
    "redis.sentinel",
    "how many Sentinels watch the master, and whether they agree that it is up",
    "fewer than three cannot agree on a failover when one host is lost",
    "run three Sentinels on three hosts",
)
TLS: Final = Check(
    "redis.tls",
    "whether the connection is encrypted, and the server's certificate verified",
    "outcomes and the password can be read, or answered by somebody else, on the way",
    "use rediss:// and leave ssl_cert_reqs=required",
)
TOPOLOGY_CHECKS: Final = (FAILOVER, CLUSTER_STATE, SENTINELS, TLS)


def failovers(nodes: Nodes, failover: str, sightings: Sequence[Sighting] = ()) -> Finding:
    mode = nodes[0].server.mode
    replicas = sum(node.server.replicas for node in nodes)
    if mode == SENTINEL:
        return FAILOVER.broken(f"Sentinel promotes one of {replicas}: the guarantee is best effort")
    if not replicas and not sightings:
        return FAILOVER.ok("no replica is attached, and none was seen")
    names = "; ".join(map(str, sightings)) or f"{replicas} that tell no address"
    if failover == "never":
        return FAILOVER.ok(f"{names}; the URL says that none is ever promoted")
    if not replicas:
        return FAILOVER.broken(
            f"none is attached, but {names}: it may still be promoted, the guarantee is best "
            f"effort. If it is gone for good: {forget_hint(sightings[0].name)}"
        )
    by = "the Cluster promotes them" if mode == CLUSTER else "one can be promoted"
    return FAILOVER.broken(f"{replicas} attached, {by}: the guarantee is best effort ({names})")


def cluster_state(info: Mapping[str, str]) -> Finding:
    """What CLUSTER INFO says."""
    served = info.get("cluster_slots_ok", "0")
    what = f"state {info.get('cluster_state', 'unknown')}, {served} of {SLOTS} slots are served"
    is_whole = info.get("cluster_state") == "ok" and served == str(SLOTS)
    return CLUSTER_STATE.ok(what) if is_whole else CLUSTER_STATE.broken(what)


def cluster_by_address() -> Finding:
    """The URL names one server, and it is a node of a Cluster."""
    return CLUSTER_STATE.broken(
        "the server is a node of a Cluster and has only some of its keys; the URL says redis://",
        "write redis+cluster:// in the URL",
    )


def sentinels(count: int, flags: str, quorum: int) -> Finding:
    """How many Sentinels there are, what they say of the master, and how many must agree that it
    is down."""
    is_down = "down" in flags
    what = f"{count} with a quorum of {quorum}, and the master is {'down' if is_down else 'up'}"
    if is_down:
        return SENTINELS.broken(what)
    is_enough = count >= SENTINELS_MIN and quorum <= count
    return SENTINELS.ok(what) if is_enough else SENTINELS.warning(what)


def tls(*, is_encrypted: bool, is_verified: bool, is_local: bool) -> Finding:
    if is_encrypted:
        if is_verified:
            return TLS.ok("encrypted, and the certificate is verified")
        return TLS.warning("encrypted, but the URL says ssl_cert_reqs=none")
    if is_local:
        return TLS.ok("not encrypted, on this host alone")
    return TLS.warning("not encrypted: the URL says redis://, not rediss://")
