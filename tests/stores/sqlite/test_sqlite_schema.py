"""Migrations, schema checks, and the files SQL is read from."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from oncekey.core.commands import Claim, Claimed, Finish, Replay
from oncekey.core.errors import ConfigurationError
from oncekey.core.record import State, Step
from oncekey.stores.record_format import pack_steps, unpack_steps
from oncekey.stores.sql_files import Migration, parse_queries, plan
from oncekey.stores.sqlite import SQLiteStore, schema
from oncekey.stores.sqlite.connection import run

LAST = schema.MIGRATIONS[-1].version
ONE, TWO, THREE = (Migration(n, f"m{n}", "") for n in (1, 2, 3))
CLAIM = Claim(b"i" * 16, b"o", b"\x01f", 30_000_000, 60_000_000, 0, retry_safe=False)


@pytest.mark.parametrize(
    ("applied", "known", "missing"),
    [
        ([], [ONE], [ONE]),
        ([], [ONE, TWO], [ONE, TWO]),
        ([1], [ONE, TWO, THREE], [TWO, THREE]),
        ([1, 2], [ONE, TWO], []),
    ],
)
def test_plan_returns_the_missing_migrations(
    applied: list[int], known: Sequence[Migration], missing: Sequence[Migration]
) -> None:
    assert plan(applied, known) == missing


def test_plan_refuses_a_newer_schema() -> None:
    with pytest.raises(ConfigurationError, match=r"schema 3, this release knows up to 2"):
        plan([1, 2, 3], [ONE, TWO])


def test_plan_refuses_a_gap() -> None:
    with pytest.raises(ConfigurationError, match="changed by hand"):
        plan([2], [ONE, TWO])


def test_an_upgrade_keeps_the_rows(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "keys.db")
    reply = store.apply([CLAIM])[0]
    assert isinstance(reply, Claimed)
    store.apply([Finish(CLAIM.id, CLAIM.owner, reply.fence, State.SUCCEEDED, b"kept")])
    store.close()

    following = Migration(
        LAST + 1,
        "following",
        "ALTER TABLE oncekey_records ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';\n"
        "CREATE TRIGGER oncekey_watch AFTER DELETE ON oncekey_meta BEGIN\n"
        "  SELECT 1;\n  SELECT 2;\nEND;\n",
    )
    connection = sqlite3.connect(tmp_path / "keys.db", isolation_level=None)
    for _ in range(2):  # the second time there is nothing to do
        run(connection, schema.prepare(lambda: 7, (*schema.MIGRATIONS, following)))
    rows = connection.execute("SELECT version, name, applied_at = 7 FROM oncekey_migrations")
    known = [(step.version, step.name, 0) for step in schema.MIGRATIONS]
    assert rows.fetchall() == [*known, (LAST + 1, "following", 1)]
    assert connection.execute("SELECT body, colour FROM oncekey_records").fetchall() == [
        (b"kept", "red")
    ]
    connection.execute("DELETE FROM oncekey_migrations WHERE version > ?", (LAST,))
    connection.close()

    store = SQLiteStore(tmp_path / "keys.db")
    again = store.apply([CLAIM._replace(owner=b"x")])[0]
    assert isinstance(again, Replay)
    assert again.body == b"kept"
    store.close()


def test_a_failing_migration_leaves_nothing(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "keys.db", isolation_level=None)
    bad = Migration(
        LAST + 1, "bad", "CREATE TABLE oncekey_x (a);\nINSERT INTO nowhere VALUES (1);\n"
    )
    with pytest.raises(Exception, match="no such table: nowhere"):
        run(connection, schema.prepare(lambda: 7, (*schema.MIGRATIONS, bad)))
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    connection.close()


def execute(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for sql in statements:
        connection.execute(sql)
    connection.close()


def test_a_database_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    SQLiteStore(path).close()
    later = "INSERT INTO oncekey_migrations SELECT max(version) + 1, 'later', 0"
    execute(path, f"{later} FROM oncekey_migrations")
    said = rf"keys\.db: the database has oncekey's schema {LAST + 1}"
    with pytest.raises(ConfigurationError, match=said):
        SQLiteStore(path)


def test_tables_of_others_under_our_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    execute(path, "CREATE TABLE oncekey_records (id, colour)")
    with pytest.raises(ConfigurationError, match="oncekey_records that oncekey did not make"):
        SQLiteStore(path)
    execute(path, "CREATE TABLE oncekey_migrations (what)")
    with pytest.raises(ConfigurationError, match="oncekey_migrations lacks applied_at"):
        SQLiteStore(path)


def test_a_table_that_lost_a_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    SQLiteStore(path).close()
    execute(path, "DROP VIEW oncekey_operations")  # it would not let the column go
    execute(path, "ALTER TABLE oncekey_records RENAME COLUMN fence TO hedge")
    with pytest.raises(ConfigurationError, match="oncekey_records lacks fence"):
        SQLiteStore(path)


def test_a_utf16_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    execute(path, "PRAGMA encoding = 'UTF-16'", "CREATE TABLE mine (x)")
    with pytest.raises(ConfigurationError, match="UTF-16"):
        SQLiteStore(path)


def test_the_users_own_tables_and_version_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    execute(path, "PRAGMA user_version = 41", "CREATE TABLE orders (x)")
    SQLiteStore(path).close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (41,)
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)
    connection.close()


OPENER = """
import sys
from oncekey.stores.sqlite import SQLiteStore
sys.stdout.write("ready\\n"); sys.stdout.flush()
sys.stdin.readline()
store = SQLiteStore(sys.argv[1])
store.bind(b"same")
store.close()
"""


def test_many_processes_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    for round in range(3):
        path = tmp_path / f"keys{round}.db"
        openers = [
            subprocess.Popen(
                [sys.executable, "-c", OPENER, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(4)
        ]
        for opener in openers:
            assert opener.stdout is not None
            assert opener.stdout.readline() == "ready\n"
        for opener in openers:  # all are at the line: go
            assert opener.stdin is not None
            opener.stdin.write("go\n")
            opener.stdin.flush()
        for opener in openers:
            _, errors = opener.communicate(timeout=60)
            assert opener.returncode == 0, errors
        connection = sqlite3.connect(path)
        versions = connection.execute("SELECT version FROM oncekey_migrations").fetchall()
        assert versions == [(step.version,) for step in schema.MIGRATIONS]
        connection.close()


# --- files ----------------------------------------------------------------------------------------


def test_parse_queries_splits_by_name() -> None:
    text = "-- about all\n\n-- name: one\nSELECT 1;\n\n-- about two\n-- name: two\nSELECT\n 2;\n"
    assert parse_queries(text) == {"one": "SELECT 1", "two": "SELECT\n 2"}
    with pytest.raises(ValueError, match="two queries"):
        parse_queries("-- name: a\nx;\n-- name: a\ny;\n")


def test_a_script_is_split_at_its_statements() -> None:
    script = "-- why; because\nCREATE TABLE a (x); \nCREATE TABLE b (\n  y\n);\n-- the end\n"
    assert [s.split("(")[0].split()[-1] for s in schema.statements(script)] == ["a", "b"]
    with pytest.raises(ValueError, match="inside a statement"):
        schema.statements("CREATE TABLE a (x)")


def test_packed_steps_unpack_to_the_same_steps() -> None:
    steps = (
        Step("reserve", True, b"", 1),
        Step("płatność", False, b"\x00\xff" * 70_000, 1_700_000_000_000_000),
        Step("n" * 100, True, b"x", 0),
    )
    assert unpack_steps(pack_steps(steps)) == steps
    assert pack_steps(()) == b""
    assert unpack_steps(b"") == ()


def test_steps_of_another_release_or_cut_short_are_refused() -> None:
    data = pack_steps((Step("a", True, b"body", 1),))
    with pytest.raises(ValueError, match="format 9"):
        unpack_steps(b"\x09" + data[1:])
    for end in range(2, len(data)):
        with pytest.raises(ValueError, match="cut short"):
            unpack_steps(data[:end])
