"""Elections in a file, between processes: decided under the lock; a failed one takes no lock."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from oncekey.stores.sqlite import SQLiteStore
from oncekey.stores.sqlite.program import COMMIT, Program, Statement, Statements

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND
ONE, TWO = b"1" * 16, b"2" * 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.db"
    SQLiteStore(path).close()
    return path


@pytest.fixture
def connections(path: Path) -> Iterator[list[sqlite3.Connection]]:
    both = [sqlite3.connect(path, isolation_level=None, timeout=0) for _ in range(2)]
    yield both
    for connection in both:
        connection.close()


class Asking:
    """One election, statement by statement."""

    def __init__(self, connection: sqlite3.Connection, token: bytes, now: int = NOW) -> None:
        self.connection = connection
        self.steps: Statements[bool] = Program(lambda: now).elect(token, 10 * SECOND)
        self.statement: Statement = next(self.steps)
        self.done: list[str] = []

    def step(self) -> None:
        rows: Sequence[Sequence[object]]
        rows = self.connection.execute(self.statement.sql, self.statement.params).fetchall()
        self.done.append(self.statement.sql.split()[0])
        self.statement = self.steps.send(rows)

    def end(self) -> bool:
        while True:
            try:
                self.step()
            except StopIteration as stop:
                elected: bool = stop.value
                return elected


def test_an_election_is_decided_by_what_is_read_under_the_lock(
    connections: list[sqlite3.Connection],
) -> None:
    slow, fast = Asking(connections[0], ONE), Asking(connections[1], TWO)
    slow.step()  # it has read that nobody is elected
    assert fast.end() is True
    assert slow.end() is False
    assert slow.done == ["SELECT", "BEGIN", "SELECT", "ROLLBACK"]


def test_a_failed_election_takes_no_lock(connections: list[sqlite3.Connection]) -> None:
    assert Asking(connections[0], ONE).end()
    late = Asking(connections[1], TWO)
    assert late.end() is False
    assert late.done == ["SELECT"]


def test_an_uncommitted_election_does_not_hold(connections: list[sqlite3.Connection]) -> None:
    asking = Asking(connections[0], ONE)
    while asking.statement is not COMMIT:
        asking.step()
    connections[0].execute("ROLLBACK")  # it died here
    assert Asking(connections[1], TWO).end()


def test_an_election_survives_the_process(path: Path) -> None:
    first = SQLiteStore(path, clock=lambda: NOW)
    assert first.elect(ONE, 10 * SECOND)
    first.close()
    now = NOW + 9 * SECOND
    second = SQLiteStore(path, clock=lambda: now)
    assert not second.elect(TWO, SECOND)
    now += SECOND
    assert second.elect(TWO, SECOND)
    second.close()
