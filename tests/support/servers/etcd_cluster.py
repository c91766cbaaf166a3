"""An etcd cluster for tests and benchmarks: one member, or three that survive losing one.

This module finds the program, forms the cluster and cuts members off from the others: members reach
each other through a proxy in front of each, so a partition needs no rights on the machine; those of
a cluster that nobody takes apart do without. It must not know what is stored there.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.servers import debian_packages, processes
from tests.support.servers.processes import ServerMissing
from tests.support.servers.proxy import Proxy
from tests.support.servers.server_lifetime import LoopbackServer, ServerGroup

PREFIX = "tests"
DEFAULTS: dict[str, str] = {
    "heartbeat-interval": "100",
    "election-timeout": "1000",
    "log-level": "warn",
    "logger": "zap",
    "auto-compaction-retention": "1",
}
# Suites whose etcd is 3.5, newest first; the machine's own suite may have an older one.
_SUITES = ("forky", "trixie", None)
_PACKAGE = "etcd-server"
_REQUEST_SECONDS = 2


@functools.cache
def find_etcd() -> Path:
    """Return the program: that on PATH, or that of Debian's package, fetched into the cache."""
    installed = shutil.which("etcd")
    if installed is not None:
        return Path(installed)
    missing = ServerMissing("etcd", f"install Debian's package {_PACKAGE}")
    for suite in _SUITES:
        try:
            program = debian_packages.fetch(_PACKAGE, suite=suite) / "usr" / "bin" / "etcd"
        except ServerMissing as error:
            missing = ServerMissing("etcd", error.how_to_get)
            continue
        if _runs(program):
            return program
    raise missing


def _runs(program: Path) -> bool:
    try:
        subprocess.run([program, "--version"], capture_output=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return False  # it is of a suite whose libraries are newer than this machine's
    return True


class EtcdMember(LoopbackServer):
    """One member: clients use `port`; other members come through `proxy`, if there is one."""

    def __init__(self, cluster: EtcdCluster, base: Path | None) -> None:
        super().__init__("etcd", base)
        self._cluster = cluster
        self._peer_port = processes.free_port()
        self._proxy = Proxy(self._peer_port) if cluster.is_separable else None

    @property
    def proxy(self) -> Proxy:
        assert self._proxy is not None, "the members of this cluster reach each other directly"
        return self._proxy

    @property
    def peer_url(self) -> str:
        port = self._peer_port if self._proxy is None else self._proxy.port
        return f"http://127.0.0.1:{port}"

    def reserve(self) -> None:
        super().reserve()
        if self._proxy is not None and not self._proxy.is_open:
            self._proxy.start()

    def command(self) -> Sequence[str | Path]:
        client = f"http://{self.address}"
        options = {
            **self._cluster.settings,
            "name": self.name,
            "data-dir": str(self.directory / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": f"http://127.0.0.1:{self._peer_port}",
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": ",".join(self._cluster.peers()),
            "initial-cluster-token": self._cluster.name,
        }
        return [find_etcd(), *(f"--{name}={value}" for name, value in options.items())]

    def environment(self) -> Mapping[str, str]:
        # Variables of the machine's own etcd would change this one.
        return {name: "" for name in os.environ if name.startswith("ETCD_")}

    def is_ready(self) -> bool:
        """True if the member knows a leader, so that it can serve a linearizable read."""
        return bool(self.status().get("leader"))

    def status(self) -> dict[str, Any]:
        """Return what the member says of itself; nothing if it does not answer."""
        try:
            return self.post("/v3/maintenance/status")
        except (OSError, urllib.error.URLError):
            return {}

    def identity(self) -> int:
        return int(self.status()["header"]["member_id"])

    def post(self, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Send a request to the member's JSON gateway, and return the answer."""
        request = urllib.request.Request(
            f"http://{self.address}{path}", json.dumps(body or {}).encode()
        )
        with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS) as answer:
            answered: dict[str, Any] = json.load(answer)
        return answered

    def close(self) -> None:
        super().close()
        if self._proxy is not None and self._proxy.is_open:
            self._proxy.close()


class EtcdCluster(ServerGroup):
    """One cluster: `with EtcdCluster(3) as cluster:`, then `cluster.url()`."""

    def __init__(
        self,
        members: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        base: Path | None = None,
        is_separable: bool = True,
    ) -> None:
        """`settings` override those in `DEFAULTS`; they are options of etcd's command line."""
        find_etcd()
        self.is_separable = is_separable
        self.name = processes.fresh_name("etcd-cluster")
        self.settings = {**DEFAULTS, **(settings or {})}
        self.members = [EtcdMember(self, base) for _ in range(members)]
        self._identities: dict[str, int] = {}

    def servers(self) -> Sequence[EtcdMember]:
        return self.members

    def peers(self) -> Iterator[str]:
        """Yield the members as the option `initial-cluster` has them."""
        for member in self.members:
            yield f"{member.name}={member.peer_url}"

    def start(self) -> None:
        """Start every member, and wait until all know the leader."""
        for member in self.members:
            member.reserve()
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait_ready()
        self._identities = {member.name: member.identity() for member in self.members}

    def url(self, prefix: str = PREFIX) -> str:
        return f"etcd://{self.addresses}/{prefix}"

    # --- who leads, and who reaches whom --------------------------------------------------------

    def leader(self, seconds: float = 30) -> EtcdMember:
        """Return the member that leads by its own word, in the newest term; wait for one."""
        found: list[EtcdMember] = []

        def is_led() -> bool:
            found[:] = self._leaders()
            return bool(found)

        processes.wait_until(is_led, f"{self.name} has a leader", seconds)
        return found[0]

    def follower(self) -> EtcdMember:
        """Return a member that runs and does not lead."""
        leader = self.leader()
        return next(each for each in self.members if each is not leader and each.is_running)

    def _leaders(self) -> list[EtcdMember]:
        statuses = [(each, each.status()) for each in self.members if each.is_running]
        answered = [(int(s["raftTerm"]), each, s) for each, s in statuses if s.get("leader")]
        newest = max((term for term, _, _ in answered), default=0)
        return [
            each
            for term, each, status in answered
            if term == newest and status["leader"] == status["header"]["member_id"]
        ]

    def isolate(self, member: EtcdMember) -> None:
        """Cut a member off from the others, both ways. Its clients still reach it."""
        member.proxy.refuse()
        member.proxy.cut()
        # etcd's requests to other members name their sender in a header of HTTP.
        sender = f"X-Server-From: {self._identities[member.name]:x}\r\n".encode()
        for other in self.members:
            if other is not member:
                other.proxy.reject(sender)

    def heal(self) -> None:
        """Let every member reach every other again."""
        for member in self.members:
            member.proxy.heal()

    def wait_until_whole(self, seconds: float = 30) -> None:
        """Wait until every running member follows the same leader."""

        def is_whole() -> bool:
            running = [each.status() for each in self.members if each.is_running]
            return len({status.get("leader") for status in running} - {None}) == 1 and all(running)

        processes.wait_until(is_whole, f"{self.name} is whole", seconds)
