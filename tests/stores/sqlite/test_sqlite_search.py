"""Searches and measures on SQLite: nothing reads the whole table, and open keys have an index.

Which records are found is tested by the contract suite (oncekey.testing.contract.searched_records).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oncekey.core.commands import Claim, Claimed, Done, Finish
from oncekey.core.record import State
from oncekey.core.search import LOOKED_AT_FIRST, NEWEST, Query
from oncekey.stores.sqlite import SQLiteStore, sqlite_search
from oncekey.stores.sqlite.sqlite_search import measure, search

LEASE, KEEP = 30_000_000, 3_600_000_000
OPEN = Query(states=frozenset((State.PENDING, State.UNKNOWN)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(path)
    yield store
    store.close()


def claim(n: int) -> Claim:
    return Claim(n.to_bytes(16, "big"), b"o" * 16, b"\x01f", LEASE, KEEP, 0, retry_safe=False)


def finished(store: SQLiteStore, count: int) -> None:
    claims = [claim(n) for n in range(1, count + 1)]
    replies = store.apply(claims)
    ends = [
        Finish(claim.id, claim.owner, reply.fence, State.SUCCEEDED, b"")
        for claim, reply in zip(claims, replies, strict=True)
        if isinstance(reply, Claimed)
    ]
    assert store.apply(ends) == [Done()] * count


def test_s11_an_old_open_key_is_found_without_looking_at_finished_ones(store: SQLiteStore) -> None:
    store.apply([claim(0)])
    finished(store, 2 * LOOKED_AT_FIRST)
    page = store.search(OPEN, 10, NEWEST)
    assert [record.id for record in page.records] == [claim(0).id]
    assert (page.looked_at, page.next) == (1, None)
    everything = store.search(OPEN._replace(states=frozenset()), 1_000, NEWEST)
    assert everything.looked_at == 2 * LOOKED_AT_FIRST + 1


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize(
    ("query", "index"),
    [(OPEN, "oncekey_records_unfinished"), (Query(), "oncekey_records_fence")],
    ids=["open", "all"],
)
def test_s11_a_search_walks_through_an_index(
    store: SQLiteStore, path: Path, query: Query, index: str, analyzed: bool
) -> None:
    finished(store, 50)
    statement = next(search(0, query, 10, NEWEST))
    with closing(sqlite3.connect(path)) as file:
        if analyzed:
            file.execute("ANALYZE")
        rows = file.execute(f"EXPLAIN QUERY PLAN {statement.sql}", statement.params).fetchall()
    walked = [row[3] for row in rows if "oncekey_records USING" in row[3]]
    assert any(f"INDEX {index} " in step for step in walked), walked


def test_s12_many_records_are_estimated_whatever_was_swept(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An undecided record from long ago must not count for all that have come and gone since."""
    monkeypatch.setattr(sqlite_search, "MEASURE_MAX", 100)
    finished(store, 400)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE oncekey_records SET n = n + 1000000 WHERE n > 1")
        (stored,) = file.execute("SELECT count(*) FROM oncekey_records").fetchone()
    assert stored == 400
    assert 300 <= store.measure().rows <= 500


def test_s12_measures_scan_nothing(store: SQLiteStore, path: Path) -> None:
    finished(store, 50)
    assert store.measure().rows == 50
    statement = next(measure(0))
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute(f"EXPLAIN QUERY PLAN {statement.sql}", statement.params).fetchall()
    steps = [row[3] for row in rows if "oncekey_records" in row[3]]
    assert len(steps) >= 5
    # "SEARCH oncekey_records" without an index reads one end of the table.
    assert [step for step in steps if not step.startswith("SEARCH")] == []


def test_the_measures_say_how_large_the_file_is(store: SQLiteStore, path: Path) -> None:
    """Counted by the file system, when all of it is in the file and not in the log beside it."""
    finished(store, 2_000)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert store.measure().bytes == path.stat().st_size > 2_000 * 64
