"""Listing unfinished records on SQLite: by an index of such records, without a lock.

Which records are listed is tested by the contract suite (oncekey.testing.contract.unfinished_list).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oncekey.core.commands import Claim, Claimed, Done, Finish, Release, SaveStep
from oncekey.core.record import State
from oncekey.stores.sqlite import AsyncSQLiteStore, SQLiteStore, schema
from oncekey.stores.sqlite.connection import run
from oncekey.stores.sqlite.program import QUERIES

LEASE, KEEP = 30_000_000, 3_600_000_000
ALL = 10_000
INDEX = "oncekey_records_unfinished"


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


def claimed(store: SQLiteStore, n: int) -> tuple[bytes, bytes, int]:
    (reply,) = store.apply([claim(n)])
    assert isinstance(reply, Claimed)
    return claim(n).id, claim(n).owner, reply.fence


def found(store: SQLiteStore) -> list[int]:
    return [int.from_bytes(record.id) for record in store.unfinished(0, ALL).records]


def steps_of_the_plan(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute(
            f"EXPLAIN QUERY PLAN {QUERIES['select_unfinished']}", (0, 1, 0, 1, 9)
        ).fetchall()
    return [row[3] for row in rows if "oncekey_records" in row[3]]


@pytest.mark.parametrize("analyzed", [False, True])
def test_s10_listing_reads_only_the_index_of_unfinished_records(
    store: SQLiteStore, path: Path, analyzed: bool
) -> None:
    """For the records and for the last fence of the page, even if a user has run ANALYZE."""
    store.apply([claim(n) for n in range(50)])
    if analyzed:
        with closing(sqlite3.connect(path)) as file:
            file.execute("ANALYZE")
    plan = steps_of_the_plan(path)
    assert len(plan) == 2
    assert all(f"SEARCH oncekey_records USING INDEX {INDEX}" in step for step in plan), plan


def test_ended_records_leave_the_index_of_unfinished_records(
    store: SQLiteStore, path: Path
) -> None:
    """So the index stays small. sqlite_stat1 has its number of rows."""
    for n in range(5):
        store.apply([Finish(*claimed(store, n), State.SUCCEEDED, b"")])
    store.apply([Release(*claimed(store, 5))])
    half = claimed(store, 6)
    store.apply([SaveStep(*half, "pay", False, b""), Release(*half)])
    store.apply([Finish(*claimed(store, 7), State.UNKNOWN, b"")])
    claimed(store, 8)
    with closing(sqlite3.connect(path)) as file:
        file.execute("ANALYZE")
        ((result,),) = file.execute("SELECT stat FROM sqlite_stat1 WHERE idx = ?", (INDEX,))
    assert result.split()[0] == "3"
    assert found(store) == [6, 7, 8]


def test_listing_does_not_wait_for_a_writer(path: Path) -> None:
    """Another process has an open transaction with a claim."""
    with closing(SQLiteStore(path, busy_timeout="1ms")) as store:
        claimed(store, 1)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("UPDATE oncekey_records SET state = 2")
            assert found(store) == [1]
            other.execute("COMMIT")
        assert found(store) == []


def test_a_claim_committed_by_a_caller_mid_run_is_listed(store: SQLiteStore, path: Path) -> None:
    """Not before the commit: until then it may be rolled back, and nobody must see it."""
    with closing(sqlite3.connect(path)) as own:
        (reply,) = store.join(own).apply([claim(1)._replace(in_transaction=True)])
        assert isinstance(reply, Claimed)
        assert found(store) == []
        own.commit()
        assert found(store) == [1]


def test_records_of_an_older_release_are_listed(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        run(file, schema.prepare(lambda: 7, schema.MIGRATIONS[:1]))
        file.execute(
            "INSERT INTO oncekey_records VALUES (NULL, ?, 1, x'', x'', 5, 1, 0, 5, 5, 0, ?, 0, "
            "'', '', '', ?, 5, x'', '', x'')",
            (claim(3).id, 2**62, 2**62),
        )
    with closing(SQLiteStore(path)) as store:
        assert found(store) == [3]


def test_s9_tasks_list_and_claim_concurrently(path: Path) -> None:
    async def play() -> None:
        store = AsyncSQLiteStore(path)

        async def work(n: int) -> None:
            (reply,) = await store.apply([claim(n)])
            assert isinstance(reply, Claimed)
            listed = await store.unfinished(reply.fence - 1, ALL)
            assert claim(n).id in [record.id for record in listed.records]
            end = Finish(claim(n).id, claim(n).owner, reply.fence, State.SUCCEEDED, b"")
            assert await store.apply([end]) == [Done()]

        await asyncio.gather(*(work(n) for n in range(30)))
        assert (await store.unfinished(0, ALL)).records == ()
        await store.close()

    asyncio.run(play())


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_finish_uses_the_index_of_ids_and_not_of_fences(
    store: SQLiteStore, path: Path, analyzed: bool
) -> None:
    """All claims of a batch have one fence: by that index a finish would read the whole batch."""
    store.apply([claim(n) for n in range(50)])
    with closing(sqlite3.connect(path)) as file:
        if analyzed:
            file.execute("ANALYZE")
        marks = (2, 1, b"", b"i", b"o", 5)
        rows = file.execute(f"EXPLAIN QUERY PLAN {QUERIES['finish_held']}", marks).fetchall()
    assert [row[3] for row in rows] == [
        "SEARCH oncekey_records USING INDEX sqlite_autoindex_oncekey_records_1 (id=?)"
    ]
