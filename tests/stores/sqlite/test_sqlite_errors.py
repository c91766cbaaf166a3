"""The errors that callers get if the file, the disk or another process prevents a call."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncekey.core.commands import Claim, Claimed, Look, Seen
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.stores.sqlite import SQLiteStore

CLAIM = Claim(b"i" * 16, b"o", b"\x01f", 30_000_000, 60_000_000, 0, retry_safe=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(path, busy_timeout="0s")
    yield store
    store.close()


def is_free(store: SQLiteStore) -> bool:
    reply = store.apply([Look(CLAIM.id)])[0]
    assert isinstance(reply, Seen)
    return reply.record is None


def test_a_held_lock_makes_the_store_unavailable_and_writes_nothing(
    path: Path, store: SQLiteStore
) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="busy_timeout") as raised:
        store.apply([CLAIM])
    assert not raised.value.ambiguous
    assert is_free(store)  # reads still work
    other.execute("ROLLBACK")
    assert isinstance(store.apply([CLAIM])[0], Claimed)
    other.close()


def test_a_file_locked_at_opening_is_unavailable_not_misconfigured(path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    other.execute("CREATE TABLE mine (x)")
    with pytest.raises(StoreUnavailable, match="busy_timeout") as raised:
        SQLiteStore(path, busy_timeout="0s")
    assert not raised.value.ambiguous
    other.execute("ROLLBACK")
    other.close()
    SQLiteStore(path, busy_timeout="0s").close()


def test_a_database_at_its_size_limit_is_unavailable(store: SQLiteStore) -> None:
    connection = store._database._connection
    assert connection is not None
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    claims = [CLAIM._replace(id=n.to_bytes(16, "big")) for n in range(200)]
    with pytest.raises(StoreUnavailable, match="make room") as raised:
        store.apply([*claims, CLAIM])
    assert not raised.value.ambiguous
    assert is_free(store)
    connection.execute("PRAGMA max_page_count = 1000000")
    assert isinstance(store.apply([CLAIM])[0], Claimed)


def test_a_faulty_command_is_not_a_store_failure(store: SQLiteStore) -> None:
    with pytest.raises(OverflowError):
        store.apply([CLAIM, CLAIM._replace(id=b"j" * 16, keep=2**63)])
    assert is_free(store)
    connection = store._database._connection
    assert connection is not None
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000)
    with pytest.raises(sqlite3.DataError):
        store.apply([CLAIM._replace(scope="x" * 2_000)])
    assert isinstance(store.apply([CLAIM])[0], Claimed)


def test_a_closed_store_is_reported(store: SQLiteStore) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreUnavailable, match="closed") as raised:
        store.apply([CLAIM])
    assert not raised.value.ambiguous


# --- files that cannot be used --------------------------------------------------------------------


def test_a_missing_directory_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="check that its directory exists"):
        SQLiteStore(tmp_path / "nowhere" / "keys.db")


def test_a_directory_in_place_of_the_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="that is a folder"):
        SQLiteStore(tmp_path)


def test_a_file_that_is_no_database_is_a_configuration_error(path: Path) -> None:
    path.write_text("these are my notes\n" * 100)
    with pytest.raises(ConfigurationError, match="not an SQLite database"):
        SQLiteStore(path)
    assert path.read_text().startswith("these are my notes")


def damage(path: Path, table: str) -> None:
    """Overwrite the root page of a table and of its indexes."""
    connection = sqlite3.connect(path)
    query = "SELECT rootpage FROM sqlite_master WHERE tbl_name = ? AND rootpage > 0"
    pages = connection.execute(query, (table,)).fetchall()
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    with path.open("r+b") as file:
        for (page,) in pages:
            file.seek((page - 1) * size)
            file.write(b"\xa5" * size)


def test_a_damaged_file_is_reported_at_opening(path: Path) -> None:
    SQLiteStore(path).close()
    damage(path, "oncekey_migrations")
    with pytest.raises(ConfigurationError, match="damaged"):
        SQLiteStore(path)


def test_a_damaged_table_is_reported_by_every_call(path: Path) -> None:
    SQLiteStore(path).close()
    damage(path, "oncekey_records")
    store = SQLiteStore(path)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="damaged") as raised:
            store.apply([CLAIM])
        assert not raised.value.ambiguous
    store.close()


def test_a_file_that_becomes_unusable_later_is_unavailable(path: Path) -> None:
    store = SQLiteStore(path)
    store.apply([CLAIM])
    store._database._disconnect()  # as before a fork
    path.write_text("these are my notes\n" * 1_000)
    with pytest.raises(StoreUnavailable, match="not an SQLite database") as raised:
        store.apply([CLAIM])
    assert not raised.value.ambiguous
    path.unlink()
    store.close()


# --- in processes of their own --------------------------------------------------------------------

PREAMBLE = """
import os, sys
from oncekey.core.commands import Claim, Claimed, Look
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.stores.sqlite import SQLiteStore
CLAIM = Claim(b"i" * 16, b"o", b"\\x01f", 30_000_000, 60_000_000, 0, retry_safe=False)
def many(count, size):
    return [CLAIM._replace(id=n.to_bytes(16, "big"), scope="x" * size) for n in range(count)]
