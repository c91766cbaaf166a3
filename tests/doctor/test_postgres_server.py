"""Doctor names each fault of a real PostgreSQL server, of its roles, standbys and poolers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from tests.doctor.findings import by_check, problems
from tests.support.postgres_adapters import fresh_server, with_standby
from tests.support.postgres_stores import pooler, server
from tests.support.servers import PgBouncer, Postgres, require

from oncekey.core.errors import StoreUnavailable
from oncekey.core.guarantees import Level
from oncekey.stores.inspection import Finding, Severity
from oncekey.stores.postgres import (
    checkup,
    checkup_session,
    inspect,
    migrate,
    open_blocking,
    server_checks,
)
from oncekey.stores.postgres.durability import Server
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.server_checks import ServerState, clock_skew
from oncekey.stores.replica_sightings import Replica, pack_replica

DATABASE = "doctor_server"
ROLE = "doctor_app"
SEEN_AT = 1_767_323_040_000_000  # 2026-01-02 03:04


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """The URL of a database and a role that only these tests use."""
    server().drop_database(DATABASE)
    server().execute(f"DROP ROLE IF EXISTS {ROLE}")
    url = server().create_database(DATABASE)
    migrate(url)
    server().execute(f"CREATE ROLE {ROLE} LOGIN SUPERUSER")
    yield url
    server().drop_database(DATABASE)
    server().execute(f"DROP ROLE {ROLE}")


@pytest.fixture
def url(database: str) -> Iterator[str]:
    """The same as the role's, with nothing set for either."""
    yield database.replace("postgres@", f"{ROLE}@")
    for sql in (
        f"ALTER DATABASE {DATABASE} RESET ALL",
        f"ALTER ROLE {ROLE} RESET ALL",
        f"ALTER ROLE {ROLE} IN DATABASE {DATABASE} RESET ALL",
        f"ALTER ROLE {ROLE} CONNECTION LIMIT -1",
        f"ALTER DATABASE {DATABASE} CONNECTION LIMIT -1",
    ):
        server().execute(sql)


def found_by(url: str) -> dict[str, Finding]:
    return by_check(checkup(url).findings)


def test_doctor_is_silent_on_a_good_server(url: str) -> None:
    found = checkup(url)
    assert problems(found.findings) == {}
    assert by_check(found.findings)["postgres.pooler"].what == "no pooler, pooler=false"


# --- settings of roles and databases --------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (f"ALTER DATABASE {DATABASE} SET ", f"off for every role in {DATABASE}"),
        (f"ALTER ROLE {ROLE} SET ", f"off for {ROLE} in every database"),
        (f"ALTER ROLE {ROLE} IN DATABASE {DATABASE} SET ", f"off for {ROLE} in {DATABASE}"),
    ],
)
def test_synchronous_commit_off_for_a_role_or_a_database_is_named(
    url: str, sql: str, said: str
) -> None:
    """Transactions of the application commit with it, and in_transaction joins them."""
    server().execute(f"{sql} synchronous_commit = off")
    found = checkup(url)
    assert problems(found.findings) == {"postgres.synchronous-commit": "warning"}
    what = by_check(found.findings)["postgres.synchronous-commit"].what
    assert said in what
    assert "off for new sessions of this role" in what
    assert problems(checkup(f"{url}?transactional=false").findings) == {}, "nobody joins any"


def test_another_role_with_synchronous_commit_off_is_named(url: str, database: str) -> None:
    server().execute(f"ALTER ROLE {ROLE} SET synchronous_commit = off")
    what = found_by(database)["postgres.synchronous-commit"].what
    assert what == f"synchronous_commit is off for {ROLE} in every database"


def test_a_role_that_cannot_use_the_schema_does_not_matter(database: str) -> None:
    server().execute("DROP ROLE IF EXISTS doctor_reports")
    server().execute("CREATE ROLE doctor_reports LOGIN")
    server().execute("ALTER ROLE doctor_reports SET synchronous_commit = off")
    try:
        assert problems(checkup(database).findings) == {}
        with psycopg.connect(database, autocommit=True) as owner:
            owner.execute("GRANT USAGE ON SCHEMA oncekey TO doctor_reports")
            what = found_by(database)["postgres.synchronous-commit"].what
            owner.execute("DROP OWNED BY doctor_reports")
        assert what == "synchronous_commit is off for doctor_reports in every database"
    finally:
        server().execute("DROP ROLE doctor_reports")


def test_synchronous_commit_off_in_the_url_breaks_the_guarantee(url: str) -> None:
    found = checkup(f"{url}?synchronous_commit=off")
    assert problems(found.findings) == {"postgres.synchronous-commit": "broken"}


