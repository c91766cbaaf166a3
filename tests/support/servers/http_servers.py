"""Uvicorn, Hypercorn, Granian and Gunicorn, each in a separate process on the loopback.

This module owns how they are started, how it sees that they are ready, and how they are signalled
and ended. It must not know the app that they serve or the requests that they get.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Literal, Self, cast

from tests.support.servers import processes
from tests.support.servers.processes import DeathSignal, Process, ServerFailed, ServerMissing, User

GRACE_SECONDS = 5
# Tests read the output while the server runs, so it must not be buffered.
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1"}
_IN_FOLDER = ("/bin/sh", "-c", 'cd "$0" && exec "$@"')


class HttpServer(ABC):
    """One server: `with Uvicorn("shop:app") as server:`, then send requests to `server.url`."""

    package: ClassVar[str]
    death_signal: ClassVar[DeathSignal] = "SIGKILL"

    def __init__(
        self,
        app: str,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        graceful: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """
        app        "module:attribute"
        cwd        the folder that `app` is imported from; by default the current folder
        env        added to the environment
        graceful   how many seconds the server gives running requests after SIGTERM; by default
                   the server's own default
        options    added to the command line
        """
        _require_package(self.package)
        self.app = app
        self.cwd = (cwd or Path.cwd()).resolve()
        self.env = {**_ENVIRONMENT, **(env or {})}
        self.graceful = graceful
        self.options = tuple(options)
        self.name = processes.fresh_name(self.package)
        self.directory = processes.scratch() / self.name
        self.port = 0
        self._process: Process | None = None
        self._hook: Callable[[], object] | None = None
        self._closed_log = ""

    # --- lifetime -------------------------------------------------------------------------------

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
        """Start the server and wait until it serves. A restarted server keeps its port."""
        if self.is_running:
            raise ServerFailed(f"{self.name} is running already")
        self.stop()  # a server that ended by itself may have left workers
        if self._hook is None:
            self._hook = processes.at_exit(self.close)
            self.directory.mkdir()
        self.port = self.port or processes.free_port()
        command = [sys.executable, "-m", self.package, *self._arguments(), *self.options, self.app]
        self._process = processes.launch(
            self.name,
            [*_IN_FOLDER, str(self.cwd), *command],
            User(),
            self.directory,
            death_signal=self.death_signal,
            env=self.env,
        )
        try:
            self._process.wait_ready(self._serves)
        except BaseException:
            self.close()  # a failed start never reaches `__exit__`
            raise

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """End the server as a deployment does: by SIGTERM, and by SIGKILL after `grace` seconds."""
        if self._process is not None:
            self._process.end(signal.SIGTERM, grace)
            self._kill_leftover_workers()

    def kill(self) -> None:
        """Kill the server and its workers at once, and wait until they are gone."""
        if self._process is not None:
            self._process.kill()
            self._kill_leftover_workers()

    def close(self) -> None:
        """End the server and remove its folder. Its log can still be read."""
        self.stop()
        self._closed_log = self.log
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._hook is not None:
            processes.forget(self._hook)
            self._hook = None

    def _kill_leftover_workers(self) -> None:
        """Kill the workers that a dead main process left behind, which are in its session."""
        if self._process is not None:
            workers = list(_session(self._process.pid))
            for pid in workers:
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(pid, signal.SIGKILL)
            processes.wait_until(
                lambda: not any(map(processes.is_running, workers)), f"all of {self.name} is gone"
            )
            self._process = None

    # --- use ------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running()

    @property
    def pid(self) -> int:
        """The id of the main process; Granian and Gunicorn serve from a child of it."""
        return self._started().pid

    def pids(self) -> list[int]:
        """Return the ids of the main process and its workers; none if the server is down."""
        return self._process.pids() if self._process is not None else []

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the main process."""
        self._started().send(number)

    def wait(self, timeout: float = 30) -> int:
        """Wait until the main process has ended, and return its exit code."""
        process = self._started()
        try:
            return process.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise process.failure(f"still runs after {timeout:g} s") from None

    @property
    def log(self) -> str:
        """The output so far."""
        return processes.tail(self.directory / "log", lines=10_000) or self._closed_log

    def _started(self) -> Process:
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process

    # --- what differs -------------------------------------------------------------------------

    @abstractmethod
    def _arguments(self) -> Iterator[str]:
        """Yield the arguments before the app. They ask for one worker in any environment."""

    def _serves(self) -> bool:
        """True if the server accepts connections; most do so only after the app's start-up."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except ConnectionRefusedError:
            return False
        return True


class Uvicorn(HttpServer):
    """An ASGI server, on either of its two HTTP parsers."""

    package = "uvicorn"

    def __init__(
        self,
        app: str,
        *,
        http: Literal["h11", "httptools"] = "h11",
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        graceful: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(app, cwd=cwd, env=env, graceful=graceful, options=options)
        _require_package(http)
        self.http = http

    def _arguments(self) -> Iterator[str]:
        yield from ("--host=127.0.0.1", f"--port={self.port}", "--workers=1", "--no-access-log")
        yield from ("--loop=asyncio", f"--http={self.http}", "--no-use-colors")
        if self.graceful is not None:
            yield f"--timeout-graceful-shutdown={self.graceful}"


class Hypercorn(HttpServer):
    """An ASGI server that serves from its main process."""

    package = "hypercorn"

    def _arguments(self) -> Iterator[str]:
        yield from (f"--bind=127.0.0.1:{self.port}", "--workers=0", "--worker-class=asyncio")
        if self.graceful is not None:
            yield f"--graceful-timeout={self.graceful}"


class Granian(HttpServer):
    """An ASGI server that serves from a child; its HTTP implementation is written in Rust."""

    package = "granian"
    # Its child does not notice a killed main process, so the main process must end in order.
    death_signal = cast(DeathSignal, "SIGTERM")

    def _arguments(self) -> Iterator[str]:
        yield from ("--interface=asgi", "--host=127.0.0.1", f"--port={self.port}", "--workers=1")
        yield from ("--loop=asyncio", "--no-access-log")
        if self.graceful is not None:
            yield f"--workers-kill-timeout={self.graceful}"


class Gunicorn(HttpServer):
    """A WSGI server, with threads, because its default workers do not support keep-alive."""

    package = "gunicorn"
    death_signal = "SIGQUIT"

    def __init__(
        self,
        app: str,
        *,
        threads: int = 4,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        graceful: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(app, cwd=cwd, env=env, graceful=graceful, options=options)
        self.threads = threads

    def _arguments(self) -> Iterator[str]:
        config = self.directory / "gunicorn.conf.py"
        config.write_text(_GUNICORN, encoding="utf-8")
        yield from (f"--config={config}", f"--bind=127.0.0.1:{self.port}")
        yield from ("--workers=1", "--worker-class=gthread", f"--threads={self.threads}")
        if self.graceful is not None:
            yield f"--graceful-timeout={self.graceful}"

    def _serves(self) -> bool:
        # Gunicorn listens before its worker has loaded the app, so a connection proves nothing.
        return f"a worker of {self.pid} has the app" in self.log and super()._serves()


_GUNICORN = """
control_socket_disable = True

def post_worker_init(worker):
    worker.log.info("a worker of %s has the app", worker.ppid)
"""


def _require_package(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ServerMissing(package, f"pip install {package}")


def _session(leader: int) -> Iterator[int]:
    """Yield the processes of a session that still run, without its leader."""
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        with suppress(ProcessLookupError):  # the process has ended meanwhile
            if pid != leader and os.getsid(pid) == leader and processes.is_running(pid):
                yield pid
