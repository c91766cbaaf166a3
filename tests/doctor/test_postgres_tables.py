"""Doctor names each fault of oncekey's tables in a real database, and is silent on good ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.doctor.findings import by_check, problems
from tests.support.postgres_stores import server

from oncekey import Once
from oncekey.stores.inspection import OVERDUE_MAX, RUNS_MAX, SWEEP_LATE_US, Severity
from oncekey.stores.postgres import CHECKS, PostgresStore, checkup, is_same_store
from oncekey.stores.postgres.options import NO_SCANS, split_url
from oncekey.stores.postgres.queries import Layout, make_migrations, substitute
from oncekey.stores.sql_files import load_queries

DATABASE = "doctor tables"
QUOTED = '"Doc tor"'
LATEST = make_migrations(Layout("any"))[-1]
NEXT = LATEST.version + 1
SHAPES = {"plain": "", "ring": "&retention=ring&ring_slots=12&ring_period=1d"}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """The URL of a database that only these tests use."""
    server().drop_database(DATABASE)
    yield server().create_database(DATABASE)
    server().drop_database(DATABASE)


@pytest.fixture
def execute(database: str) -> Iterator[Any]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield lambda sql: connection.execute(sql.replace("OURS", QUOTED).encode()).statusmessage


def fresh(database: str, execute: Any, shape: str = "plain") -> str:
    execute("DROP SCHEMA IF EXISTS OURS CASCADE")
    url = f"{database}?schema=Doc%20tor{SHAPES[shape]}"
    address, options = split_url(url)
    store = PostgresStore(address, **{n: getattr(options, n) for n in options.__slots__})
    store.prepare()
    store.close()
    return url


@pytest.fixture
def url(database: str, execute: Any) -> str:
    return fresh(database, execute)


# --- a good one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_doctor_is_silent_on_tables_that_were_just_made(
    database: str, execute: Any, shape: str
) -> None:
    """So the expected schema is what the migrations make, in both layouts."""
    url = fresh(database, execute, shape)
    with Once(url) as once:
        once.run("charge", "order-1", lambda attempt: "paid")
    found = checkup(url)
    assert problems(found.findings) == {}
    assert {finding.severity for finding in found.findings} == {Severity.OK}
    assert by_check(found.findings).keys() == {check.name for check in CHECKS}
    (run,) = found.runs
    assert run.operation == "charge"
    assert run.left is not None
    assert 0 < run.took < 20_000_000 < run.left <= 30_000_000
    assert run.keep == 86_400_000_000


def test_a_run_in_a_callers_transaction_has_no_lease(url: str, database: str) -> None:
    """It may take longer than the policy's lease, and nobody takes it over."""
    with Once(url) as once, psycopg.connect(database) as connection:
        once.in_transaction(connection).run("place", "order-1", lambda attempt: "placed")
        connection.commit()
    (run,) = checkup(url).runs
    assert (run.operation, run.left) == ("place", None)


def test_a_record_that_an_operator_decided_is_no_run(url: str, execute: Any) -> None:
    """Its owner died; how long it took to decide says nothing about the lease."""
    with Once(url) as once:
        once.run("charge", "order-1", lambda attempt: "paid")
    execute("UPDATE OURS.records SET lease_until = finished_at")  # as the resolution does
    assert checkup(url).runs == []


def test_doctor_makes_nothing_in_a_database_without_tables(database: str, execute: Any) -> None:
    execute("DROP SCHEMA IF EXISTS OURS CASCADE")
    found = by_check(checkup(f"{database}?schema=Doc%20tor").findings)
    assert found["postgres.schema"].severity is Severity.BROKEN
    assert "no tables of oncekey in schema Doc tor" in found["postgres.schema"].what
    assert "oncekey migrate" in found["postgres.schema"].mend
    assert found["postgres.fsync"].severity is Severity.OK, "the server is checked all the same"
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT to_regnamespace('\"Doc tor\"')").fetchone() == (None,)


# --- faults ---------------------------------------------------------------------------------------

