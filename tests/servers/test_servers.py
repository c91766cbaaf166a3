"""The servers of tests/support behave as the tests rely on, and none outlives the run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import errors
from tests.support.servers import (
    Installation,
    PgBouncer,
    Postgres,
    ServerFailed,
    ServerMissing,
    debian_packages,
    find_postgres,
    pick_postgres,
    processes,
    require,
    run_reaper,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with require(lambda: Postgres(fast=True)) as running:
        running.execute("CREATE TABLE notes (note text PRIMARY KEY)")
        yield running


@pytest.fixture
def notes(server: Postgres) -> Postgres:
    server.execute("TRUNCATE notes")
    return server


def all_notes(server: Postgres) -> list[str]:
    return sorted(note for (note,) in server.execute("SELECT note FROM notes"))


def are_gone(pids: list[int]) -> bool:
    return bool(pids) and not any(map(processes.is_running, pids))


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are found in /proc")
def test_every_thread_of_a_suspended_process_stands_still() -> None:
    script = "import threading; [threading.Thread(target=input).start() for _ in range(8)]; input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as busy:
        tasks = Path(f"/proc/{busy.pid}/task")
        processes.wait_until(lambda: len(list(tasks.iterdir())) == 9, "its threads run")
        processes.suspend(busy.pid)
        states = [run_reaper.stat(int(thread.name))[0] for thread in tasks.iterdir()]
        busy.kill()
    assert states == ["T"] * 9


# --- ports ----------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names to reserve a port by")
def test_a_port_that_another_process_was_given_is_free_when_that_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody listens on it yet, as on that of a server that starts."""
    script = "from tests.support.servers.processes import free_port; print(free_port()); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        monkeypatch.setattr(processes, "_PORTS", range(port, port + 1))
        with pytest.raises(ServerFailed, match="no free port"):
            processes.free_port()
        other.communicate("\n")
    assert processes.free_port() == port


# --- PostgreSQL -----------------------------------------------------------------------------------


@pytest.mark.parametrize("installation", find_postgres(), ids=lambda found: found.version)
def test_a_server_of_each_version_starts_and_leaves_nothing_behind(
    installation: Installation,
) -> None:
    with Postgres(installation=installation, settings={"max_connections": 17}) as server:
        assert server.execute("SHOW max_connections") == [("17",)]
        assert server.execute("SHOW fsync") == [("on",)]
        version = server.execute("SHOW server_version")[0][0]
        assert str(version).startswith(installation.version)
        pids, folder = server.pids(), server.directory
        assert processes.is_running(pids[0])
        assert not list(Path("/tmp").glob(f".s.PGSQL.{server.port}*"))
    assert are_gone(pids)
    assert not folder.exists()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_committed_rows_are_there_after_a_stop(notes: Postgres, mode: str) -> None:
    notes.execute("INSERT INTO notes VALUES ('kept')")
    port, pids, logged = notes.port, notes.pids(), len(notes.log)
    notes.stop("immediate" if mode == "immediate" else "fast")
    assert are_gone(pids)
    assert not notes.is_running
    with pytest.raises(psycopg.OperationalError):
        notes.execute("SELECT 1")
    notes.start()
    assert notes.port == port
    assert all_notes(notes) == ["kept"]
    assert ("was interrupted" in notes.log[logged:]) == (mode == "immediate")


def test_a_killed_server_loses_only_what_was_not_committed(notes: Postgres) -> None:
    with psycopg.connect(notes.url()) as busy:
        busy.execute("INSERT INTO notes VALUES ('not committed')")
        notes.execute("INSERT INTO notes VALUES ('committed')")
        pids = notes.pids()
        assert busy.info.backend_pid in pids
        notes.kill()
        assert are_gone(pids)
        with pytest.raises(psycopg.OperationalError):
            busy.execute("SELECT 1")
    notes.start()
    assert all_notes(notes) == ["committed"]


def test_settings_change_while_the_server_runs(server: Postgres) -> None:
    server.configure({"synchronous_commit": False})
    assert server.execute("SHOW synchronous_commit") == [("off",)]
    server.configure({"synchronous_commit": True})
    assert server.execute("SHOW synchronous_commit") == [("on",)]


def test_a_dropped_database_ends_its_sessions(server: Postgres) -> None:
    url = server.create_database('odd "name"')
    with psycopg.connect(url) as connection:
        assert connection.info.dbname == 'odd "name"'
        server.drop_database('odd "name"')
        with pytest.raises(errors.AdminShutdown):
            connection.execute("SELECT 1")


