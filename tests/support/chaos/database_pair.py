"""A PostgreSQL primary and its standby, which change places, on disks that can be filled.

Each of the two places has a port, a proxy for clients and a proxy for the standby's stream of WAL.
Durable: commits wait for the standby. Not durable: they wait for nothing, not even for the server's
own disk, and the standby lags behind.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import psycopg
from tests.support.chaos.moved_clock import MovedClock, forget_shared_memory
from tests.support.chaos.payment_names import COMMIT_FAULTS, COMMITS_HIT, TABLE
from tests.support.chaos.small_disk import SmallDisk
from tests.support.servers import Postgres, Proxy, ServerFailed
from tests.support.servers.postgres import Setting
from tests.support.servers.processes import wait_until

STANDBY: Final = "standby"
SETTINGS: Final[dict[str, Setting]] = {
    "max_connections": 100,
    "shared_buffers": "64MB",
    "min_wal_size": "64MB",
    "max_wal_size": "128MB",
    "wal_keep_size": "32MB",
    "checkpoint_timeout": "30s",
    "wal_retrieve_retry_interval": "100ms",
    "wal_receiver_timeout": "10s",
    "wal_sender_timeout": "10s",
    "log_min_messages": "warning",
}
# With these, a commit stays in the server's memory for seconds, and a kill loses it.
NOT_DURABLE: Final[dict[str, Setting]] = {"synchronous_commit": False, "wal_writer_delay": "10s"}
STUCK_SECONDS: Final = 15
_COLUMNS: Final = "id text, run text, cents integer"
# A COMMIT of new rows fails while a row of COMMIT_FAULTS says how: a deferred trigger looks, so the
# INSERT has worked. A sequence counts, because it is not rolled back.
_FAILING_COMMITS: Final = f"""
    CREATE TABLE {COMMIT_FAULTS} (how text);
    CREATE SEQUENCE {COMMITS_HIT};
    CREATE FUNCTION fail_commit() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE how_to text;
    BEGIN
        SELECT how INTO how_to FROM {COMMIT_FAULTS} LIMIT 1;
        IF how_to IS NULL THEN RETURN NULL; END IF;
        PERFORM nextval('{COMMITS_HIT}');
        IF how_to = 'terminate' THEN
            PERFORM pg_terminate_backend(pg_backend_pid());
            PERFORM pg_sleep(60);  -- the session ends here
        END IF;
        RAISE 'this COMMIT is made to fail' USING ERRCODE = 'integrity_constraint_violation';
    END $$;
    CREATE CONSTRAINT TRIGGER fail_commit AFTER INSERT ON {TABLE}
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail_commit()
"""  # noqa: S608
_CAUGHT_UP: Final = """SELECT flush_lsn >= pg_current_wal_flush_lsn() FROM pg_stat_replication
                       WHERE application_name = %s AND state = 'streaming'"""


class DatabasePair:
    """Two servers: `primary` accepts writes, `standby` follows."""

    def __init__(self, folder: Path, *, durable: bool, moves_clock: bool = True) -> None:
        self.durable = durable
        self._moves_clock = moves_clock
        self.clock = MovedClock(folder / "database-clock")
        self._pids: list[int] = []
        self._primary = 0
        self._servers: list[Postgres] = []
        self._stack = ExitStack()
        self.disks = [SmallDisk(folder / f"disk-{number}") for number in (0, 1)]
        self.proxies: list[Proxy] = []
        self._streams: list[Proxy] = []

    # --- lifetime -------------------------------------------------------------------------------

    def start(self) -> None:
        settings = {**SETTINGS, **({} if self.durable else NOT_DURABLE)}
        env = self.clock.environment if self._moves_clock else {}
        first = Postgres(self.disks[0].path, settings=settings, env=env)
        self._stack.callback(self.close_servers)
        self._servers.append(first)
        self._start(first)
        first.execute(f"CREATE TABLE {TABLE} ({_COLUMNS})")
        first.execute(_FAILING_COMMITS)
        self._add_proxies(first)
        second = self._follower(self.disks[1].path)
        self._servers.append(second)
        self._start(second)
        self._add_proxies(second)
        self._wait_for_commits()

    def _add_proxies(self, server: Postgres) -> None:
        self.proxies.append(self._stack.enter_context(Proxy(server.port)))
        self._streams.append(self._stack.enter_context(Proxy(server.port)))

    def close(self) -> None:
        self._stack.close()
        for disk in self.disks:
            disk.close()

    def close_servers(self) -> None:
        for server in self._servers:
            server.close()
        forget_shared_memory(self._pids)

    def _start(self, server: Postgres) -> None:
        server.start()
        self._pids.append(server.pid)

    def _follower(self, disk: Path) -> Postgres:
        """Return a copy of the primary that will stream from its proxy."""
        follower = self.primary.basebackup(disk, application_name=STANDBY)
        path = follower.data / "postgresql.auto.conf"
        through = f"port={self._streams[self._primary].port}"
        path.write_text(path.read_text().replace(f"port={self.primary.port}", through))
        return follower

    def _wait_for_commits(self) -> None:
        """Let commits wait for the standby from here on, if the pair is durable."""
        if self.durable:
            self.primary.configure({"synchronous_standby_names": STANDBY})
        self.primary.wait_for_standby(STANDBY, sync=self.durable)

    # --- use ------------------------------------------------------------------------------------

    @property
    def primary(self) -> Postgres:
        return self._servers[self._primary]

    @property
    def standby(self) -> Postgres:
        return self._servers[1 - self._primary]

    @property
    def disk(self) -> SmallDisk:
        return self.disks[self._primary]

    @property
    def stream(self) -> Proxy:
        """The proxy that the standby's stream of WAL passes."""
        return self._streams[self._primary]

    @property
    def address(self) -> str:
        """Both addresses, behind their proxies; a client takes the one that accepts writes."""
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)
        return f"postgresql://postgres@{hosts}/postgres?sslmode=disable&target_session_attrs=read-write"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.primary.execute(sql)

    def accepts_writes(self) -> bool:
        try:
            return self.primary.execute("SELECT pg_is_in_recovery()") == [(False,)]
        except psycopg.OperationalError:
            return False

    # --- what the nemesis does ------------------------------------------------------------------

    def ensure_running(self) -> None:
        """Start the servers that have ended, and wait until writes are accepted."""
        try:
            wait_until(self._is_back, "the primary accepts writes", STUCK_SECONDS)
        except ServerFailed:
            # If recovery from a crash fails on a full disk, PostgreSQL 18 may go on for ever
            # without the process that recovers. An operator would do the same.
            self.primary.kill()
            wait_until(self._is_back, "the primary accepts writes", 60)

    def _is_back(self) -> bool:
        for server in (self.primary, self.standby):
            if not server.is_running:  # a server may also end while it recovers from a crash
                server.kill()
                self._start(server)
        return self.accepts_writes()

    def wait_until_caught_up(self) -> None:
        """Wait until the standby has everything that the primary has."""

        def is_caught_up() -> bool:
            return self.primary.execute(_CAUGHT_UP, (STANDBY,)) == [(True,)]

        wait_until(is_caught_up, "the standby has caught up", 60)

    def fail_commits(self, how: str) -> None:
        """Let every COMMIT of new rows fail: `refuse` it, or `terminate` its session."""
        self.primary.execute(f"INSERT INTO {COMMIT_FAULTS} VALUES (%s)", (how,))  # noqa: S608

    def accept_commits(self) -> None:
        self.primary.execute(f"DELETE FROM {COMMIT_FAULTS}")  # noqa: S608

    def commits_hit(self) -> int:
        """How many COMMITs were made to fail, more or less: a crash may skip numbers."""
        last = f"SELECT is_called::int * last_value FROM {COMMITS_HIT}"  # noqa: S608
        ((count,),) = self.primary.execute(last)
        return int(count)

    def stop_waiting_for_standby(self) -> None:
        """Let commits wait for the standby no more, as an operator does who has lost it."""
        self.primary.configure({"synchronous_standby_names": ""})

    def detach_standby(self) -> None:
        """Cut the standby off, once it has everything that was committed so far."""
        self.wait_until_caught_up()
        self.stream.refuse()
        self.stream.cut()

    def promote_detached_standby(self) -> None:
        self.primary.kill()
        self.stream.accept()
        self.promote_standby()

    def promote_standby(self) -> None:
        """Make the standby the primary, and the dead primary's place that of a new standby."""
        old, new = self.primary, self.standby
        old.kill()
        new.configure({"synchronous_standby_names": ""})  # it was copied from the primary
        new.promote()
        self._primary = 1 - self._primary
        old.close()
        rebuilt = self._follower(self.disks[1 - self._primary].path)
        rebuilt.port = old.port
        self._servers[1 - self._primary] = rebuilt
        self._start(rebuilt)
        self._wait_for_commits()