FAULTS = {
    "unlogged": (
        "ALTER TABLE OURS.records SET UNLOGGED",
        {"postgres.tables": "broken"},
        "records is unlogged",
    ),
    "column": (
        "ALTER TABLE OURS.records DROP COLUMN note CASCADE",
        {"postgres.tables": "broken"},
        "records lacks note",
    ),
    "row security": (
        "ALTER TABLE OURS.history ENABLE ROW LEVEL SECURITY",
        {"postgres.tables": "broken"},
        "history has row security",
    ),
    "trigger": (
        "CREATE TRIGGER mine BEFORE UPDATE ON OURS.records FOR EACH ROW "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        {"postgres.tables": "warning"},
        "mine on records",
    ),
    "trigger beside row security": (
        "CREATE TRIGGER mine BEFORE UPDATE ON OURS.records FOR EACH ROW "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger(); "
        "ALTER TABLE OURS.history ENABLE ROW LEVEL SECURITY",
        {"postgres.tables": "broken"},
        "history has row security; triggers that oncekey did not make: mine on records",
    ),
    "rule": (
        "CREATE RULE mine AS ON INSERT TO OURS.records DO INSTEAD NOTHING",
        {"postgres.tables": "warning"},
        "rules that oncekey did not make: mine on records",
    ),
    "no index": (
        "DROP INDEX OURS.records_sweep",
        {"postgres.indexes": "warning"},
        "missing: records_sweep",
    ),
    "invalid index": (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'OURS.records_fence'::regclass",
        {"postgres.indexes": "warning"},
        "invalid: records_fence",
    ),
    "no primary key": (
        "ALTER TABLE OURS.records DROP CONSTRAINT records_pkey",
        {"postgres.indexes": "broken"},
        "missing: records_pkey",
    ),
    "changed function": (
        "CREATE OR REPLACE FUNCTION OURS.expiry_1(t OURS.records) RETURNS bigint "
        "LANGUAGE sql IMMUTABLE AS 'SELECT 0::bigint'",
        {"postgres.functions": "broken"},
        "changed: expiry_1",
    ),
    "no function": (
        "DROP FUNCTION OURS.rotate_1",
        {"postgres.functions": "broken"},
        "missing: rotate_1",
    ),
    "fillfactor": (
        "ALTER TABLE OURS.records RESET (fillfactor)",
        {"postgres.fillfactor": "warning"},
        "not fillfactor=25: records",
    ),
    "autovacuum off": (
        "ALTER TABLE OURS.records SET (autovacuum_enabled = false)",
        {"postgres.autovacuum": "warning"},
        "switched off for records",
    ),
    "autovacuum of large bodies off": (
        "ALTER TABLE OURS.records SET (toast.autovacuum_enabled = off)",
        {"postgres.autovacuum": "warning"},
        "switched off for records",
    ),
    **{
        f"autovacuum {word}": (
            f"ALTER TABLE OURS.records SET (autovacuum_enabled = {word})",
            {"postgres.autovacuum": "warning"},
            "switched off for records",
        )
        for word in ("0", "no", "OFF", "f")
    },
    "missing migration": (
        f"DELETE FROM OURS.migrations WHERE version = {LATEST.version}",  # noqa: S608
        {"postgres.schema": "broken"},
        f"lacks {LATEST.name}",
    ),
    "newer release": (
        f"INSERT INTO OURS.migrations VALUES ({NEXT}, 'later', {NEXT})",  # noqa: S608
        {"postgres.schema": "broken"},
        "install the release that wrote it",
    ),
    "retention": (
        "UPDATE OURS.meta SET value = 'ring 12 5' WHERE name = 'retention'",
        {"postgres.retention": "broken"},
        "the tables are 'ring 12 5', the URL says 'plain'",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_doctor_names_what_is_wrong_with_the_tables(url: str, execute: Any, name: str) -> None:
    sql, expected, said = FAULTS[name]
    execute(sql)
    found = checkup(url)
    assert problems(found.findings) == expected
    (check,) = expected
    assert said in by_check(found.findings)[check].what
    assert by_check(found.findings)[check].mend


def test_tables_of_a_newer_compatible_release_are_not_compared(url: str, execute: Any) -> None:
    """Hosts are upgraded one after the other; those that still have the old release are well."""
    values = f"({NEXT}, 'later', {LATEST.version})"
    execute(f"INSERT INTO OURS.migrations VALUES {values}")  # noqa: S608
    found = checkup(url)
    assert problems(found.findings) == {}
    assert by_check(found.findings)["postgres.tables"].severity is Severity.INFO


def test_dead_rows_that_vacuum_leaves_are_named(url: str, execute: Any) -> None:
    """A snapshot that is still open keeps vacuum from removing them, as it does in production."""
    insert_records(execute, 12_000, sweep_at="9000000000000000000")
    with psycopg.connect(url.partition("?")[0]) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 1")
        execute("DELETE FROM OURS.records")
        execute("SELECT pg_stat_force_next_flush()")  # what this session has counted so far
        found = by_check(checkup(url).findings)["postgres.autovacuum"]
    assert found.severity is Severity.WARNING
    assert "records has 12,000 dead rows beside 0" in found.what


def test_records_that_no_sweeper_removes_are_named(url: str, execute: Any) -> None:
    now = time.time_ns() // 1_000
    insert_records(execute, 5, sweep_at=str(now - SWEEP_LATE_US + 60_000_000))
    assert problems(checkup(url).findings) == {}, "a day late is not late yet"
    insert_records(execute, 3, sweep_at=str(now - 3 * SWEEP_LATE_US), start=100)
    found = checkup(url)
    assert problems(found.findings) == {"postgres.sweeper": "warning"}
    assert "3 records could have been removed 3.0 days ago" in (
        by_check(found.findings)["postgres.sweeper"].what
    )


def test_without_its_index_the_sweeper_is_not_checked(url: str, execute: Any) -> None:
    """The query would read the whole table."""
    execute("DROP INDEX OURS.records_sweep")
    found = by_check(checkup(url).findings)["postgres.sweeper"]
    assert found.severity is Severity.INFO
    assert "not checked" in found.what


def insert_records(execute: Any, count: int, *, sweep_at: str, start: int = 1) -> None:
    execute(
        "INSERT INTO OURS.records SELECT lpad(to_hex(n), 32, '0')::uuid, gen_random_uuid(), n, "  # noqa: S608
        f"1, 2, 3, 4, 5, 6, {sweep_at}, 1, 0, 0, 0, false, '', '', 'op', '', '', '', '' "
        f"FROM generate_series({start}, {start + count - 1}) n"
    )


# --- rights and cost ------------------------------------------------------------------------------


def test_a_role_without_rights_is_told_what_was_not_checked(url: str, execute: Any) -> None:
    execute("DROP ROLE IF EXISTS doctor_stranger")
    execute("CREATE ROLE doctor_stranger LOGIN")
    try:
        found = checkup(url.replace("postgres@", "doctor_stranger@"))
        unchecked = {f.check for f in found.findings if f.severity is Severity.INFO}
        subjects = ("schema", "retention", "sweeper", "standbys")
        assert unchecked == {f"postgres.{subject}" for subject in subjects}
        assert "permission denied" in by_check(found.findings)["postgres.schema"].what
        assert by_check(found.findings)["postgres.functions"].severity is Severity.OK
        assert problems(found.findings) == {}
        assert found.runs == []
    finally:
        execute("DROP ROLE doctor_stranger")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["overdue", "runs"])
def test_records_are_read_by_an_index(database: str, execute: Any, shape: str, name: str) -> None:
    url = fresh(database, execute, shape)
    sql = load_queries("oncekey.stores.postgres", "sql/checkup.sql")[name]
    for number, value in ((2, OVERDUE_MAX), (1, RUNS_MAX)):
        sql = sql.replace(f"${number}::bigint", str(value))
    layout: Layout = split_url(url)[1].layout
    with psycopg.connect(database) as connection:
        for setting in NO_SCANS:
            connection.execute(f"SET {setting} = off".encode())
        rows = connection.execute(f"EXPLAIN {substitute(sql, layout)}".encode()).fetchall()
    text = "\n".join(row[0] for row in rows)
    assert "Index" in text
    assert "Seq Scan" not in text


# --- the app's store ------------------------------------------------------------------------------


def test_a_store_is_known_by_its_database_and_schema(database: str) -> None:
    url = f"{database}?schema=one"
    store = PostgresStore(database, schema="one")
    assert is_same_store(url, store) is True
    assert is_same_store(f"{database}?schema=two", store) is False
    assert is_same_store(f"{server().url('postgres')}?schema=one", store) is False
    elsewhere = url.replace("127.0.0.1", "localhost")
    assert is_same_store(elsewhere, store) is None, "it may be the same server"
    assert is_same_store(url, object()) is False