def test_a_synchronous_standby_has_every_commit_and_can_be_promoted() -> None:
    with require(lambda: Postgres(fast=True)) as primary, primary.basebackup() as standby:
        primary.configure({"synchronous_standby_names": "standby"})
        primary.wait_for_standby(sync=True)
        primary.execute("CREATE TABLE notes (note text); INSERT INTO notes VALUES ('one')")
        # A commit waits until the standby has it on disk, not until it can be read there.
        shown = "SELECT 1 WHERE to_regclass('notes') IS NOT NULL"
        processes.wait_until(lambda: bool(standby.execute(shown)), "the table is on the standby")
        with pytest.raises(errors.ReadOnlySqlTransaction):
            standby.execute("INSERT INTO notes VALUES ('no')")
        primary.kill()
        standby.promote()
        standby.execute("INSERT INTO notes VALUES ('two')")
        assert all_notes(standby) == ["one", "two"]
        with standby.basebackup() as second:  # in a long run of failovers, one follows the other
            assert all_notes(second) == ["one", "two"]
            assert len(second.name) == len(standby.name)


def test_a_commit_waits_for_a_missing_synchronous_standby() -> None:
    with require(lambda: Postgres(fast=True)) as primary:
        primary.configure({"synchronous_standby_names": "nobody"})
        with psycopg.connect(primary.url(), autocommit=True) as writer:
            waiting = threading.Thread(target=writer.execute, args=("CREATE TABLE notes ()",))
            waiting.start()
            query = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            processes.wait_until(lambda: bool(primary.execute(query)), "the commit waits")
            primary.configure({"synchronous_standby_names": ""})
            waiting.join()


def test_a_bad_setting_is_reported_with_the_log() -> None:
    server = require(lambda: Postgres(fast=True, settings={"no_such_setting": 1}))
    with pytest.raises(ServerFailed, match="no_such_setting"):
        server.start()
    server.close()
    assert not server.directory.exists()


# --- no server outlives the run -------------------------------------------------------------------

_RUN = """
import pathlib, sys
from tests.support.servers import Postgres
server = Postgres(pathlib.Path(sys.argv[1]), fast=True)
server.start()
print(server.name, *server.pids(), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("ending", ["exit", "SIGINT", "SIGKILL"])
def test_a_server_ends_with_the_process_that_started_it(server: Postgres, ending: str) -> None:
    if ending == "SIGKILL" and not shutil.which("setpriv"):
        pytest.skip("SETPRIV IS MISSING: it is in Debian's package util-linux")
    run = subprocess.Popen(
        [sys.executable, "-c", _RUN, server.base],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with run:
        assert run.stdout is not None
        name, *words = run.stdout.readline().split()
        pids = [int(word) for word in words]
        assert processes.is_running(pids[0])
        if ending != "exit":
            run.send_signal(signal.Signals[ending])
    processes.wait_until(lambda: are_gone(pids), "the server is gone", seconds=60)
    if ending != "SIGKILL":
        assert not (server.base / name).exists()


# --- missing servers ------------------------------------------------------------------------------


def test_a_missing_server_skips_its_test_and_fails_it_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="POSTGRESQL 3 IS MISSING"):
        require(lambda: pick_postgres(3))
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="POSTGRESQL 3 IS MISSING"):
        require(lambda: pick_postgres(3))


def test_the_error_of_a_missing_server_says_how_to_get_it() -> None:
    with pytest.raises(ServerMissing, match="postgresql-3") as caught:
        pick_postgres(3)
    assert caught.value.name == "PostgreSQL 3"


def test_a_cache_that_cannot_be_written_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with (
        pytest.raises(ServerMissing, match="XDG_CACHE_HOME"),
        debian_packages.work_folder(tmp_path / "cache" / "program"),
    ):
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="only root has to become another user")
def test_root_runs_a_server_in_a_folder_that_other_users_cannot_enter(
    tmp_path: Path, server: Postgres
) -> None:
    tmp_path.chmod(0o700)
    with Postgres(tmp_path, fast=True) as private:
        assert private.execute("SELECT 1") == [(1,)]
        # A clone in such a folder runs every server as this one.
        assert private.user.owner is None
        assert server.user.owner is None or private.user != server.user


# --- PgBouncer ------------------------------------------------------------------------------------


def test_pgbouncer_shares_few_connections_among_many_clients(notes: Postgres) -> None:
    pooler = require(lambda: PgBouncer(notes, settings={"default_pool_size": 1}))
    with pooler:
        pid = pooler.pid
        backends = set()
        for _ in range(3):
            with psycopg.connect(pooler.url(), prepare_threshold=None) as connection:
                backends |= set(connection.execute("SELECT pg_backend_pid()").fetchall())
                other = psycopg.connect(pooler.url(), prepare_threshold=None, autocommit=True)
                connection.commit()
                backends |= set(other.execute("SELECT pg_backend_pid()").fetchall())
                other.close()
        assert len(backends) == 1
    assert are_gone([pid])
