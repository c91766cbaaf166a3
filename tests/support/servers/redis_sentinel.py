"""A master, its replicas and three Sentinels that watch them, on the loopback.

This module owns their configuration and knows who is master now. It must not know what is stored
there. A Sentinel is the server's own program in another mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.servers import processes
from tests.support.servers.processes import ServerFailed
from tests.support.servers.redis_server import RedisProgram, RedisServer, Setting, Settings
from tests.support.servers.server_lifetime import LoopbackServer, ServerGroup

SERVICE = "payments"
QUORUM = 2
_SENTINELS = 3
_DOWN_AFTER_MS = 500
_FAILOVER_TIMEOUT_MS = 3000


class _Sentinel(RedisServer):
    """One Sentinel. It writes its state into its own configuration file, which a restart keeps."""

    def __init__(self, program: RedisProgram, base: Path | None, master: RedisServer) -> None:
        super().__init__(program, base=base)
        self._master = master

    def command(self) -> Sequence[str | Path]:
        path = self.directory / "sentinel.conf"
        if not path.exists():
            path.write_text("\n".join(self._lines()), encoding="utf-8")
        return [self.program.path, path, "--sentinel"]

    def _lines(self) -> list[str]:
        service = f"{SERVICE} 127.0.0.1 {self._master.port} {QUORUM}"
        return [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.directory}",
            f"sentinel monitor {service}",
            f"sentinel down-after-milliseconds {SERVICE} {_DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} {_FAILOVER_TIMEOUT_MS}",
            "",
        ]


class RedisSentinel(ServerGroup):
    """One watched master: `with RedisSentinel() as watched:`, then `watched.url()`."""

    def __init__(
        self,
        replicas: int = 1,
        *,
        program: RedisProgram | None = None,
        settings: Settings | None = None,
        base: Path | None = None,
    ) -> None:
        own: dict[str, Setting] = dict(settings or {})
        self.nodes = [RedisServer(program, settings=own, base=base) for _ in range(1 + replicas)]
        first = self.nodes[0]
        self.sentinels = [_Sentinel(first.program, base, first) for _ in range(_SENTINELS)]

    def servers(self) -> Sequence[LoopbackServer]:
        return [*self.sentinels, *self.nodes]

    def start(self) -> None:
        """Start everything, and wait until the Sentinels know the replicas and each other."""
        first, *replicas = self.nodes
        first.start()
        for replica in replicas:
            replica.configure({"replicaof": f"127.0.0.1 {first.port}"})
            replica.start()
        # A Sentinel asks the master for its replicas at once, and then only every 10 seconds.
        processes.wait_until(lambda: all(map(_is_linked, replicas)), "the replicas are linked")
        for sentinel in self.sentinels:
            sentinel.launch()
        for sentinel in self.sentinels:
            sentinel.wait_ready()
        self.wait_until_whole()

    def wait_longer(self, milliseconds: int) -> None:
        """Let the Sentinels wait this long before a master that does not answer is replaced."""
        for sentinel in self.sentinels:
            name = "down-after-milliseconds"
            sentinel.execute("SENTINEL", "SET", SERVICE, name, milliseconds)

    def url(self) -> str:
        sentinels = ",".join(sentinel.address for sentinel in self.sentinels)
        return f"redis+sentinel://{sentinels}/{SERVICE}"

    def master(self) -> RedisServer:
        """Return the server that the Sentinels call master."""
        port = self._master_port(self._watchers()[0])
        return next(node for node in self.nodes if node.port == port)

    def wait_for_replacement(self, killed: RedisServer, seconds: float = 30) -> RedisServer:
        """Wait until all Sentinels call another server master and it says so too; return it."""

        def replaced() -> bool:
            ports = {self._master_port(sentinel) for sentinel in self._watchers()}
            if len(ports) != 1 or killed.port in ports:
                return False
            return self.master().info("replication")["role"] == "master"

        processes.wait_until(replaced, f"{killed.name} is replaced", seconds)
        return self.master()

    def wait_until_whole(self, seconds: float = 30) -> None:
        """Wait until every running node is in its place and every Sentinel knows all of it."""
        processes.wait_until(self._is_whole, "the Sentinels know everything", seconds)

    def _is_whole(self) -> bool:
        running = [node for node in self.nodes if node.is_running and node is not self.master()]
        return all(map(_is_linked, running)) and all(map(self._knows_all, self._watchers()))

    def _knows_all(self, sentinel: RedisServer) -> bool:
        reply = sentinel.execute("SENTINEL", "MASTER", SERVICE)
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        known = int(fields["num-slaves"]) + 1, int(fields["num-other-sentinels"]) + 1
        return known == (len(self.nodes), _SENTINELS) and fields["flags"] == "master"

    def _watchers(self) -> list[_Sentinel]:
        running = [sentinel for sentinel in self.sentinels if sentinel.is_running]
        if not running:
            raise ServerFailed("no Sentinel is running")
        return running

    def _master_port(self, sentinel: RedisServer) -> int:
        reply = sentinel.execute("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(reply[1])


def _is_linked(replica: RedisServer) -> bool:
    return replica.info("replication").get("master_link_status") == "up"
