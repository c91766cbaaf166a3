"""The checks of `oncekey doctor` on Redis and Valkey servers: what they do with a write, with full
memory, and with whoever is connected; and how they stand together and are reached.

Each check is a function of what was read of each server, so that every answer can be tried without
a server that gives it. Checks of oncekey's own keys are in record_checks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from oncekey.stores.inspection import Check, Finding
from oncekey.stores.redis import durability
from oncekey.stores.redis.checkup_session import ServerReading
from oncekey.stores.redis.durability import CLUSTER, NO_EVICTION, SENTINEL
from oncekey.stores.redis.keyspace import SLOTS
from oncekey.stores.replica_sightings import Sighting, forget_hint

Nodes = Sequence[ServerReading]

CLOCK_SKEW_US: Final = 1_000_000
# Parts of maxmemory, or of the host's memory where there is no limit.
MEMORY_LOW_PART: Final = 0.75
MEMORY_FULL_PART: Final = 0.95
CONNECTIONS_FULL_PART: Final = 0.95  # of maxclients
# A fork stops the server for this long; heartbeats renew at a third of a lease, 10 s by default.
FORK_LONG_US: Final = 500_000
# Fewer Sentinels cannot agree on a failover when one host is lost.
SENTINELS_MIN: Final = 3
# Below it an ordinary script of oncekey may already count as busy, and everybody gets BUSY.
SCRIPT_TIME_MIN_MS: Final = 1_000

VERSION: Final = Check(
    "redis.version",
    "the servers' product and version",
    "oncekey's scripts use flags that let a full server still accept the end of an operation",
    "upgrade to Redis 7.0, Valkey 7.2, or newer",
)
SCRIPTS: Final = Check(
    "redis.scripts",
    "whether the servers run Lua scripts for this user",
    "scripts decide who owns a key; without them nothing can be claimed",
    "allow EVAL, EVALSHA and SCRIPT LOAD to this user (+@scripting); on Valkey 9.1 or newer load "
    "its module lua",
)
PRIMARY: Final = Check(
    "redis.primary",
    "whether the servers take writes",
    "on a replica no key can be claimed, and every operation is refused",
    "connect to the master, or use redis+sentinel:// or redis+cluster://, which find it",
)
EVICTION: Final = Check(
    "redis.eviction",
    "maxmemory and maxmemory-policy, and whether keys were evicted",
    "a key that the server deletes to make room is a fresh key, and its operation runs a second "
    "time",
    "set maxmemory-policy noeviction; give caches a server of their own",
)
MEMORY: Final = Check(
    "redis.memory",
    "how much of maxmemory, or of the host's memory, is used",
    "a full server refuses new claims with StoreUnavailable; a host without memory kills it",
    "raise maxmemory and leave room for forks, shorten keep= and audit=, or add nodes",
)
APPEND_ONLY: Final = Check(
    "redis.append-only-file",
    "whether every write is synced to the append-only file before it returns",
    "else a crash loses acknowledged writes, and their operations run a second time",
    "set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no, in the file too; "
    "where a service forbids it, use PostgreSQL for what must not run twice",
)
WRITES: Final = Check(
    "redis.disk-writes",
    "whether the last writes of the append-only file, its rewrites and snapshots succeeded",
    "a server that cannot write refuses commands, or ends; a file that is never rewritten grows "
    "until the disk is full",
    "look at the server's log; make room on its disk, and memory for its fork",
)
STALLS: Final = Check(
    "redis.stalls",
    "how long the last fork stopped the server, and whether syncs were delayed",
    "while it stands still no heartbeat is renewed; a stall as long as a lease costs every key "
    "that is in flight",
    "switch transparent huge pages off, keep the data set per node small, use a faster disk",
)
CLOCK: Final = Check(
    "redis.clock",
    "how far the servers' clocks are from this host's",
    "leases and keep count on the server's clock; after a failover it is another server's, and a "
    "step ends leases too early or too late",
    "let a time service slew all clocks (chrony, ntpd)",
)
CONNECTIONS: Final = Check(
    "redis.connections",
    "whether connections are free, and whether the server closes idle ones",
    "where no connection is free, operations are refused; one that was closed while it was idle "
    "costs the next operation a reconnect",
    "raise maxclients; set timeout 0 and rely on tcp-keepalive",
)
SCRIPT_TIME: Final = Check(
    "redis.script-time",
    "after how long a running script counts as busy",
    "from then on every other command gets BUSY, and an operator may kill the script",
    "set busy-reply-threshold (lua-time-limit) to 5000",
)
SERVER_CHECKS: Final = (
    VERSION, SCRIPTS, PRIMARY, EVICTION, MEMORY, APPEND_ONLY, WRITES, STALLS, CLOCK,
    CONNECTIONS, SCRIPT_TIME,
)  # fmt: skip


def server_findings(nodes: Nodes) -> list[Finding]:
    """The checks of the masters, whichever way they are reached."""
    checks = (
        version, scripts, primary, eviction, memory, append_only, disk_writes, stalls, clock,
        connections, script_time,
    )  # fmt: skip
    return [check(nodes) for check in checks]


def faults(nodes: Nodes, fault_of: Callable[[ServerReading], str]) -> str:
    """What is wrong with each node that has a fault, with its name if there are several."""
    found = [(node.name, fault) for node in nodes if (fault := fault_of(node))]
    if len(nodes) == 1:
        return "".join(fault for _, fault in found)
    return "; ".join(f"{name}: {fault}" for name, fault in found)


def version(nodes: Nodes) -> Finding:
    what = ", ".join(sorted({node.server.name for node in nodes}))
    is_old = any(durability.is_old(node.server) for node in nodes)
    return VERSION.broken(what) if is_old else VERSION.ok(what)


def scripts(nodes: Nodes) -> Finding:
    found = faults(nodes, lambda node: "" if node.server.has_scripts else "EVAL is refused")
    return SCRIPTS.broken(found) if found else SCRIPTS.ok("EVAL is allowed")


def primary(nodes: Nodes) -> Finding:
    found = faults(
        nodes, lambda node: "the server is a replica" if node.server.role == "replica" else ""
    )
    return PRIMARY.broken(found) if found else PRIMARY.ok("takes writes")


def eviction(nodes: Nodes) -> Finding:
    evicting = faults(
        nodes,
        lambda node: f"maxmemory-policy is {node.server.policy}" if node.server.evicts else "",
    )
    if evicting:
        return EVICTION.broken(f"{evicting}: a store there refuses to start")
    if any(not node.server.policy for node in nodes):
        return EVICTION.warning("the server does not report maxmemory_policy in INFO")
    evicted = sum(node.server.evicted_keys for node in nodes)
    if evicted:
        return EVICTION.warning(f"{evicted:,} keys were evicted since the server was started")
    risky = sorted({node.server.policy for node in nodes} - {NO_EVICTION})
    if risky:
        return EVICTION.warning(
            f"maxmemory is 0, so nothing is evicted; but maxmemory-policy is {', '.join(risky)}, "
            "and the first limit that somebody sets deletes keys"
        )
    return EVICTION.ok("maxmemory-policy is noeviction")


def memory(nodes: Nodes) -> Finding:
    fullest = max(nodes, key=_used_part)
    part = _used_part(fullest)
    limit = "maxmemory" if fullest.server.maxmemory else "the host's memory (maxmemory is 0)"
    what = f"{part:.0%} of {limit} is used"
    if len(nodes) > 1:
        what = f"{fullest.name}: {what}"
    if part >= MEMORY_FULL_PART:
        return MEMORY.broken(what)
    return MEMORY.warning(what) if part >= MEMORY_LOW_PART else MEMORY.ok(what)


def _used_part(node: ServerReading) -> float:
    limit = node.server.maxmemory or node.number("total_system_memory")
    return node.number("used_memory") / limit if limit else 0.0


def append_only(nodes: Nodes) -> Finding:
    found = faults(nodes, lambda node: durability.unsynced(node.server))
    if not found and any(durability.is_rewritten(node.info) for node in nodes):
        return APPEND_ONLY.info(
            "appendonly is yes, appendfsync is always, and the file is being rewritten: if it was "
            "switched on just now, a crash loses everything until that has ended",
            "check again when aof_rewrite_in_progress is 0",
        )
    if not found:
        return APPEND_ONLY.ok("appendonly is yes, appendfsync is always")
    return APPEND_ONLY.broken(f"{found}. The guarantee is best effort")


def disk_writes(nodes: Nodes) -> Finding:
    found = faults(nodes, _failed_writes)
    if any(node.server.aof_failed for node in nodes):
        return WRITES.broken(found)
    return WRITES.warning(found) if found else WRITES.ok("the last ones succeeded")


def _failed_writes(node: ServerReading) -> str:
    names = {
        "aof_last_write_status": "the append-only file",
        "aof_last_bgrewrite_status": "its rewrite",
        "rdb_last_bgsave_status": "the snapshot",
    }
    failed = [what for field, what in names.items() if node.info.get(field, "ok") != "ok"]
    return f"failed: {', '.join(failed)}" if failed else ""


def stalls(nodes: Nodes) -> Finding:
    found = faults(nodes, _stall)
    if found:
        return STALLS.warning(found)
    longest = max(node.number("latest_fork_usec") for node in nodes)
    return STALLS.ok(f"the last fork took {longest / 1_000:,.1f} ms")


def _stall(node: ServerReading) -> str:
    found = []
    fork = node.number("latest_fork_usec")
    if fork >= FORK_LONG_US:
        found.append(f"the last fork stopped the server for {fork / 1_000_000:,.1f} s")
    delayed = node.number("aof_delayed_fsync")
    if delayed:
        found.append(f"{delayed:,} syncs of the append-only file were delayed by the disk")
    return ", ".join(found)


def clock(nodes: Nodes) -> Finding:
    found = faults(nodes, lambda node: _skew(*node.clock))
    if found:
        return CLOCK.warning(found)
    return CLOCK.ok(f"within {CLOCK_SKEW_US // 1_000_000} s of this host's")


def _skew(theirs: int, before: int, after: int) -> str:
    """The server read its clock between `before` and `after` on ours."""
    skew = max(0, theirs - after) or min(0, theirs - before)
    if abs(skew) <= CLOCK_SKEW_US:
        return ""
    direction = "ahead of" if skew > 0 else "behind"
    return f"the server's clock is {abs(skew) / 1_000_000:,.1f} s {direction} this host's"


def connections(nodes: Nodes) -> Finding:
    found = faults(nodes, _connection_fault)
    if found:
        return CONNECTIONS.warning(found)
    used = max(node.number("connected_clients") for node in nodes)
    limit = nodes[0].number("maxclients")
    return CONNECTIONS.ok(f"{used:,} of {limit:,} are used" if limit else f"{used:,} are used")


def _connection_fault(node: ServerReading) -> str:
    used, limit = node.number("connected_clients"), node.number("maxclients")
    found = []
    if limit and used > CONNECTIONS_FULL_PART * limit:
        found.append(f"{used:,} of {limit:,} connections are used")
    seconds = node.setting("timeout")
    if seconds:
        found.append(f"the server closes connections that are idle for {seconds} s")
    return ", ".join(found)


def script_time(nodes: Nodes) -> Finding:
    found = faults(nodes, _short_script_time)
    if found:
        return SCRIPT_TIME.warning(found)
    if all(_script_limit(node) is None for node in nodes):
        return SCRIPT_TIME.info("not checked: the server does not allow CONFIG GET")
    return SCRIPT_TIME.ok("long enough for oncekey's scripts")


def _short_script_time(node: ServerReading) -> str:
    limit = _script_limit(node)
    if limit is None or not 0 < limit < SCRIPT_TIME_MIN_MS:
        return ""
    return f"a script counts as busy after {limit} ms"


def _script_limit(node: ServerReading) -> int | None:
    limit = node.setting("busy-reply-threshold")
    return node.setting("lua-time-limit") if limit is None else limit


# --- how the servers stand together and are reached -----------------------------------------------


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
