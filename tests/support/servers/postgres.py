"""A PostgreSQL server for tests and benchmarks: a data directory and a postmaster on the loopback.

This module owns one server's lifetime (start, stop, kill, restart), settings and standbys. It must
not know oncekey's tables or any test.
"""

from __future__ import annotations

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
    # Shared memory is in the data directory, so that a kill leaves nothing elsewhere.
    "dynamic_shared_memory_type": "mmap",
    "logging_collector": False,
    "log_timezone": "UTC",
    "timezone": "UTC",
}
# These settings are for tests of behaviour, never for tests of durability or benchmarks.
FAST: dict[str, Setting] = {"fsync": False, "full_page_writes": False}

_SETTINGS_FILE = "server.conf"
_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_STATUS_LINE = 7  # in postmaster.pid, counted from 0
_SHARED_MEMORY_LINE = 6
_initdb = threading.Lock()


class Postgres:
    """One server: `with Postgres() as server:` starts it, and afterwards ends and removes it."""

    def __init__(
        self,
        base: Path | None = None,
        *,
        installation: Installation | None = None,
        settings: Settings | None = None,
        fast: bool = False,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """
        base           the folder for data, by default the run's scratch folder; `initdb` runs there
                       once, and each server gets a copy
        installation   the programs, by default the newest found
        settings       override those in `DEFAULTS`
        fast           turns off what protects from a loss of power; `synchronous_commit` stays on
        name           the name of its folder
        env            added to the environment of the server
        """
        self.base = (base or processes.scratch()).resolve()
        self.installation, self.user = runnable(installation or pick_postgres(), self.base)
        self.name = name or processes.fresh_name("postgres")
        self.directory = self.base / self.name
        self.data = self.directory / "data"
        self.settings: dict[str, Setting] = {**DEFAULTS, **(FAST if fast else {})}
        self.settings.update(settings or {})
        self.env = dict(env or {})
        self.port = 0
        self._process: Process | None = None
        self._hook: Callable[[], object] | None = None

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
        """Start the server and wait until it accepts connections. A restart keeps the port."""
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
            self.name,
            [program, "-D", self.data],
            self.user,
            self.directory,
            death_signal="SIGQUIT",
            env=self.env,
        )
        pid = self._process.pid
        self._process.wait_ready(lambda: self._status(pid) in ("ready", "standby"))

    def stop(self, mode: StopMode = "fast") -> None:
        """End the server: `fast` writes everything first, `immediate` needs crash recovery."""
        if self._process is not None:
            self._process.end(_SIGNALS[mode])
            self._process = None

    def kill(self) -> None:
        """Kill the postmaster and all its children, and wait until they are gone."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def freeze(self) -> None:
        """Stop the postmaster and all its children by SIGSTOP, as when their machine hangs.

        Connections stay open and requests arrive, but nothing replies.
        """
        assert self._process is not None
        self._process.freeze()

    def thaw(self) -> None:
        """Let the processes continue with the requests that have arrived."""
        assert self._process is not None
        self._process.thaw()

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """End the server if it runs, and remove its data."""
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
        """The process id of the postmaster."""
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process.pid

    def pids(self) -> list[int]:
        """Return the ids of the postmaster and its children; none if the server is down."""
        return self._process.pids() if self._process is not None else []

    # --- use ------------------------------------------------------------------------------------

    @property
    def bin(self) -> Path:
        """The folder with `pgbench`, `psql` and the other programs."""
        return self.installation.bin

    @property
    def log(self) -> str:
        return processes.tail(self.directory / "log", lines=10_000)

    def url(
        self, database: str = "postgres", *, user: str = "postgres", port: int | None = None
    ) -> str:
        """Return the URL of a database; `port` is that of a proxy or pooler in front of it."""
        return f"postgresql://{quote(user)}@127.0.0.1:{port or self.port}/{quote(database)}"

    def execute(
        self, sql: str, values: tuple[object, ...] | None = None, *, database: str = "postgres"
    ) -> list[tuple[Any, ...]]:
        """Run SQL on a new connection in autocommit mode, and return the rows."""
        try:
            import psycopg
        except ImportError as error:
            raise ServerMissing("psycopg", "pip install 'oncekey[postgres]'") from error
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def create_database(self, name: str) -> str:
        """Create a database and return its URL."""
        self.execute(f"CREATE DATABASE {_quoted(name)}")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")

    def configure(self, settings: Settings) -> None:
        """Change settings, and wait until the server has read them, unless it is down.

        Settings that need a restart take effect after the next one.
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
            # Commits wait for standbys only after the checkpointer has read the setting too.
            self.execute("CHECKPOINT")

    # --- standbys -------------------------------------------------------------------------------

    def basebackup(
        self,
        base: Path | None = None,
        *,
        application_name: str = "standby",
        settings: Settings | None = None,
    ) -> Postgres:
        """Return a standby of this server; it streams after its `start`.

        `application_name` is its name in `synchronous_standby_names`.
        """
        standby = Postgres(
            base or self.base,
            installation=self.installation,
            settings={**self.settings, **(settings or {})},
            name=processes.fresh_name(f"postgres-{application_name}"),
            env=self.env,
        )
        standby.user.make_directory(standby.directory)
        source = f"{self.url()}?application_name={quote(application_name)}"
        paths = [f"--pgdata={standby.data}", f"--dbname={source}"]
        flags = ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]
        standby.user.run([self.bin / "pg_basebackup", *paths, *flags], standby.directory)
        return standby

    def promote(self) -> None:
        """Promote a standby, and wait until it accepts writes."""
        if self.execute("SELECT pg_promote(true, 60)") != [(True,)]:
            raise ServerFailed(f"{self.name} was not promoted\n{self.log}")

    def wait_for_standby(self, application_name: str = "standby", *, sync: bool = False) -> None:
        """Wait until a standby of that name streams; with `sync`, until commits wait for it."""
        query = """SELECT sync_state IN ('sync', 'quorum') FROM pg_stat_replication
                   WHERE application_name = %s AND state = 'streaming'"""

        def streams() -> bool:
            rows = self.execute(query, (application_name,))
            return bool(rows) and (rows[0][0] or not sync)

        processes.wait_until(streams, f"{application_name} streams from {self.name}")

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
        """Free the shared memory segment that a killed server leaves until its next start."""
        lines = self._pid_file()
        if len(lines) > _SHARED_MEMORY_LINE and shutil.which("ipcrm"):
            segment = lines[_SHARED_MEMORY_LINE].split()[-1]
            subprocess.run(["ipcrm", "--shmem-id", segment], capture_output=True, check=False)


def _template(installation: Installation, user: User, base: Path) -> Path:
    """Return an empty data directory, made once in `base`, that trusts every local client."""
    folder = base / f"template-{installation.version}"
    if not folder.exists():
        unfinished = user.make_directory(base / processes.fresh_name(folder.name))
        data = unfinished / "data"
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        user.run([installation.program("initdb"), "-D", data, *options, "--no-sync"], unfinished)
        with (data / "postgresql.conf").open("a", encoding="utf-8") as config:
            config.write(f"\ninclude_if_exists = '{_SETTINGS_FILE}'\n")
        try:
            unfinished.rename(folder)
        except OSError:
            shutil.rmtree(unfinished)  # another process was faster
    return folder / "data"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _value(setting: Setting) -> str:
    if isinstance(setting, bool):
        return "on" if setting else "off"
    return "'" + str(setting).replace("'", "''") + "'"
