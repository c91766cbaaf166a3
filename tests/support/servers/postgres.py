"""A PostgreSQL server of our own: a data directory and a running postmaster on the loopback.

Owns the life of one server (start, stop, kill, restart), its settings, its standbys. It serves
tests and benchmarks and must not know oncekey's tables or any test.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

from tests.support.servers import processes
from tests.support.servers.installations import Installation, pick_postgres, runnable
from tests.support.servers.processes import Process, ServerFailed, ServerMissing, User

Setting = str | int | bool
Settings = Mapping[str, Setting]
StopMode = Literal["smart", "fast", "immediate"]

DEFAULTS: dict[str, Setting] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": 200,
    # In the data directory, so that nothing is left elsewhere after a kill.
    "dynamic_shared_memory_type": "mmap",
    "logging_collector": False,
    "log_timezone": "UTC",
    "timezone": "UTC",
}
# For tests of behaviour. Never for tests of durability, and never for benchmarks.
FAST: dict[str, Setting] = {"fsync": False, "full_page_writes": False}

_SETTINGS_FILE = "server.conf"
_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_STATUS_LINE = 7  # of postmaster.pid, from 0
_SHARED_MEMORY_LINE = 6
_initdb = threading.Lock()


class Postgres:
    """One server. `with Postgres() as server:` starts it, and ends and removes it afterwards."""

    def __init__(
        self,
        base: Path | None = None,
        *,
        installation: Installation | None = None,
        settings: Settings | None = None,
        fast: bool = False,
        name: str | None = None,
    ) -> None:
        """`base` is a folder for data; an `initdb` is done there once and copied for each server.

        Without it the data is in the run's scratch folder. `fast` turns off what guards against
        the loss of power; it leaves `synchronous_commit` as it is.
        """
        self.base = (base or processes.scratch()).resolve()
        self.installation, self.user = runnable(installation or pick_postgres(), self.base)
        self.name = name or processes.fresh_name("postgres")
        self.directory = self.base / self.name
        self.data = self.directory / "data"
        self.settings: dict[str, Setting] = {**DEFAULTS, **(FAST if fast else {})}
        self.settings.update(settings or {})
        self.port = 0
        self._process: Process | None = None
        self._hook: Callable[[], object] | None = None

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
        """Start it and wait until it takes connections. The port stays the same for its life."""
        if self.is_running:
            raise ServerFailed(f"{self.name} is running already")
        if self._hook is None:
            self._hook = processes.at_exit(self.close)
        if not self.data.exists():
            self._copy_template()
        self.port = self.port or processes.free_port()
        self._write_settings()
        program = self.installation.program("postgres")
        self._process = processes.launch(
            self.name, [program, "-D", self.data], self.user, self.directory, death_signal="SIGQUIT"
        )
        pid = self._process.pid
        self._process.wait_ready(lambda: self._status(pid) in ("ready", "standby"))

    def stop(self, mode: StopMode = "fast") -> None:
        """`fast` ends sessions and writes everything; `immediate` leaves it to crash recovery."""
        if self._process is not None:
            self._process.end(_SIGNALS[mode])
            self._process = None

    def kill(self) -> None:
        """Kill the postmaster and all its children at once, and wait until they are gone."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def freeze(self) -> None:
        """Stop the postmaster and all its children, as when their machine hangs: connections stay
        open, what is sent arrives, and nothing answers."""
        for pid in self.pids():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on with whatever has arrived."""
        for pid in reversed(self.pids()):
            os.kill(pid, signal.SIGCONT)

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """End it if it runs, and remove its data."""
        self.stop("immediate")
        self._free_shared_memory()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._hook is not None:
            processes.forget(self._hook)
            self._hook = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running()

    @property
    def pid(self) -> int:
        """Of the postmaster."""
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process.pid

    def pids(self) -> list[int]:
        """Of the postmaster and its children, none when it is down."""
        return self._process.pids() if self._process is not None else []

    # --- use ------------------------------------------------------------------------------------

    @property
    def bin(self) -> Path:
        """The folder with `pgbench`, `psql` and the others."""
        return self.installation.bin

    @property
    def log(self) -> str:
        return processes.tail(self.directory / "log", lines=10_000)

    def url(
        self, database: str = "postgres", *, user: str = "postgres", port: int | None = None
    ) -> str:
        """`port` is for what stands in front of it: a proxy, a pooler."""
        return f"postgresql://{quote(user)}@127.0.0.1:{port or self.port}/{quote(database)}"

    def execute(
        self, sql: str, values: tuple[object, ...] | None = None, *, database: str = "postgres"
    ) -> list[tuple[Any, ...]]:
        """Run SQL on a connection of its own, each statement committed; gives the rows."""
        try:
            import psycopg
        except ImportError as error:
            raise ServerMissing("psycopg", "pip install 'oncekey[postgres]'") from error
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def create_database(self, name: str) -> str:
        """Gives its URL."""
        self.execute(f"CREATE DATABASE {_quoted(name)}")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")

    def configure(self, settings: Settings) -> None:
        """Change settings, and wait until the server has read them unless it is down.

        Those that need a restart are in force after the next one.
        """
        self.settings.update(settings)
        if self._process is None:
            return
        loaded = "SELECT pg_conf_load_time()"
        before = self.execute(loaded)
        self._write_settings()
        self._process.send(signal.SIGHUP)
        processes.wait_until(
            lambda: self.execute(loaded) != before, f"{self.name} has read its settings"
        )
        if "synchronous_standby_names" in settings:
            # Commits wait for standbys only once the checkpointer has read it too.
            self.execute("CHECKPOINT")

    # --- standbys -------------------------------------------------------------------------------

    def basebackup(
        self,
        base: Path | None = None,
        *,
        application_name: str = "standby",
        settings: Settings | None = None,
    ) -> Postgres:
        """A standby made from this server, not started yet; it streams once it is.

        `synchronous_standby_names` knows it by `application_name`.
        """
        standby = Postgres(
            base or self.base,
            installation=self.installation,
            settings={**self.settings, **(settings or {})},
            name=processes.fresh_name(f"{self.name}-{application_name}"),
        )
        standby.user.make_directory(standby.directory)
        source = f"{self.url()}?application_name={quote(application_name)}"
        where = [f"--pgdata={standby.data}", f"--dbname={source}"]
        how = ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]
        standby.user.run([self.bin / "pg_basebackup", *where, *how], standby.directory)
        return standby

    def promote(self) -> None:
        """Make a standby a server of its own, and wait until it takes writes."""
        if self.execute("SELECT pg_promote(true, 60)") != [(True,)]:
            raise ServerFailed(f"{self.name} was not promoted\n{self.log}")

    def wait_for_standby(self, application_name: str = "standby", *, sync: bool = False) -> None:
        """Wait until a standby of that name streams; with `sync`, until commits wait for it."""
        query = """SELECT sync_state IN ('sync', 'quorum') FROM pg_stat_replication
                   WHERE application_name = %s AND state = 'streaming'"""

        def there() -> bool:
            rows = self.execute(query, (application_name,))
            return bool(rows) and (rows[0][0] or not sync)

        processes.wait_until(there, f"{application_name} streams from {self.name}")

    # --- files ----------------------------------------------------------------------------------

    def _copy_template(self) -> None:
        with _initdb:
            template = _template(self.installation, self.user, self.base)
        self.user.make_directory(self.directory)
        self.user.run(["cp", "-a", template, self.data], self.directory)

    def _write_settings(self) -> None:
        lines = [f"{name} = {_value(value)}\n" for name, value in self.settings.items()]
        path = self.data / _SETTINGS_FILE
        path.write_text("".join([*lines, f"port = {self.port}\n"]), encoding="utf-8")
        path.chmod(0o644)

    def _pid_file(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except OSError:
            return []

    def _status(self, pid: int) -> str:
        lines = self._pid_file()
        if len(lines) <= _STATUS_LINE or lines[0] != str(pid):
            return ""
        return lines[_STATUS_LINE].strip()

    def _free_shared_memory(self) -> None:
        """A killed server leaves a small segment that only its next start would free."""
        lines = self._pid_file()
        if len(lines) > _SHARED_MEMORY_LINE and shutil.which("ipcrm"):
            segment = lines[_SHARED_MEMORY_LINE].split()[-1]
            subprocess.run(["ipcrm", "--shmem-id", segment], capture_output=True, check=False)


def _template(installation: Installation, user: User, base: Path) -> Path:
    """An empty data directory of this version, made once in `base`. Trusts every local client."""
    folder = base / f"template-{installation.version}"
    if not folder.exists():
        making = user.make_directory(base / processes.fresh_name(folder.name))
        data = making / "data"
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        user.run([installation.program("initdb"), "-D", data, *options, "--no-sync"], making)
        with (data / "postgresql.conf").open("a", encoding="utf-8") as config:
            config.write(f"\ninclude_if_exists = '{_SETTINGS_FILE}'\n")
        try:
            making.rename(folder)
        except OSError:
            shutil.rmtree(making)  # another process was faster
    return folder / "data"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _value(setting: Setting) -> str:
    if isinstance(setting, bool):
        return "on" if setting else "off"
    return "'" + str(setting).replace("'", "''") + "'"
