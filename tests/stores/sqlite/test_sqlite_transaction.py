"""Records on the caller's own sqlite3 connection commit with the caller's rows or not at all."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncekey import Once
from oncekey.core.commands import Claim, Claimed, Done, Finish, Look, Release, Seen
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.record import State
from oncekey.stores.sqlite import SQLiteStore

CLAIM = Claim(b"i" * 16, b"o", b"\x01f", 30_000_000, 60_000_000, 0, True, "Łódź", "op", "k")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def once(path: Path) -> Iterator[Once]:
    with Once(f"sqlite:///{path}?busy_timeout=0s") as once:
        yield once


@pytest.fixture
def mine(path: Path, once: Once) -> Iterator[sqlite3.Connection]:
    """The caller's connection, with a table of its own."""
    connection = sqlite3.connect(path, timeout=0)
    connection.execute("CREATE TABLE orders (item TEXT)")
    connection.commit()
    yield connection
    connection.close()


def orders(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT item FROM orders").fetchall()
    connection.close()
    return [item for (item,) in rows]


def insert(connection: sqlite3.Connection, item: str) -> str:
    connection.execute("INSERT INTO orders VALUES (?)", (item,))
    return item


def test_rows_and_outcome_commit_together(path: Path, once: Once, mine: sqlite3.Connection) -> None:
    with mine:
        tx = once.in_transaction(mine)
        assert tx.run("order", "k", lambda attempt: insert(mine, "tea")).value == "tea"
        assert mine.in_transaction
        assert once.get("order", "k") is None  # nobody else sees it yet
    assert orders(path) == ["tea"]
    with mine:
        again = once.in_transaction(mine).run("order", "k", lambda attempt: insert(mine, "milk"))
    assert (again.value, again.replayed) == ("tea", True)
    assert once.run("order", "k", lambda attempt: "milk").value == "tea"
    assert orders(path) == ["tea"]


def test_a_rollback_leaves_nothing(path: Path, once: Once, mine: sqlite3.Connection) -> None:
    once.in_transaction(mine).run("order", "k", lambda attempt: insert(mine, "tea"))
    mine.rollback()
    assert orders(path) == []
    assert once.get("order", "k") is None
    with mine:
        once.in_transaction(mine).run("order", "k", lambda attempt: insert(mine, "tea"))
    assert orders(path) == ["tea"]


def test_a_body_that_raises_rolls_back_only_its_own_rows(
    path: Path, once: Once, mine: sqlite3.Connection
) -> None:
    def body(attempt: object) -> None:
        insert(mine, "tea")
        raise ValueError("no tea")

    mine.execute("BEGIN IMMEDIATE")
    insert(mine, "before")
    tx = once.in_transaction(mine)
    with pytest.raises(ValueError, match="no tea"):
        tx.run("order", "k", body)
    insert(mine, "after")
    assert tx.run("order", "k", lambda attempt: insert(mine, "milk")).value == "milk"
    mine.commit()
    assert orders(path) == ["before", "after", "milk"]


def test_runs_may_be_nested(path: Path, once: Once, mine: sqlite3.Connection) -> None:
    tx = once.in_transaction(mine)

    def outer(attempt: object) -> str:
        insert(mine, "outer")
        return tx.run("inner", "k", lambda attempt: insert(mine, "inner")).value

    with mine:
        assert tx.run("outer", "k", outer).value == "inner"
    assert orders(path) == ["outer", "inner"]


@pytest.mark.parametrize("isolation", [None, "", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_every_isolation_level_of_sqlite3_works(path: Path, once: Once, isolation: Any) -> None:
    connection = sqlite3.connect(path, isolation_level=isolation)
    connection.execute("CREATE TABLE orders (item TEXT)")
    with connection:
        tx = once.in_transaction(connection)
        tx.run("order", "k", lambda attempt: insert(connection, "tea"))
    assert orders(path) == ["tea"]
    connection.close()


@pytest.mark.skipif(not hasattr(sqlite3.Connection, "autocommit"), reason="Python 3.12 has it")
def test_python_3_12_autocommit_modes_work(path: Path, once: Once) -> None:
    options: dict[str, Any] = {"autocommit": True}
    auto = sqlite3.connect(path, **options)
    auto.execute("CREATE TABLE orders (item TEXT)")
    with pytest.raises(ConfigurationError, match="BEGIN IMMEDIATE"):
        once.in_transaction(auto).run("order", "k", lambda attempt: insert(auto, "tea"))
    auto.execute("BEGIN IMMEDIATE")
    once.in_transaction(auto).run("order", "k", lambda attempt: insert(auto, "tea"))
    auto.execute("COMMIT")
    auto.close()
    manual = sqlite3.connect(path, **{**options, "autocommit": False})
    once.in_transaction(manual).run("order", "k2", lambda attempt: insert(manual, "milk"))
    manual.commit()
    manual.close()
    assert orders(path) == ["tea", "milk"]


def test_the_callers_factories_and_converters_are_not_used(
    path: Path, once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(sqlite3.Connection):
        def cursor(self, *arguments: Any, **options: Any) -> Any:
            raise AssertionError("a cursor of the caller's kind")

    for name in ("BLOB", "INTEGER", "TEXT"):
        monkeypatch.setitem(sqlite3.converters, name, lambda raw: "converted")
    odd = sqlite3.connect(
        path, factory=Odd, detect_types=sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES
    )
    odd.row_factory = lambda cursor, row: {"row": row}
    store = SQLiteStore(path)
    for text_factory in (bytes, lambda raw: raw.decode("latin-1"), str):
        odd.text_factory = text_factory
        transaction = store.join(odd)
        claimed = transaction.apply([CLAIM])[0]
        assert isinstance(claimed, Claimed)
        seen = transaction.apply([Look(CLAIM.id)])[0]
        assert isinstance(seen, Seen)
        assert seen.record is not None
        assert (seen.record.scope, seen.record.owner) == ("Łódź", b"o")
        finish = Finish(CLAIM.id, CLAIM.owner, claimed.fence, State.SUCCEEDED, b"x")
        assert transaction.apply([finish]) == [Done()]
        odd.rollback()
    store.close()
    odd.close()


# --- refusals -------------------------------------------------------------------------------------


def test_another_writers_lock_is_reported(path: Path, once: Once, mine: sqlite3.Connection) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="busy_timeout") as raised:
        once.in_transaction(mine).run("order", "k", lambda attempt: 1)
    assert not raised.value.ambiguous
    assert not mine.in_transaction
    other.execute("ROLLBACK")
    other.close()


def test_the_error_of_a_stale_deferred_transaction_says_how_to_begin(
    path: Path, once: Once, mine: sqlite3.Connection
) -> None:
    mine.execute("BEGIN")
    mine.execute("SELECT * FROM orders").fetchall()
    once.run("other", "k", lambda attempt: 1)  # writes after our snapshot was taken
    with pytest.raises(StoreUnavailable, match="begin it with BEGIN IMMEDIATE") as raised:
        once.in_transaction(mine).run("order", "k", lambda attempt: 1)
    assert not raised.value.ambiguous
    assert mine.in_transaction  # the caller's to end
    mine.rollback()


def test_a_deferred_transaction_that_has_not_read_works(
    path: Path, once: Once, mine: sqlite3.Connection
) -> None:
    mine.execute("BEGIN")
    once.run("other", "k", lambda attempt: 1)
    assert once.in_transaction(mine).run("order", "k", lambda attempt: insert(mine, "tea")).value
    mine.commit()
    assert orders(path) == ["tea"]


def test_a_deferred_transaction_waits_for_the_write_lock(
    path: Path, once: Once, mine: sqlite3.Connection
) -> None:
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    mine.execute("PRAGMA busy_timeout = 60000")
    mine.execute("BEGIN")
    ends = threading.Timer(0.05, lambda: other.execute("ROLLBACK"))
    ends.start()  # whether it ends before or while we wait: both must be right
    assert once.in_transaction(mine).run("order", "k", lambda attempt: 1).value == 1
    mine.rollback()
    ends.join()
    other.close()


def test_a_body_that_ends_the_transaction_is_refused(
    path: Path, once: Once, mine: sqlite3.Connection
) -> None:
    with pytest.raises(ConfigurationError, match="the body committed it"):
        once.in_transaction(mine).run("order", "k", lambda attempt: mine.commit())

    def rolls_back(attempt: object) -> None:
        mine.rollback()
        raise ValueError("the body's own error")

    with pytest.raises(ValueError, match="the body's own error"):
        once.in_transaction(mine).run("order", "k2", rolls_back)

    def begins_anew(attempt: object) -> None:
        mine.rollback()
        mine.execute("BEGIN")

    with pytest.raises(ConfigurationError, match="the body committed it"):
        once.in_transaction(mine).run("order", "k3", begins_anew)
    mine.rollback()


def test_commands_after_the_transaction_ended(path: Path, once: Once) -> None:
    store = SQLiteStore(path)
    connection = sqlite3.connect(path)
    transaction = store.join(connection)
    claimed = transaction.apply([CLAIM])[0]
    assert isinstance(claimed, Claimed)
    connection.rollback()
    assert transaction.apply([Release(CLAIM.id, CLAIM.owner, claimed.fence)]) == [Done()]
    assert isinstance(transaction.apply([Look(CLAIM.id)])[0], Seen)
    with pytest.raises(ConfigurationError, match="is over"):
        transaction.apply([Finish(CLAIM.id, CLAIM.owner, claimed.fence, State.SUCCEEDED, b"")])
    assert not connection.in_transaction
    connection.close()
    store.close()


def test_another_file_is_refused(path: Path, tmp_path: Path, once: Once) -> None:
    SQLiteStore(tmp_path / "second.db").close()
    for address in (str(tmp_path / "second.db"), ":memory:", str(tmp_path / "third.db")):
        connection = sqlite3.connect(address)
        connection.execute("ATTACH ? AS aside", (str(path),))
        with pytest.raises(ConfigurationError, match="must be the same file"):
            once.in_transaction(connection).run("order", "k", lambda attempt: 1)
        connection.close()


def test_the_same_file_by_another_name_is_accepted(
    path: Path, tmp_path: Path, once: Once, mine: sqlite3.Connection
) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    connection = sqlite3.connect(f"file:{tmp_path}/link/app.db?mode=rw", uri=True)
    with connection:
        tx = once.in_transaction(connection)
        tx.run("order", "k", lambda attempt: insert(connection, "tea"))
    connection.close()
    assert orders(path) == ["tea"]


def test_a_database_without_our_tables_is_refused(path: Path, once: Once) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DROP TABLE oncekey_meta")
    with pytest.raises(ConfigurationError, match="open Once on the same file first"):
        once.in_transaction(connection).run("order", "k", lambda attempt: 1)
    connection.close()


def test_unsupported_connections_are_refused(once: Once) -> None:
    for thing in (object(), None, "sqlite3"):
        with pytest.raises(ConfigurationError, match="needs a sqlite3 connection"):
            once.in_transaction(thing)