def test_a_read_only_default_is_named(url: str) -> None:
    server().execute(f"ALTER DATABASE {DATABASE} SET default_transaction_read_only = on")
    found = checkup(url)
    assert problems(found.findings) == {"postgres.primary": "broken"}
    assert (
        "default_transaction_read_only is on" in by_check(found.findings)["postgres.primary"].what
    )


@pytest.mark.parametrize(
    ("limited", "whose"), [(f"ROLE {ROLE}", "role"), (f"DATABASE {DATABASE}", "database")]
)
def test_a_limit_below_pool_size_is_named(url: str, limited: str, whose: str) -> None:
    server().execute(f"ALTER {limited} CONNECTION LIMIT 3")
    found = checkup(url)
    assert problems(found.findings) == {"postgres.connections": "warning"}
    what = by_check(found.findings)["postgres.connections"].what
    assert what.startswith(f"the {whose} may have 3 connections")
    assert problems(checkup(f"{url}?pool_size=3").findings) == {}


def test_a_transaction_that_stays_open_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(url) as idle:
        idle.execute("SELECT 1")
        assert problems(checkup(url).findings) == {}, "it has not been open for an hour"
        monkeypatch.setattr(server_checks, "LONG_TRANSACTION_SECONDS", 0)
        found = found_by(url)["postgres.long-transactions"]
        assert found.severity is Severity.WARNING
        assert f"session {idle.info.backend_pid} of {ROLE} (idle in transaction)" in found.what


# --- the clock ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ahead", "said"), [(90, "behind"), (-90, "ahead of")])
def test_a_clock_that_differs_from_the_server_is_named(
    url: str, monkeypatch: pytest.MonkeyPatch, ahead: int, said: str
) -> None:
    ours = SimpleNamespace(time_ns=lambda: time.time_ns() + ahead * 1_000_000_000)
    monkeypatch.setattr(server_checks, "time", ours)
    found = checkup(url)
    assert problems(found.findings) == {"postgres.clock": "warning"}
    assert f"s {said} this host's" in by_check(found.findings)["postgres.clock"].what


def test_a_slow_reply_is_no_clock_skew() -> None:
    """The server may have read its clock at any moment while we waited."""
    assert clock_skew(5_000_000, before=0, after=9_000_000).severity is Severity.OK
    assert clock_skew(10_500_000, before=0, after=9_000_000).severity is Severity.WARNING
    assert clock_skew(-1_500_000, before=0, after=9_000_000).severity is Severity.WARNING


# --- poolers --------------------------------------------------------------------------------------


def test_a_pooler_in_transaction_mode_needs_the_option(database: str) -> None:
    through = pooler().url(DATABASE)
    found = checkup(through)
    assert problems(found.findings) == {"postgres.pooler": "broken"}
    assert "the URL does not say pooler=true" in by_check(found.findings)["postgres.pooler"].what
    assert problems(checkup(f"{through}?pooler=true").findings) == {}


def test_a_pooler_in_session_mode_is_no_fault(database: str) -> None:
    with require(lambda: PgBouncer(server(), settings={"pool_mode": "session"})) as bouncer:
        found = checkup(bouncer.url(DATABASE))
        assert problems(found.findings) == {}
        assert "session mode" in by_check(found.findings)["postgres.pooler"].what


def test_a_pooler_in_statement_mode_cannot_work(database: str) -> None:
    with require(lambda: PgBouncer(server(), settings={"pool_mode": "statement"})) as bouncer:
        found = checkup(f"{bouncer.url(DATABASE)}?pooler=true")
    assert problems(found.findings) == {"postgres.pooler": "broken"}
    assert len(found.findings) == 1, "every other check needs a transaction"


