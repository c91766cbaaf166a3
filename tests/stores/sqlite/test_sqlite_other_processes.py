"""The warning about SQLite's WAL-reset bug is logged if another process has the file open."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncekey import ConfigurationError, Once
from oncekey.core.commands import Look
from oncekey.stores.sqlite import connection, durability, other_processes
from oncekey.stores.sqlite.sqlite_store import SQLiteStore

OPENER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT * FROM oncekey_meta").fetchall()
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(path: Path) -> Iterator[None]:
    """A process that has the file open. It does not use oncekey: any program may share the file."""
    command = [sys.executable, "-c", OPENER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"open"
        yield
        process.stdin.close()


@pytest.fixture(autouse=True)
def buggy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "_warned", False)
    monkeypatch.setattr(durability, "has_wal_reset_bug", lambda version=None: True)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING)
    return caplog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    SQLiteStore(tmp_path / "keys.db").close()
    return tmp_path / "keys.db"


def test_several_connections_of_one_process_log_no_warning(
    path: Path, log: pytest.LogCaptureFixture
) -> None:
    with Once(f"sqlite:///{path}") as once, Once(f"sqlite:///{path}") as other:
        shop = sqlite3.connect(path)
        with shop:
            once.in_transaction(shop).run("op", "k", lambda attempt: 1)
        shop.close()
        assert other.run("op", "k", lambda attempt: 2).value == 1
    assert log.records == []


def test_a_second_process_logs_one_warning_with_advice(
    path: Path, log: pytest.LogCaptureFixture
) -> None:
    with another_process(path):
        SQLiteStore(path).close()
        SQLiteStore(path).close()
    (record,) = log.records
    message = record.getMessage()
    assert message.startswith(f"oncekey: {path} is open in more than one process. SQLite ")
    assert "https://sqlite.org/wal.html#walresetbug" in message
    assert "?acknowledge=wal-reset-bug" in message


def test_a_process_that_starts_later_is_detected(
    path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "OTHER_PROCESSES_CHECK_SECONDS", 0.0)
    store = SQLiteStore(path)
    look = Look(b"x" * 16)
    store.apply([look])
    assert log.records == []
    with another_process(path):
        store.apply([look])
        store.apply([look])
    assert len(log.records) == 1
    store.close()


def test_acknowledging_the_bug_ends_the_warning(path: Path, log: pytest.LogCaptureFixture) -> None:
    with another_process(path):
        Once(f"sqlite:///{path}?acknowledge=wal-reset-bug").close()
    assert log.records == []
    with pytest.raises(ConfigurationError, match="there is 'wal-reset-bug'"):
        Once(f"sqlite:///{path}?acknowledge=all")


@pytest.mark.parametrize("why", ["no fcntl", "no list of descriptors"])
def test_the_warning_is_logged_if_other_processes_cannot_be_detected(
    path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "no fcntl":
        monkeypatch.setattr(other_processes, "_fcntl", None)
    else:
        monkeypatch.setattr(other_processes, "_DESCRIPTORS", str(path / "none"))
    SQLiteStore(path).close()
    assert len(log.records) == 1
