"""A RabbitMQ node for tests and benchmarks: one node, with its management API, that may be killed.

This module unpacks Debian's packages without root and starts the node with the C library of its own
suite, so that a newer release runs here. It must not know which queues there are.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import shlex
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.servers import debian_packages, processes
from tests.support.servers.processes import ServerMissing
from tests.support.servers.server_lifetime import LoopbackServer

USER = PASSWORD = "guest"
DEFAULTS: dict[str, str] = {
    "log.console": "true",
    "log.console.level": "warning",
    "log.file": "false",
    # The run's other servers and the tests need memory and disk too; the node never stops
    # publishers because of them.
    "disk_free_limit.absolute": "1MB",
    "vm_memory_high_watermark.absolute": "1GB",
}
# The suite whose RabbitMQ is 4.3, the first with delayed retries of its own.
_SUITE = "forky"
_PACKAGE = "rabbitmq-server"
_COMPANIONS = (
    # Erlang, in parts
    *("erlang-asn1", "erlang-base", "erlang-crypto", "erlang-eldap", "erlang-eunit"),
    *("erlang-inets", "erlang-mnesia", "erlang-os-mon", "erlang-parsetools"),
    *("erlang-public-key", "erlang-runtime-tools", "erlang-ssl", "erlang-syntax-tools"),
    *("erlang-tools", "erlang-xmerl"),
    # the libraries of Erlang's suite
    *("libc6", "libcap2", "libgcc-s1", "libsctp1", "libssl3t64", "libstdc++6", "libsystemd0"),
    *("libtinfo6", "libzstd1", "zlib1g"),
)
# The programs of Erlang that the node starts.
_PROGRAMS = ("erlexec", "beam.smp", "erl_child_setup", "inet_gethost", "epmd")
_AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
_REQUEST_SECONDS = 5
_CALL_SECONDS = 30


@functools.cache
def find_rabbitmq() -> Path:
    """Return the folder with the unpacked packages, fetched into the cache."""
    try:
        return debian_packages.fetch(_PACKAGE, suite=_SUITE, companions=_COMPANIONS)
    except ServerMissing as missing:
        raise ServerMissing("RabbitMQ", missing.how_to_get) from missing


def write_programs(folder: Path) -> Path:
    """Write scripts that start the programs of Erlang from the cache; return `erl` among them.

    Each program is started by the loader of its own suite with that suite's libraries, because the
    C library of this machine may be older than the one that the program needs.
    """
    root = find_rabbitmq()
    erlang = root / "usr" / "lib" / "erlang"
    (binaries,) = erlang.glob("erts-*/bin")
    loader = next(root.glob("usr/lib/*/ld-linux-*.so.*"))
    folder.mkdir(exist_ok=True)
    for name in _PROGRAMS:
        start = [loader, "--library-path", loader.parent, binaries / name]
        _write_script(folder / name, f'exec {shlex.join(map(str, start))} "$@"')
    variables = {"ROOTDIR": erlang, "BINDIR": folder, "EMU": "beam", "PROGNAME": "erl"}
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in variables.items()]
    _write_script(folder / "erl", *lines, 'exec "$BINDIR/erlexec" "$@"')
    return folder / "erl"


def _write_script(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    path.chmod(0o755)


class PortMapper(LoopbackServer):
    """`epmd`, which tells the port of an Erlang node; the node of a test has its own."""

    def __init__(self, base: Path | None) -> None:
        super().__init__("epmd", base)

    def command(self) -> Sequence[str | Path]:
        programs = write_programs(self.directory / "bin").parent
        return [programs / "epmd", "-address", "127.0.0.1", "-port", str(self.port)]

    def is_ready(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


class RabbitServer(LoopbackServer):
    """One node: `with RabbitServer() as server:`, then `server.url`."""

    def __init__(
        self, *, settings: Mapping[str, str] | None = None, base: Path | None = None
    ) -> None:
        """`settings` override those in `DEFAULTS`; they are lines of `rabbitmq.conf`."""
        find_rabbitmq()
        super().__init__("rabbitmq", base)
        self.settings = {**DEFAULTS, **(settings or {})}
        self.mapper = PortMapper(base)
        self._management_port = processes.free_port()
        self._distribution_port = processes.free_port()

    @property
    def url(self) -> str:
        return f"amqp://{USER}:{PASSWORD}@{self.address}/%2F"

    @property
    def management_url(self) -> str:
        return f"http://{USER}:{PASSWORD}@127.0.0.1:{self._management_port}"

    # --- lifetime -------------------------------------------------------------------------------

    def launch(self) -> None:
        if not self.mapper.is_running:
            self.mapper.start()
        super().launch()

    def close(self) -> None:
        super().close()
        self.mapper.close()

    def command(self) -> Sequence[str | Path]:
        write_programs(self.directory / "bin")
        own = {
            "listeners.tcp.1": self.address,
            "management.tcp.ip": "127.0.0.1",
            "management.tcp.port": str(self._management_port),
        }
        lines = [f"{name} = {value}\n" for name, value in (self.settings | own).items()]
        (self.directory / "rabbitmq.conf").write_text("".join(lines), encoding="utf-8")
        (self.directory / "plugins").write_text("[rabbitmq_management].\n", encoding="utf-8")
        (script,) = find_rabbitmq().glob("usr/lib/rabbitmq/lib/*/sbin/rabbitmq-server")
        return [script]

    def environment(self) -> Mapping[str, str]:
        # Variables of the machine's own node would change this one.
        cleared = {name: "" for name in os.environ if name.startswith(("RABBITMQ_", "ERL_"))}
        return cleared | {
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.directory),  # Erlang writes its cookie there
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.mapper.port),
            "RABBITMQ_NODENAME": f"{self.name}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory / "logs"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "none"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # With it the script becomes the node, instead of starting it as a child.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def is_ready(self) -> bool:
        """True if the node begins the handshake of AMQP, which it does as the last of its start."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(_AMQP_HEADER)
                return connection.recv(1) == b"\x01"
        except OSError:
            return False

    # --- its management API ---------------------------------------------------------------------

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the management API, and return the answer; None if it has no body."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._management_port}/api/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def set_policy(self, name: str, pattern: str, **definition: object) -> None:
        """Apply a policy to the queues whose names match; `_` in a key stands for `-`."""
        keys = {key.replace("_", "-"): value for key, value in definition.items()}
        body = {"pattern": pattern, "definition": keys, "apply-to": "queues"}
        self.ask("PUT", f"policies/%2F/{quote(name, safe='')}", body)

    def suspend_queue(self, queue: str) -> None:
        """Let a quorum queue do nothing, and confirm nothing, as one does without a majority."""
        self._call(f"sys, suspend, ['%2F_{queue}']")

    def resume_queue(self, queue: str) -> None:
        self._call(f"sys, resume, ['%2F_{queue}']")

    def crash_queue(self, queue: str) -> None:
        """Kill the process of a classic queue. The node cancels its consumers, and starts it again
        with the messages that it had confirmed."""
        node = f"{self.name}@localhost"
        resource = f'{{resource, <<"/">>, queue, <<"{queue}">>}}'
        self._evaluate(
            f"{{ok, Queue}} = rpc:call('{node}', rabbit_amqqueue, lookup, [{resource}]), "
            f"Pid = rpc:call('{node}', amqqueue, get_pid, [Queue]), exit(Pid, kill)"
        )

    def close_connections(self) -> int:
        """Close all connections of clients, as an operator does; return how many there were."""
        found = self.ask("GET", "connections")
        for connection in found:
            with suppress(urllib.error.HTTPError):  # it has ended meanwhile
                self.ask("DELETE", f"connections/{quote(connection['name'], safe='')}")
        return len(found)

    def _call(self, function: str) -> None:
        """Call a function of Erlang in the node; its result must be ok."""
        self._evaluate(f"ok = rpc:call('{self.name}@localhost', {function})")

    def _evaluate(self, expressions: str) -> None:
        """Evaluate expressions of Erlang in a node of their own; an error in them is raised."""
        code = f"{expressions}, halt()."
        arguments = ["-noshell", "-sname", f"{processes.fresh_name('asking')}@localhost"]
        subprocess.run(
            [self.directory / "bin" / "erl", *arguments, "-eval", code],
            env={**os.environ, **self.environment()},
            check=True,
            timeout=_CALL_SECONDS,
        )

    def wait_until_known(self, queue: str) -> None:
        """Wait until the node has a new quorum queue on its disk.

        A node writes the names of its quorum queues about once a second. Killed before that, it
        starts the queue anew, without the messages that it has confirmed.
        """
        (names,) = self.directory.glob("data/*/quorum/*/names.dets")
        entry = f"_{queue}".encode()
        processes.wait_until(lambda: entry in names.read_bytes(), f"{queue} is on the disk")