def test_a_checkup_that_gets_no_answer_ends(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pooler accepts the connection and has no server for it."""
    monkeypatch.setattr(checkup_session, "CHECKUP_SECONDS", 0.5)
    settings: dict[str, Any] = {"pool_mode": "session", "default_pool_size": 1}
    with (
        require(lambda: PgBouncer(server(), settings=settings)) as bouncer,
        psycopg.connect(bouncer.url(DATABASE)) as only,
    ):
        only.execute("SELECT 1")
        with pytest.raises(StoreUnavailable, match="did not answer within"):
            checkup(bouncer.url(DATABASE))


# --- servers that are misconfigured ---------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    with ExitStack() as stack:
        primary = fresh_server()
        stack.callback(primary.close)
        migrate(primary.url())
        standby = with_standby(primary)
        stack.callback(standby.close)
        yield primary, standby


def test_an_asynchronous_standby_breaks_the_guarantee(pair: tuple[Postgres, Postgres]) -> None:
    primary, _ = pair
    assert problems(checkup(primary.url()).findings) == {"postgres.standbys": "broken"}
    assert problems(checkup(f"{primary.url()}?failover=never").findings) == {}


def test_a_standby_that_was_seen_earlier_is_named_with_what_to_do(url: str) -> None:
    with closing(open_blocking(url)) as store:
        with psycopg.connect(url) as connection:  # what a store writes when it sees one
            connection.execute(
                "INSERT INTO oncekey.meta VALUES ('replica db2', %s, %s, %s)",
                (pack_replica(Replica("db2", "10.0.0.7")), SEEN_AT, SEEN_AT),
            )
        found = checkup(url).findings
        assert problems(found) == {"postgres.standbys": "broken"}
        said = by_check(found)["postgres.standbys"]
        assert "was attached, 'db2' (10.0.0.7), last seen 2026-01-02 03:04 UTC" in said.what
        assert "oncekey guarantee --forget db2" in said.what
        assert "--forget NAME" in said.mend
        assert inspect(url).guarantee.level is Level.BEST_EFFORT
        assert problems(checkup(f"{url}?failover=never").findings) == {}
        store.forget_replica("db2", by="ana", why="gone")
    assert problems(checkup(url).findings) == {}


def test_where_sightings_cannot_be_read_that_is_said(url: str) -> None:
    said = by_check(checkup(f"{url}?schema=elsewhere").findings)["postgres.standbys"]
    assert (said.severity, "was not checked" in said.what) == (Severity.INFO, True)


def test_a_standby_takes_no_claims(pair: tuple[Postgres, Postgres]) -> None:
    _, standby = pair
    found = checkup(standby.url())
    assert problems(found.findings) == {"postgres.primary": "broken"}
    assert by_check(found.findings)["postgres.primary"].what == "the server is a read-only standby"


def test_a_synchronous_standby_is_no_fault(pair: tuple[Postgres, Postgres]) -> None:
    primary, _ = pair
    primary.configure({"synchronous_standby_names": "standby"})
    try:
        primary.wait_for_standby(sync=True)
        assert problems(checkup(primary.url()).findings) == {}
        local = checkup(f"{primary.url()}?synchronous_commit=local")
        assert problems(local.findings) == {"postgres.standbys": "broken"}
    finally:
        primary.configure({"synchronous_standby_names": ""})


def test_each_unsafe_setting_of_the_server_is_named() -> None:
    unsafe: dict[str, Any] = {
        "fsync": False,
        "full_page_writes": False,
        "synchronous_commit": "off",
        "autovacuum": False,
        "synchronous_standby_names": "nobody",
    }
    with ExitStack() as stack:
        primary = fresh_server()
        stack.callback(primary.close)
        migrate(primary.url())
        primary.configure(unsafe)
        found = checkup(primary.url())
    assert problems(found.findings) == {
        "postgres.fsync": "broken",
        "postgres.full-page-writes": "broken",
        "postgres.synchronous-commit": "warning",
        "postgres.standbys": "broken",
        "postgres.autovacuum": "warning",
    }
    said = by_check(found.findings)
    assert said["postgres.fsync"].what == "fsync is off: the guarantee is best effort"
    assert "'nobody' and no standby is attached" in said["postgres.standbys"].what
    assert all(said[name].mend for name in problems(found.findings))


# --- what no test server can be brought to --------------------------------------------------------

GOOD = ServerState(
    settings={
        "server_version_num": "180006",
        "autovacuum": "on",
        "track_counts": "on",
        "autovacuum_freeze_max_age": "200000000",
        "max_connections": "100",
        "superuser_reserved_connections": "3",
        "reserved_connections": "0",
    },
    defaults={},
    role_settings=(),
    is_standby=False,
    server=Server(version=180_006, fsync=True, full_page_writes=True, standby=False),
    unread="",
    xid_age=1_000,
    clients=5,
    role_limit=-1,
    database_limit=-1,
)


def test_an_old_server_is_named() -> None:
    assert server_checks.version(GOOD).what == "PostgreSQL 18.6"
    old = GOOD._replace(settings={**GOOD.settings, "server_version_num": "120022"})
    assert server_checks.version(old).severity is Severity.BROKEN


def test_a_server_without_free_connections_is_named() -> None:
    assert server_checks.connections(GOOD, Options()).severity is Severity.OK
    full = server_checks.connections(GOOD._replace(clients=95), Options())
    assert full.severity is Severity.WARNING
    assert full.what.startswith("2 of 100 connections are free")


@pytest.mark.parametrize(
    ("age", "severity"),
    [(200_000_001, None), (400_000_001, Severity.WARNING), (1_500_000_001, Severity.BROKEN)],
)
def test_a_database_that_nobody_freezes_is_named(age: int, severity: Severity | None) -> None:
    found = server_checks.vacuum_settings(GOOD._replace(xid_age=age))
    assert (found.severity if found else None) is severity