def tell(call):
    try:
        print("fine", type(call()).__name__)
    except (ConfigurationError, StoreUnavailable) as error:
        print(type(error).__name__, getattr(error, "ambiguous", ""), error)
"""


def python(script: str, *arguments: object, wrapper: tuple[str, ...] = ()) -> Any:
    return subprocess.run(
        [*wrapper, sys.executable, "-c", PREAMBLE + script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user may enter, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="oncekey-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


AS_NOBODY = """
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
"""


def test_a_read_only_directory_is_reported(open_directory: Path) -> None:
    open_directory.chmod(0o555)
    done = python(AS_NOBODY + "tell(lambda: SQLiteStore(sys.argv[1]))", open_directory / "k.db")
    open_directory.chmod(0o755)
    assert done.stdout.startswith("ConfigurationError"), done.stderr
    assert "check that its directory exists and can be written" in done.stdout


def test_a_read_only_file_is_reported(open_directory: Path) -> None:
    path = open_directory / "keys.db"
    SQLiteStore(path).close()
    path.chmod(0o444)
    open_directory.chmod(0o777)
    script = """
store = SQLiteStore(sys.argv[1])
tell(lambda: store.apply([CLAIM]))
tell(lambda: store.apply([Look(CLAIM.id)]))
"""
    done = python(AS_NOBODY + script, path)
    assert done.stdout.startswith("StoreUnavailable False the database cannot be written"), done
    assert done.stdout.endswith("fine list\n")


def test_a_commit_that_fails_on_disk_is_ambiguous(path: Path) -> None:
    script = """
import resource, signal
store = SQLiteStore(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = os.path.getsize(sys.argv[1] + "-wal")
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 6_000, resource.RLIM_INFINITY))
tell(lambda: store.apply(many(20, 200)))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
tell(lambda: store.apply(many(20, 200)))
print(type(store.apply([CLAIM])[0]).__name__)
"""
    done = python(script, path)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("StoreUnavailable True the disk failed"), done
    assert lines[1:] == ["fine list", "Claimed"]


def test_a_full_disk(path: Path, tmp_path: Path) -> None:
    wrapper = ("unshare", "--user", "--map-root-user", "--mount")
    mount = 'mount -t tmpfs -o size=600k tmpfs "$1" && shift && exec "$@"'
    inside = (*wrapper, "sh", "-c", mount, "sh", str(tmp_path))
    if not shutil.which("unshare") or subprocess.run([*inside, "true"]).returncode:
        pytest.skip("no private mounts here")
    script = """
store = SQLiteStore(sys.argv[1])
tell(lambda: store.apply(many(2000, 200)))
tell(lambda: store.apply([CLAIM]))
"""
    done = python(script, path, wrapper=inside)
    first, second = done.stdout.splitlines()
    assert first.startswith("StoreUnavailable"), done
    assert "make room" in first
    assert second == "fine list"
