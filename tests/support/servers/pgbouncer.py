"""PgBouncer in front of a `Postgres`, in transaction pooling mode, which most operators use.

This module owns the pooler's program, configuration and lifetime. It neither starts nor stops the
server behind it, and must not know what is stored there.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.servers import debian_packages, processes
from tests.support.servers.postgres import Postgres, Setting
from tests.support.servers.processes import Process, ServerFailed

DEFAULTS: dict[str, Setting] = {
    "listen_addr": "127.0.0.1",
    "unix_socket_dir": "",
    "auth_type": "any",
    "pool_mode": "transaction",
    "max_client_conn": 500,
    "default_pool_size": 20,
    "ignore_startup_parameters": "extra_float_digits",
}
_SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin"


class PgBouncer:
    """One pooler: `with PgBouncer(server) as pooler:`, then connect to `pooler.url()`."""

    def __init__(
        self,
        server: Postgres,
        *,
        settings: Mapping[str, Setting] | None = None,
        cache: Path | None = None,
    ) -> None:
        """`cache` is the folder for the program if it has to be fetched."""
        self.server = server
        self.settings = {**DEFAULTS, **(settings or {})}
        self.name = processes.fresh_name("pgbouncer")
        self.directory = server.base / self.name
        self._source = find_pgbouncer(cache)
        self._program: Path = Path()
        self._env: dict[str, str] = {}
        self.user = server.user
        self.port = 0
        self._process: Process | None = None
        self._hook: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        if self._process is not None:
            raise ServerFailed(f"{self.name} is running already")
        if self._hook is None:
            self._hook = processes.at_exit(self.close)
            self.user.make_directory(self.directory)
            self._program, self._env = _copy_for_user(self._source, self.directory)
        self.port = self.port or processes.free_port()
        config = self.directory / "pgbouncer.ini"
        config.write_text(self._config(), encoding="utf-8")
        config.chmod(0o644)
        self._process = processes.launch(
            self.name,
            [self._program, config],
            self.user,
            self.directory,
            death_signal="SIGKILL",
            env=self._env,
        )
        self._process.wait_ready(self._accepts)

    def stop(self) -> None:
        """Kill the pooler: it stores nothing, so no orderly shutdown is needed."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._hook is not None:
            processes.forget(self._hook)
            self._hook = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process.pid

    @property
    def log(self) -> str:
        return processes.tail(self.directory / "log", lines=10_000)

    def url(self, database: str = "postgres") -> str:
        return self.server.url(database, port=self.port)

    def _config(self) -> str:
        lines = [f"{name} = {value}" for name, value in self.settings.items()]
        databases = f"* = host=127.0.0.1 port={self.server.port} user=postgres"
        lines = ["[databases]", databases, "[pgbouncer]", f"listen_port = {self.port}", *lines]
        return "\n".join([*lines, ""])

    def _accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except ConnectionRefusedError:
            return False
        return True


def find_pgbouncer(cache: Path | None = None) -> Path:
    """Return the installed program, or the folder of the fetched package."""
    installed = shutil.which("pgbouncer") or shutil.which("pgbouncer", path=_SYSTEM_FOLDERS)
    return Path(installed) if installed is not None else debian_packages.fetch("pgbouncer", cache)


def _copy_for_user(source: Path, directory: Path) -> tuple[Path, dict[str, str]]:
    """Return the program, copied so that the pooler's user can read it, and its environment."""
    if source.is_file():
        return source, {}
    copy = directory / "program"
    shutil.copytree(source, copy, symlinks=True)  # other users cannot read root's cache
    return copy / "usr" / "sbin" / "pgbouncer", debian_packages.libraries(copy)
