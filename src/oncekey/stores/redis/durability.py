"""What a Redis or Valkey server can promise about a write, according to what it says of itself.

This module owns the rules by which acknowledged writes may be lost, the text of the guarantee, and
the reasons to refuse a server. It reads nothing itself and knows no client.

A write survives if it is in the append-only file, and synced, before it is acknowledged, and if no
other server can take over. Replication is asynchronous, so a replica that is promoted may lack the
last acknowledged writes. WAIT and WAITAOF do not change that: they delay one caller, but another
caller may have read the outcome before, and has acted on what the failover takes back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from oncekey.core.guarantees import ClockClass, Guarantee, Level
from oncekey.stores.replica_sightings import Replica, Sighting, forget_hint, shown_name

FAILOVER: Final = ("auto", "never")
STANDALONE: Final = "standalone"
SENTINEL: Final = "sentinel"
CLUSTER: Final = "cluster"

# What has to be read: INFO with these sections, and CONFIG GET with these names.
INFO_SECTIONS: Final = ("server", "memory", "persistence", "replication", "cluster", "stats")
CONFIG_NAMES: Final = ("appendfsync", "no-appendfsync-on-rewrite")

NO_EVICTION: Final = "noeviction"
_REPLICA_LINE: Final = re.compile(r"(?:slave|replica)\d+")
# By these, one rewrite of the append-only file differs from another.
_REWRITE_FIELDS: Final = (
    "run_id",
    "aof_rewrites",
    "aof_rewrite_in_progress",
    "aof_rewrite_scheduled",
)
# Scripts with flags, which let a full server still accept the end of an operation. Every Valkey
# has them; its first release was 7.2.
REDIS_VERSION_MIN: Final = (7, 0)

NOT_CONNECTED: Final = Guarantee(
    Level.FENCED,
    "not connected yet; the server's settings are checked before the first operation",
    ClockClass.SERVER,
)


class Server(NamedTuple):
    """One server, or the weakest of several, as it describes itself.

    product       Redis or Valkey
    version       of that product; empty if it does not say
    mode          standalone, sentinel or cluster: how the client reaches it
    role          master or replica
    replicas      how many are attached to it
    seen          those of them whose address is known, and those that a Cluster knows
    maxmemory     in bytes; 0 is no limit
    policy        what it does when memory is full; empty if it does not say
    aof           True if it writes an append-only file
    appendfsync   when it syncs that file; empty if CONFIG may not be read
    sync_pauses   True if it does not sync while it rewrites that file
    aof_failed    True if its last write to that file failed
    evicted_keys  how many keys it has evicted since it was started
    has_scripts   False if it refuses EVAL
    aof_in_place  False while its first append-only file is not complete; None if that is not known
    aof_rewrite   differs from one rewrite of that file to the next
    """

    product: str
    version: tuple[int, ...]
    mode: str
    role: str
    replicas: int
    maxmemory: int
    policy: str
    aof: bool
    appendfsync: str
    sync_pauses: bool = False
    aof_failed: bool = False
    evicted_keys: int = 0
    has_scripts: bool = True
    seen: tuple[Replica, ...] = ()
    aof_in_place: bool | None = True
    aof_rewrite: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The product and its version, for messages."""
        return f"{self.product} {'.'.join(map(str, self.version))}".rstrip()

    @property
    def evicts(self) -> bool:
        """True if the server deletes keys when its memory is full. Without a limit it never does,
        whatever its policy is."""
        return self.maxmemory > 0 and self.policy not in (NO_EVICTION, "")


# Before anything was read.
UNKNOWN_SERVER: Final = Server("", (), STANDALONE, "master", 0, 0, "", False, "")


def parse_info(reply: bytes | str) -> dict[str, str]:
    """The reply to INFO by field."""
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, colon, value in pairs if colon}


def parse_config(reply: Any) -> dict[str, str]:
    """The reply to CONFIG GET by name, whichever protocol it came by."""
    if not isinstance(reply, Mapping):
        items = list(reply)
        reply = dict(zip(items[::2], items[1::2], strict=True))
    return {_text(name): _text(value) for name, value in reply.items()}


