"""The lifetime that Redis and etcd servers share: start, kill, pause, restart on the same data.

This module owns a server's folder and process, alone and in groups. It must not know how any server
is configured or asked anything; a subclass says its command and when it is ready.
"""

from __future__ import annotations

import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tests.support.servers import processes
from tests.support.servers.processes import Process, ServerFailed, User


class Closable(ABC):
    """What a `with` block starts, and closes at its end."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


Started = TypeVar("Started", bound=Closable)


def started(servers: Started) -> Started:
    """Start servers that stay until the run ends, or close them if one does not start."""
    return servers.__enter__()


class LoopbackServer(Closable):
    """One server process on 127.0.0.1 with a port and a folder of its own.

    It runs as the user who runs the tests, because these servers do not refuse root.
    """

    def __init__(self, kind: str, base: Path | None = None) -> None:
        """`base` is the folder for data, by default in memory where the system allows it."""
        self.base = (base or processes.memory_scratch()).resolve()
        self.name = processes.fresh_name(kind)
        self.directory = self.base / self.name
        self.port = 0
        self._process: Process | None = None
        self._hook: Callable[[], object] | None = None

    def __getstate__(self) -> dict[str, object]:
        """What another process of the run may know: where the server is, but not how to end it."""
        return {**vars(self), "_process": None, "_hook": None}

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """Return the command that starts the server; files it reads are written here."""

    @abstractmethod
    def is_ready(self) -> bool:
        """True if the server answers as it should after a start."""

    def environment(self) -> Mapping[str, str]:
        """Return variables that the server needs beside those of the test run."""
        return {}

    # --- lifetime -------------------------------------------------------------------------------

    def reserve(self) -> None:
        """Choose the port and make the folder; a restart keeps both."""
        if self._hook is None:
            self._hook = processes.at_exit(self.close)
            User().make_directory(self.directory)
        self.port = self.port or processes.free_port()

    def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        if self.is_running:
            raise ServerFailed(f"{self.name} is running already")
        self.reserve()
        self._process = processes.launch(
            self.name,
            self.command(),
            User(),
            self.directory,
            death_signal="SIGKILL",
            env=self.environment(),
        )

    def wait_ready(self, seconds: float = 60) -> None:
        self._running().wait_ready(self.is_ready, seconds)

    def start(self) -> None:
        """Start the server, on the data that it has, and wait until it is ready."""
        self.launch()
        self.wait_ready()

    def stop(self) -> None:
        """End the server in order: it writes what it has first."""
        if self._process is not None:
            self._process.end(signal.SIGTERM)
            self._process = None

    def kill(self) -> None:
        """Kill the server by SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def pause(self) -> None:
        """Stop the process by SIGSTOP: connections stay open, and nothing is answered."""
        self._running().send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process continue with the requests that have arrived."""
        self._running().send(signal.SIGCONT)

    def close(self) -> None:
        """Kill the server if it runs, and remove its data."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._hook is not None:
            processes.forget(self._hook)
            self._hook = None

    # --- what is known of it --------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running()

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return processes.tail(self.directory / "log", lines=10_000)

    def _running(self) -> Process:
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process


class ServerGroup(Closable):
    """Several servers that are one: a cluster, or a master with its replicas and watchers."""

    @abstractmethod
    def servers(self) -> Sequence[LoopbackServer]:
        """Return every server of the group."""

    def close(self) -> None:
        for server in self.servers():
            server.close()

    @property
    def addresses(self) -> str:
        """The addresses of all servers, as they stand in a URL."""
        return ",".join(server.address for server in self.servers())
