"""Doctor names each fault of an SQLite file, and is silent on a good one."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from tests.doctor.findings import by_check, problems

from oncekey import ConfigurationError, Once, Policy
from oncekey.stores import sqlite
from oncekey.stores.inspection import Severity
from oncekey.stores.sqlite import SQLiteStore, durability, file_checks, mounts
from oncekey.stores.sqlite.mounts import FileSystem, file_system_of
from oncekey.stores.sqlite.schema import MIGRATIONS

DAY_US = 86_400_000_000
ON_DISK = FileSystem("ext4", "/")


@pytest.fixture(autouse=True)
def good_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever library and file system the tests run on."""
    monkeypatch.setattr(durability, "has_wal_reset_bug", lambda *version: False)
    monkeypatch.setattr(mounts, "read_file_system", lambda path: ON_DISK)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file with a record, closed."""
    name = str(tmp_path / "keys.db")
    with Once(f"sqlite:///{name}") as once:
        once.run("charge", "order-1", lambda attempt: "paid")
    os.chmod(name, 0o600)
    return name


@pytest.fixture
def url(path: str) -> str:
    return f"sqlite:///{path}"


def execute(path: str, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql)


# --- a good one -----------------------------------------------------------------------------------


def test_doctor_is_silent_on_a_good_file(url: str) -> None:
    found = sqlite.checkup(url)
    assert {finding.severity for finding in found.findings} == {Severity.OK}
    assert by_check(found.findings).keys() == {check.name for check in sqlite.CHECKS}
    (run,) = found.runs
    assert (run.operation, run.keep) == ("charge", DAY_US)
    assert run.left is not None
    assert 0 < run.took < 20_000_000 < run.left <= 30_000_000


def test_doctor_makes_no_file(tmp_path: Path) -> None:
    found = sqlite.checkup(f"sqlite:///{tmp_path}/none.db")
    assert problems(found.findings) == {"sqlite.file": "broken"}
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_oncekeys_tables_is_named(tmp_path: Path) -> None:
    execute(str(tmp_path / "shop.db"), "CREATE TABLE orders (item TEXT)")
    found = sqlite.checkup(f"sqlite:///{tmp_path}/shop.db")
    assert problems(found.findings) == {"sqlite.file": "broken"}
    assert "without oncekey's tables" in by_check(found.findings)["sqlite.file"].what


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database at all, and longer than a header is" * 10)
    with pytest.raises(ConfigurationError, match="not an SQLite database"):
        sqlite.checkup(f"sqlite:///{tmp_path}/notes.txt")


def test_a_record_that_an_operator_decided_is_no_run(url: str, path: str) -> None:
    execute(path, "UPDATE oncekey_records SET lease_until = finished_at")
    assert sqlite.checkup(url).runs == []


# --- surroundings ---------------------------------------------------------------------------------


def test_a_library_with_the_wal_reset_bug_is_named_unless_acknowledged(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "has_wal_reset_bug", lambda *version: True)
    assert problems(sqlite.checkup(url).findings) == {"sqlite.version": "warning"}
    assert problems(sqlite.checkup(f"{url}?acknowledge=wal-reset-bug").findings) == {}


@pytest.mark.parametrize(
    ("kind", "severity"),
    [
        ("nfs4", Severity.BROKEN),
        ("cifs", Severity.BROKEN),
        ("fuse.sshfs", Severity.BROKEN),
        ("tmpfs", Severity.WARNING),
        ("fuse.unheard-of", Severity.INFO),
        ("xfs", Severity.OK),
        (None, Severity.INFO),
    ],
)
def test_file_systems_are_told_apart(
    url: str, monkeypatch: pytest.MonkeyPatch, kind: str | None, severity: Severity
) -> None:
    found = None if kind is None else FileSystem(kind, "/mnt/keys")
    monkeypatch.setattr(mounts, "read_file_system", lambda path: found)
    finding = by_check(sqlite.checkup(url).findings)["sqlite.file-system"]
    assert finding.severity is severity
    assert kind is None or f"{kind}, mounted at /mnt/keys" in finding.what


MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /mnt/data rw shared:9 master:2 - nfs4 host:/export rw,vers=4.2
31 22 0:27 / /mnt/my\040disk rw - cifs //host/share rw
32 22 0:28 / /mnt/data/local rw - xfs /dev/sdb1 rw
33 22 0:29 / /mnt/over rw - nfs host:/a rw
34 22 0:30 / /mnt/over rw - ext4 /dev/sdc rw
this line is of another format
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/keys.db", "ext4"),
        ("/mnt/data/keys.db", "nfs4"),
        ("/mnt/database/keys.db", "ext4"),
        ("/mnt/data/local/keys.db", "xfs"),
        ("/mnt/my disk/keys.db", "cifs"),
        ("/mnt/over/keys.db", "ext4"),
    ],
)
def test_the_innermost_and_latest_mount_counts(path: str, kind: str) -> None:
    found = file_system_of(path, MOUNTS)
    assert found is not None
    assert found.kind == kind


def test_no_mount_is_found_in_an_empty_list() -> None:
    assert file_system_of("/var/keys.db", "") is None


@pytest.mark.parametrize("mode", ["normal", "off", "OFF"])
def test_a_low_synchronous_level_breaks_the_guarantee(url: str, mode: str) -> None:
    found = sqlite.checkup(f"{url}?synchronous={mode}")
    assert problems(found.findings) == {"sqlite.synchronous": "broken"}


@pytest.mark.parametrize(("mode", "severity"), [(0o644, "warning"), (0o666, "broken")])
@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_file_that_every_user_can_reach_is_named(mode: int, severity: str, suffix: str) -> None:
    with TemporaryDirectory() as folder:  # not below pytest's own, which others cannot enter
        name = f"{folder}/keys.db"
        with Once(f"sqlite:///{name}") as once:
            once.run("charge", "order-1", lambda attempt: "paid")
            os.chmod(folder, 0o755)
            for one in ("", "-wal", "-shm"):
                os.chmod(name + one, 0o600)
            assert problems(sqlite.checkup(f"sqlite:///{name}").findings) == {}
            os.chmod(name + suffix, mode)
            found = sqlite.checkup(f"sqlite:///{name}")
            assert problems(found.findings) == {"sqlite.permissions": severity}
            assert (
                f"{name}{suffix} ({mode:o})" in by_check(found.findings)["sqlite.permissions"].what
            )
            os.chmod(folder, 0o700)
            assert problems(sqlite.checkup(f"sqlite:///{name}").findings) == {}


@pytest.mark.parametrize(
    ("free", "expected"),
    [(2**20, {"sqlite.disk": "broken"}), (2**27, {"sqlite.disk": "warning"}), (2**30, {})],
)
def test_a_disk_without_room_is_named(
    url: str, monkeypatch: pytest.MonkeyPatch, free: int, expected: dict[str, str]
) -> None:
    usage = SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=free))
    monkeypatch.setattr(file_checks, "shutil", usage)
    assert problems(sqlite.checkup(url).findings) == expected


# --- inside ---------------------------------------------------------------------------------------

FAULTS = {
    "journal": ("PRAGMA journal_mode = DELETE", {"sqlite.journal-mode": "warning"}, "'delete'"),
    "no index": (
        "DROP INDEX oncekey_records_unfinished",
        {"sqlite.schema": "warning"},
        "missing: index oncekey_records_unfinished",
    ),
    "other index": (
        "DROP INDEX oncekey_records_sweep; "
        "CREATE INDEX oncekey_records_sweep ON oncekey_records (keep)",
        {"sqlite.schema": "warning"},
        "changed: index oncekey_records_sweep",
    ),
    "trigger": (
        "CREATE TRIGGER mine AFTER DELETE ON oncekey_records BEGIN SELECT 1; END",
        {"sqlite.schema": "warning"},
        "not oncekey's: trigger mine",
    ),
    "added column": (
        "ALTER TABLE oncekey_records ADD COLUMN mine TEXT",
        {"sqlite.schema": "warning"},
        "changed: table oncekey_records",
    ),
    "lost column": (
        "ALTER TABLE oncekey_history DROP COLUMN note",
        {"sqlite.schema": "broken"},
        "missing columns: oncekey_history.note",
    ),
    "table": (
        "DROP TABLE oncekey_meta",
        {"sqlite.schema": "broken"},
        "missing columns: oncekey_meta.name, oncekey_meta.value",
    ),
    "no migrations": (
        "DROP TABLE oncekey_migrations",
        {"sqlite.schema": "broken"},
        "oncekey_migrations is missing",
    ),
    "older": (
        f"DELETE FROM oncekey_migrations WHERE version = {MIGRATIONS[-1].version}",  # noqa: S608
        {"sqlite.schema": "broken"},
        f"version {MIGRATIONS[-2].version} of the tables lacks {MIGRATIONS[-1].name}",
    ),
    "newer": (
        "INSERT INTO oncekey_migrations VALUES (99, 'later', 0)",
        {"sqlite.schema": "broken"},
        "install the release that wrote it",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_doctor_names_what_is_wrong_inside(url: str, path: str, name: str) -> None:
    sql, expected, said = FAULTS[name]
    execute(path, sql)
    found = sqlite.checkup(url)
    assert problems(found.findings) == expected
    (check,) = expected
    assert said in by_check(found.findings)[check].what


def test_a_damaged_file_is_named(url: str, path: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        root = "SELECT rootpage FROM sqlite_master WHERE name = 'oncekey_history_audit'"
        page = connection.execute(root).fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with open(path, "r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 100)
    found = by_check(sqlite.checkup(url).findings)["sqlite.integrity"]
    assert found.severity is Severity.BROKEN


def test_a_large_file_is_not_read_as_a_whole(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_checks, "QUICK_CHECK_MAX_BYTES", 100)
    found = by_check(sqlite.checkup(url).findings)["sqlite.integrity"]
    assert found.severity is Severity.INFO
    assert "not checked" in found.what


@pytest.fixture
def overdue(tmp_path: Path) -> Callable[[float], str]:
    """Makes a file whose records could have been removed so many days ago."""

    def make(days: float) -> str:
        begun = time.time_ns() // 1_000 - int(days * DAY_US) - 7_200_000_000
        store = SQLiteStore(tmp_path / "old.db", clock=lambda: begun)
        with Once(store, policy=Policy(keep="1h", audit="1h", lease="1s")) as once:
            for number in range(3):
                once.run("charge", f"old-{number}", lambda attempt: None)
        store.close()
        os.chmod(tmp_path / "old.db", 0o600)
        return f"sqlite:///{tmp_path}/old.db"

    return make


def test_records_that_are_a_day_late_at_most_are_no_fault(
    overdue: Callable[[float], str],
) -> None:
    assert problems(sqlite.checkup(overdue(0.9)).findings) == {}


def test_records_that_are_late_by_days_are_named(overdue: Callable[[float], str]) -> None:
    found = sqlite.checkup(overdue(2.5))
    assert problems(found.findings) == {"sqlite.sweeper": "warning"}
    what = by_check(found.findings)["sqlite.sweeper"].what
    assert what == "3 records could have been removed 2.5 days ago"


def test_a_store_is_known_by_its_file(path: str, url: str, tmp_path: Path) -> None:
    store = SQLiteStore(path)
    (tmp_path / "link.db").symlink_to(path)
    assert sqlite.is_same_store(url, store) is True
    assert sqlite.is_same_store(f"sqlite:///{tmp_path}/link.db", store) is True
    assert sqlite.is_same_store(f"sqlite:///{tmp_path}/other.db", store) is False
    assert sqlite.is_same_store(url, object()) is False
    store.close()