def parse_server(
    info: Mapping[str, Any],
    config: Mapping[str, Any] | None,
    *,
    mode: str = "",
    known_replicas: int = 0,
    has_scripts: bool = True,
) -> Server:
    """What INFO and CONFIG GET said. `config` is None if the server does not allow CONFIG, as many
    services that run it for others do. `mode` is how the client reaches it; a node does not know
    that a Sentinel watches it. `known_replicas` are those that a Cluster knows, attached or not."""
    valkey = info.get("valkey_version")
    version = _text(valkey or info.get("redis_version") or "")
    settings = config or {}
    is_cluster = _text(info.get("cluster_enabled", "0")) == "1"
    attached = max(_number(info, "connected_slaves"), _number(info, "connected_replicas"))
    return Server(
        product="Valkey" if valkey else "Redis",
        version=_version(version),
        mode=mode or (CLUSTER if is_cluster else STANDALONE),
        role="master" if _text(info.get("role", "master")) == "master" else "replica",
        replicas=max(attached, known_replicas),
        maxmemory=_number(info, "maxmemory"),
        policy=_text(info.get("maxmemory_policy", "")),
        aof=_text(info.get("aof_enabled", "0")) == "1",
        appendfsync=_text(settings.get("appendfsync", "")),
        sync_pauses=_text(settings.get("no-appendfsync-on-rewrite", "no")) == "yes",
        aof_failed=_text(info.get("aof_last_write_status", "ok")) != "ok",
        evicted_keys=_number(info, "evicted_keys"),
        has_scripts=has_scripts,
        seen=tuple(_replicas(info)),
        aof_in_place=None if is_rewritten(info) else True,
        aof_rewrite=tuple(_text(info.get(name, "")) for name in _REWRITE_FIELDS),
    )


def _replicas(info: Mapping[str, Any]) -> Iterator[Replica]:
    """The attached replicas by address. One without a port is a client that copies the data, such
    as a backup: a server that can be promoted reports where it listens."""
    for name, value in info.items():
        if _REPLICA_LINE.fullmatch(name):
            pairs = (part.partition("=") for part in _text(value).split(","))
            fields = {key: text for key, _, text in pairs}
            if fields.get("ip") and fields.get("port", "0") != "0":
                yield Replica(shown_name(f"{fields['ip']}:{fields['port']}"))


def parse_nodes(reply: bytes | str) -> list[Replica]:
    """The replicas in the reply to CLUSTER NODES, also those that have failed."""
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 2 and {"slave", "replica"} & {*words[2].split(",")}:
            address = words[1].partition("@")[0]
            if not address.endswith(":0"):
                found.append(Replica(shown_name(address)))
    return found


def is_rewritten(info: Mapping[str, Any]) -> bool:
    """True if the append-only file is rewritten, or is to be. It may be the first one, if it was
    switched on while the server ran; then no file is complete before. If the first one fails, the
    server schedules another."""
    fields = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
    return any(_text(info.get(field, "0")) == "1" for field in fields)


def weakest(servers: Sequence[Server]) -> Server:
    """Several masters of a Cluster as one: a key may be on any of them, so each fault counts."""
    first = servers[0]
    evicting = [server for server in servers if server.evicts]
    unclear = [server for server in servers if not server.policy]
    memory = (evicting or unclear or [first])[0]
    unsynced = [server for server in servers if server.appendfsync != "always"]
    oldest = min(servers, key=lambda server: (not is_old(server), server.version))
    return Server(
        product=oldest.product,
        version=oldest.version,
        mode=first.mode,
        role="replica" if any(server.role == "replica" for server in servers) else "master",
        replicas=sum(server.replicas for server in servers),
        maxmemory=memory.maxmemory,
        policy=memory.policy,
        aof=all(server.aof for server in servers),
        appendfsync=(unsynced or [first])[0].appendfsync,
        sync_pauses=any(server.sync_pauses for server in servers),
        aof_failed=any(server.aof_failed for server in servers),
        evicted_keys=sum(server.evicted_keys for server in servers),
        has_scripts=all(server.has_scripts for server in servers),
        seen=tuple(replica for server in servers for replica in server.seen),
        aof_in_place=_all_in_place([server.aof_in_place for server in servers]),
        aof_rewrite=tuple(field for server in servers for field in server.aof_rewrite),
    )


def _all_in_place(each: Sequence[bool | None]) -> bool | None:
    return False if False in each else None if None in each else True


