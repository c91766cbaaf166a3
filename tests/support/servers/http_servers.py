"""HTTP servers of our own, each a real one in a process of its own on the loopback.

Owns how Uvicorn, Hypercorn, Granian and Gunicorn are started, known to be ready, signalled and
ended. It must not know the app it serves, nor what is sent to it.
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
# Its output is our way to see what it does, and must not wait in a buffer.
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1"}
_IN_FOLDER = ("/bin/sh", "-c", 'cd "$0" && exec "$@"')


class HttpServer(ABC):
    """One server. `with Uvicorn("shop:app") as server:` and then talk to `server.url`."""

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
        """`app` is "module:attribute", imported from `cwd`, which is the current folder if not set.

        `graceful` is how many seconds the server itself gives running requests once it was told to
        end; without it, what the server does by itself. `options` go to its command line.
        """
        _need(self.package)
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
        self._last_words = ""

    # --- life -----------------------------------------------------------------------------------

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
        """Start it and wait until it serves. The port stays the same for its life."""
        if self.is_running:
            raise ServerFailed(f"{self.name} is running already")
        self.stop()  # if it ended by itself, its workers may not have
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
            self.close()  # nobody gets to leave a `with` that was never entered
            raise

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Ask it to end as a deployment does, by SIGTERM, and kill it after `grace` seconds."""
        if self._process is not None:
            self._process.end(signal.SIGTERM, grace)
            self._forget()

    def kill(self) -> None:
        """Kill it and its workers at once, and wait until they are gone."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def close(self) -> None:
        """End it if it runs, and remove its folder. What it said can still be read."""
        self.stop()
        self._last_words = self.log
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._hook is not None:
            processes.forget(self._hook)
            self._hook = None

    def _forget(self) -> None:
        """A main process that was killed alone leaves workers, in the session it was given."""
        if self._process is not None:
            rest = list(_session(self._process.pid))
            for pid in rest:
                with suppress(ProcessLookupError):  # it was faster
                    os.kill(pid, signal.SIGKILL)
            processes.wait_until(
                lambda: not any(map(processes.is_running, rest)), f"all of {self.name} is gone"
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
        """Of the main process; Granian and Gunicorn serve from a child of it."""
        return self._started().pid

    def pids(self) -> list[int]:
        """Of the main process and its workers, none when it is down."""
        return self._process.pids() if self._process is not None else []

    def signal(self, number: signal.Signals) -> None:
        """Signal the main process."""
        self._started().send(number)

    def wait(self, timeout: float = 30) -> int:
        """Wait until the main process has ended, and give its exit code."""
        process = self._started()
        try:
            return process.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise process.failure(f"still runs after {timeout:g} s") from None

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return processes.tail(self.directory / "log", lines=10_000) or self._last_words

    def _started(self) -> Process:
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process

    # --- what differs ---------------------------------------------------------------------------

    @abstractmethod
    def _arguments(self) -> Iterator[str]:
        """Its command line, up to the app. Says one worker, whatever the environment says."""

    def _serves(self) -> bool:
        """Whether it takes connections; most do so only when the app's start-up is done."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except ConnectionRefusedError:
            return False
        return True


class Uvicorn(HttpServer):
    """ASGI, on either of its two parsers."""

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
        _need(http)
        self.http = http

    def _arguments(self) -> Iterator[str]:
        yield from ("--host=127.0.0.1", f"--port={self.port}", "--workers=1", "--no-access-log")
        yield from ("--loop=asyncio", f"--http={self.http}", "--no-use-colors")
        if self.graceful is not None:
            yield f"--timeout-graceful-shutdown={self.graceful}"


class Hypercorn(HttpServer):
    """ASGI, served by the main process itself."""

    package = "hypercorn"

    def _arguments(self) -> Iterator[str]:
        yield from (f"--bind=127.0.0.1:{self.port}", "--workers=0", "--worker-class=asyncio")
        if self.graceful is not None:
            yield f"--graceful-timeout={self.graceful}"


class Granian(HttpServer):
    """ASGI, served by a child; the HTTP side of it is not Python."""

    package = "granian"
    # Its child does not notice when the main process is killed, so that must end in order.
    death_signal = cast(DeathSignal, "SIGTERM")

    def _arguments(self) -> Iterator[str]:
        yield from ("--interface=asgi", "--host=127.0.0.1", f"--port={self.port}", "--workers=1")
        yield from ("--loop=asyncio", "--no-access-log")
        if self.graceful is not None:
            yield f"--workers-kill-timeout={self.graceful}"


class Gunicorn(HttpServer):
    """WSGI, by threads: its plain workers know no keep-alive."""

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
        # It listens before its worker has loaded the app, so a connection says nothing.
        return f"a worker of {self.pid} has the app" in self.log and super()._serves()


_GUNICORN = """
control_socket_disable = True

def post_worker_init(worker):
    worker.log.info("a worker of %s has the app", worker.ppid)
"""


def _need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ServerMissing(package, f"pip install {package}")


def _session(leader: int) -> Iterator[int]:
    """What still runs of a session whose first process is gone."""
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        with suppress(ProcessLookupError):  # it ended meanwhile
            if pid != leader and os.getsid(pid) == leader and processes.is_running(pid):
                yield pid
