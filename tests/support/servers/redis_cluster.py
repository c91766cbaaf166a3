"""A Valkey or Redis Cluster on the loopback: masters that share the slots, and their replicas.

This module forms the cluster by the servers' own commands, as `valkey-cli --cluster create` would,
and finds out who is master of what. It must not know what is stored there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import processes
from tests.support.servers.processes import ServerFailed
from tests.support.servers.redis_server import RedisProgram, RedisServer, Setting, Settings
from tests.support.servers.server_lifetime import ServerGroup

SLOTS = 16_384
DEFAULTS: dict[str, Setting] = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": 1000,
    # A replica that has not heard from its master for long may replace it all the same.
    "cluster-replica-validity-factor": 0,
}


@dataclass(frozen=True, slots=True)
class Node:
    """A node as another one sees it: a line of CLUSTER NODES."""

    identity: str
    port: int
    flags: frozenset[str]
    master: str
    slots: tuple[str, ...]


class RedisCluster(ServerGroup):
    """One cluster: `with RedisCluster(3, replicas=1) as cluster:`, then `cluster.url()`."""

    def __init__(
        self,
        masters: int = 3,
        *,
        replicas: int = 0,
        program: RedisProgram | None = None,
        settings: Settings | None = None,
        base: Path | None = None,
    ) -> None:
        """`replicas` is how many each master has; without any, a lost master is not replaced."""
        nodes = masters * (1 + replicas)
        own = {**DEFAULTS, **(settings or {})}
        self._first_masters = masters
        self._servers = [RedisServer(program, settings=own, base=base) for _ in range(nodes)]

    def servers(self) -> Sequence[RedisServer]:
        return self._servers

    def start(self) -> None:
        """Start every server, form the cluster, and wait until it is whole."""
        for server in self._servers:
            # The bus would be 10000 above the port, among those of outgoing connections.
            server.configure({"cluster-port": processes.free_port()})
            server.launch()
        for server in self._servers:
            server.wait_ready()
        self._give_slots()
        self._meet()
        self._replicate()
        self.wait_until_whole()

    def url(self) -> str:
        return f"redis+cluster://{self.addresses}"

    # --- who is what ----------------------------------------------------------------------------

    def masters(self) -> list[RedisServer]:
        """Return the servers that hold slots and are not known to have failed."""
        nodes = self._nodes().values()
        ports = {node.port for node in nodes if _serves(node)}
        return [server for server in self._servers if server.port in ports]

    def replicas_of(self, master: RedisServer) -> list[RedisServer]:
        identity = master.execute("CLUSTER", "MYID")
        ports = {node.port for node in self._nodes().values() if node.master == identity}
        return [server for server in self._servers if server.port in ports]

    def master_of(self, key: str) -> RedisServer:
        """Return the master of the slot that a key is in."""
        slot = int(self._running()[0].execute("CLUSTER", "KEYSLOT", key))
        for node in self._nodes().values():
            if _serves(node) and any(slot in _slots(part) for part in node.slots):
                return next(server for server in self._servers if server.port == node.port)
        raise ServerFailed(f"slot {slot} has no master")

    def wait_for_replacement(self, killed: RedisServer, seconds: float = 30) -> RedisServer:
        """Wait until a replica has become master in place of a killed one, and return it."""
        shard = self._servers.index(killed) % self._first_masters
        others = [
            server
            for number, server in enumerate(self._servers)
            if number % self._first_masters == shard and server is not killed
        ]

        def replacements() -> list[RedisServer]:
            return [server for server in self.masters() if server in others]

        processes.wait_until(
            lambda: bool(replacements()) and self._is_ok(), f"{killed.name} is replaced", seconds
        )
        return replacements()[0]

    def wait_until_whole(self, seconds: float = 30) -> None:
        """Wait until every node knows all slots served and every replica has its master's data."""

        def is_whole() -> bool:
            return self._is_ok() and all(map(_is_linked, self._running()))

        processes.wait_until(is_whole, "the cluster is whole", seconds)

    def _running(self) -> list[RedisServer]:
        return [server for server in self._servers if server.is_running]

    def _is_ok(self) -> bool:
        return all(_cluster_state(server) == "ok" for server in self._running())

    def _nodes(self) -> dict[str, Node]:
        lines = self._running()[0].execute("CLUSTER", "NODES").splitlines()
        return {node.identity: node for node in map(_node, lines)}

    # --- how it is formed -----------------------------------------------------------------------

    def _give_slots(self) -> None:
        count = self._first_masters
        for number, server in enumerate(self._servers[:count]):
            first, after = SLOTS * number // count, SLOTS * (number + 1) // count
            server.execute("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
        for number, server in enumerate(self._servers):
            server.execute("CLUSTER", "SET-CONFIG-EPOCH", number + 1)

    def _meet(self) -> None:
        first, *others = self._servers
        for server in others:
            bus = server.settings["cluster-port"]
            first.execute("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        processes.wait_until(lambda: all(map(self._knows_all, self._servers)), "all have met")

    def _knows_all(self, server: RedisServer) -> bool:
        nodes = [_node(line) for line in server.execute("CLUSTER", "NODES").splitlines()]
        known = [node for node in nodes if "handshake" not in node.flags]
        return len(known) == len(self._servers) and _cluster_state(server) == "ok"

    def _replicate(self) -> None:
        count = self._first_masters
        for number, server in enumerate(self._servers[count:]):
            master = self._servers[number % count].execute("CLUSTER", "MYID")
            server.execute("CLUSTER", "REPLICATE", master)


def _node(line: str) -> Node:
    identity, address, flags, master, _, _, _, _, *slots = line.split()
    port = int(address.partition("@")[0].rpartition(":")[2])
    return Node(identity, port, frozenset(flags.split(",")), master, tuple(slots))


def _serves(node: Node) -> bool:
    return bool(node.slots) and "master" in node.flags and not node.flags & {"fail", "fail?"}


def _slots(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1) if first.isdigit() else range(0)


def _cluster_state(server: RedisServer) -> str:
    fields = dict(_pairs(server.execute("CLUSTER", "INFO")))
    return fields["cluster_state"]


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name, value


def _is_linked(server: RedisServer) -> bool:
    replication = server.info("replication")
    return replication["role"] == "master" or replication["master_link_status"] == "up"