def guarantee(
    server: Server, failover: str = "auto", sightings: Sequence[Sighting] = ()
) -> Guarantee:
    """The level that this server supports, and the reason. `failover` is never if the operator says
    that no replica is ever promoted; `sightings` are the replicas that were seen, now or before."""
    weakness = _weakness(server, failover, sightings)
    if weakness:
        return Guarantee(Level.BEST_EFFORT, weakness, ClockClass.SERVER)
    where = "one node" if server.mode == STANDALONE else "the one node that has the key"
    return Guarantee(
        Level.FENCED,
        f"{server.product}: durable on {where}, every write is synced to the append-only file "
        "before it returns",
        ClockClass.SERVER,
    )


def refusal(server: Server) -> str:
    """Why a store must not be opened on this server, and what to do; empty if it may."""
    if is_old(server):
        return f"{server.name} is too old: oncekey's scripts need Redis 7.0 or Valkey 7.2"
    if not server.has_scripts:
        return (
            f"{server.name} runs no Lua scripts, which decide who owns a key: allow EVAL and "
            "EVALSHA to this user, and on Valkey 9.1 or newer load its module lua"
        )
    if server.evicts:
        return (
            f"maxmemory-policy is {server.policy}: when its memory is full the server deletes "
            "keys, and their operations run a second time. Set maxmemory-policy noeviction, or use "
            "a server of its own"
        )
    return ""


def _weakness(server: Server, failover: str, sightings: Sequence[Sighting]) -> str:
    if server.evicts:
        return f"maxmemory-policy is {server.policy}: a full server deletes keys"
    if server.role == "replica":
        return "the server is a replica, which takes no writes and may lack acknowledged ones"
    if server.mode == SENTINEL:
        return (
            "Sentinel promotes replicas, which are asynchronous: a failover may lose acknowledged "
            "writes, with WAIT or without it"
        )
    fault = "" if failover == "never" else replica_fault(server, sightings)
    if fault:
        return fault
    if not server.policy:
        return "the server does not say whether it evicts keys (maxmemory_policy in INFO)"
    return unsynced(server)


def replica_fault(server: Server, sightings: Sequence[Sighting]) -> str:
    """Which replicas may be promoted, and what to do about it; empty if none."""
    attached = {replica.name for replica in server.seen}
    if server.replicas or attached:
        names = ", ".join(sorted(map(repr, attached))) or "one that does not tell its address"
        return (
            f"an asynchronous replica is attached, {names}: promoted after a failure it may lack "
            "acknowledged writes, with WAIT or without it. Say failover='never' if no replica is "
            "ever promoted"
        )
    if not sightings:
        return ""
    return (
        f"an asynchronous replica was attached, {'; '.join(map(str, sightings))}: it may still be "
        "promoted, and lacks acknowledged writes. If it is gone for good, say so: "
        f"{forget_hint(sightings[0].name)}; or say failover='never' if no replica is ever promoted"
    )


def unsynced(server: Server) -> str:
    """How a crash of this server loses acknowledged writes; empty if it does not."""
    if not server.aof:
        return (
            "appendonly is off: a crash loses every write since the last snapshot. Set appendonly "
            "yes and appendfsync always"
        )
    if not server.appendfsync:
        return (
            "cannot tell when the server syncs its append-only file, because it does not allow "
            "CONFIG GET appendfsync"
        )
    if server.appendfsync != "always":
        return (
            f"appendfsync is {server.appendfsync}: a crash of the host loses the last acknowledged "
            "writes. Set appendfsync always"
        )
    if server.sync_pauses:
        return (
            "no-appendfsync-on-rewrite is yes: while the append-only file is rewritten a crash of "
            "the host loses acknowledged writes. Set it to no"
        )
    if server.aof_failed:
        return "the server's last write to its append-only file failed"
    if server.aof_in_place is None:
        return (
            "the append-only file is being rewritten, and the server does not tell whether it was "
            "switched on just now: then a crash loses every write until the rewrite has ended. "
            "Allow WAITAOF, which Redis has from 7.2 on"
        )
    if not server.aof_in_place:
        return (
            "appendonly was switched on just now: a crash loses every write since the last "
            "snapshot until the first append-only file is complete (aof_rewrite_in_progress is 0)"
        )
    return ""


def is_old(server: Server) -> bool:
    """A server that does not say its version is not refused for it."""
    return bool(server.version) and server.product == "Redis" and server.version < REDIS_VERSION_MIN


def _version(text: str) -> tuple[int, ...]:
    numbers = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _number(info: Mapping[str, Any], name: str) -> int:
    text = _text(info.get(name, "0"))
    return int(text) if text.isdecimal() else 0


def _text(value: Any) -> str:
    """A value of a reply as text: some clients have turned it into a number already."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
