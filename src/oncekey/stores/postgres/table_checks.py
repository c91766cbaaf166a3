"""The checks of `oncekey doctor` on oncekey's own tables in a PostgreSQL database.

This module owns what can be wrong with them: missing migrations, changes by hand, dead rows,
garbage. `checkup` at its end puts all checks of a PostgreSQL store together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from oncekey.core.errors import ConfigurationError
from oncekey.stores.inspection import (
    OVERDUE_MAX,
    RUNS_MAX,
    SWEEP_LATE_US,
    Check,
    Checkup,
    Finding,
    ObservedRun,
    Severity,
    overdue_text,
)
from oncekey.stores.postgres import server_checks
from oncekey.stores.postgres.checkup_session import CheckupSession, Pooler, checkup_session
from oncekey.stores.postgres.expected_schema import ExpectedSchema, expected_schema
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.queries import Layout, make_migrations
from oncekey.stores.postgres.schema_inspection import parse_address, read_url
from oncekey.stores.sql_files import plan

# Autovacuum is late if more than this many rows of a table, and this part of them, are dead.
DEAD_ROWS_MIN: Final = 10_000
DEAD_ROWS_PART: Final = 0.4

SCHEMA: Final = Check(
    "postgres.schema",
    "whether the tables exist and have every migration of this release",
    "without them nothing can be claimed; in another schema or database every key is fresh",
    "check schema= and the database in the URL; run `oncekey migrate` with a role that may create "
    "tables",
)
RETENTION: Final = Check(
    "postgres.retention",
    "whether the tables were made for the URL's retention, ring_slots and ring_period",
    "an application with other settings than the tables is refused",
    "use the settings that the tables were made for everywhere, or another schema",
)
TABLES: Final = Check(
    "postgres.tables",
    "whether the tables are as oncekey made them: columns, persistence, triggers, rules, row "
    "security",
    "an unlogged table is empty after a crash; a trigger, a rule or a row policy can change or "
    "hide records, and a hidden key is a fresh key",
    "ALTER TABLE ... SET LOGGED, DROP TRIGGER, DROP RULE, DISABLE ROW LEVEL SECURITY; compare with "
    "`oncekey migrate --sql`",
)
FUNCTIONS: Final = Check(
    "postgres.functions",
    "whether oncekey's functions have the bodies of this release",
    "they decide who owns a key; a changed one can let two callers run one operation",
    "create them again as `oncekey migrate --sql` prints them",
)
INDEXES: Final = Check(
    "postgres.indexes",
    "whether every index exists and is valid",
    "the primary key keeps a key unique; without the others each sweep and each listing reads the "
    "whole table",
    "create the index as `oncekey migrate --sql` prints it; an invalid one is dropped first",
)
FILLFACTOR: Final = Check(
    "postgres.fillfactor",
    "how much room the pages of the records leave for updates",
    "without room a finish is no heap-only update: it writes to every index too",
    "ALTER TABLE ... SET (fillfactor = ...) as `oncekey migrate --sql` prints it; it holds for new "
    "pages",
)
SWEEPER: Final = Check(
    "postgres.sweeper",
    "whether records that nothing needs any more are removed",
    "the table grows without bound, and with it the time of backups and the size of indexes",
    "give the application sweep_every=, or run `oncekey sweep` from cron",
)
CHECKS: Final = (
    *server_checks.SERVER_CHECKS, SCHEMA, RETENTION, TABLES, FUNCTIONS, INDEXES, FILLFACTOR, SWEEPER
)  # fmt: skip


class _Table(NamedTuple):
    """A table as sql/checkup.sql reads it."""

    name: str
    kind: str
    persistence: str
    has_row_security: bool
    options: str
    triggers: str
    rules: str
    live: int
    dead: int
    is_readable: bool

    @property
    def is_ours(self) -> bool:
        """False for tables that somebody else has put into our schema."""
        name = self.name
        return name in ("history", "meta", "migrations") or name.partition("_")[0] == "records"

    @property
    def is_vacuumed(self) -> bool:
        """False if autovacuum is switched off for this table, or for its large bodies."""
        options = dict(option.partition("=")[::2] for option in self.options.split())
        words = [options.get(f"{where}autovacuum_enabled", "on") for where in ("", "toast.")]
        return not any(map(_means_off, words))


def _means_off(word: str) -> bool:
    """PostgreSQL keeps the word that was given, and takes every beginning of a word that is clear:
    off, no, n, false, f, 0."""
    given = word.lower()
    return given == "0" or any(full.startswith(given) for full in ("off", "no", "false"))


def table_findings(session: CheckupSession, layout: Layout) -> Iterator[Finding]:
    """The checks of the tables, for a schema that is up to date."""
    applied = session.rows_or_reason("migrations")
    if not isinstance(applied, str) and applied[-1][0] > make_migrations(layout)[-1].version:
        yield TABLES.info("not compared: the tables are of a newer release", "use that release")
        return
    expected = expected_schema(layout)
    tables = [table for row in session.rows("tables") if (table := _Table(*row)).is_ours]
    yield _tables(session, tables, expected)
    yield _functions(session, expected)
    yield _indexes(session, expected)
    yield _fillfactor(tables, expected)


def _schema(session: CheckupSession, layout: Layout) -> Finding:
    names = {row[0] for row in session.rows("tables")}
    if "migrations" not in names:
        return SCHEMA.broken(f"{session.name} has no tables of oncekey in schema {layout.schema}")
    rows = session.rows_or_reason("migrations")
    if isinstance(rows, str):
        return SCHEMA.info(f"not checked: {rows}", "grant this role SELECT on the tables")
    applied = [row[0] for row in rows]
    try:
        missing = plan(applied, make_migrations(layout), rows[-1][2] if rows else 0)
    except ConfigurationError as error:
        return SCHEMA.broken(str(error))
    if missing:
        lacks = ", ".join(migration.name for migration in missing)
        return SCHEMA.broken(f"schema {layout.schema} lacks {lacks}")
    return SCHEMA.ok(f"schema {layout.schema} at version {rows[-1][0]}, {session.name}")


def _retention(session: CheckupSession, layout: Layout) -> Finding:
    rows = session.rows_or_reason("retention")
    if isinstance(rows, str):
        return RETENTION.info(f"not checked: {rows}", "grant this role SELECT on the tables")
    found = rows[0][0] if rows else "nothing"
    if found != layout.description:
        return RETENTION.broken(f"the tables are {found!r}, the URL says {layout.description!r}")
    return RETENTION.ok(found)


def _tables(session: CheckupSession, tables: list[_Table], expected: ExpectedSchema) -> Finding:
    columns: dict[str, set[str]] = {}
    for table, column in session.rows("columns"):
        columns.setdefault(table, set()).add(column)
    broken = []
    for table, names in expected.columns.items():
        missing = names - columns.get(table, set())
        if missing:
            broken.append(f"{table} lacks {', '.join(sorted(missing))}")
    broken += [f"{table.name} is unlogged" for table in tables if table.persistence == "u"]
    broken += [f"{table.name} has row security" for table in tables if table.has_row_security]
    strange = []
    for kind in ("triggers", "rules"):
        named = [(getattr(table, kind), table.name) for table in tables]
        found = [f"{names} on {table}" for names, table in named if names]
        if found:
            strange.append(f"{kind} that oncekey did not make: {'; '.join(found)}")
    if broken:
        return TABLES.broken("; ".join([*broken, *strange]))
    if strange:
        return TABLES.warning("; ".join(strange))
    return TABLES.ok(f"{len(tables)} tables as expected")


def _functions(session: CheckupSession, expected: ExpectedSchema) -> Finding:
    found: dict[str, set[str]] = {}
    for name, body in session.rows("functions"):
        found.setdefault(name, set()).add(body)
    missing = sorted(expected.functions.keys() - found.keys())
    changed = sorted(
        name
        for name, body in expected.functions.items()
        if name in found and body not in found[name]
    )
    if missing or changed:
        parts = (("missing", missing), ("changed", changed))
        return FUNCTIONS.broken("; ".join(f"{kind}: {', '.join(n)}" for kind, n in parts if n))
    return FUNCTIONS.ok(f"{len(expected.functions)} functions as expected")


def _indexes(session: CheckupSession, expected: ExpectedSchema) -> Finding:
    found = {name: (valid, unique) for name, valid, unique in session.rows("indexes")}
    missing = sorted(expected.indexes - found.keys())
    invalid = sorted(name for name, (is_valid, _) in found.items() if not is_valid)
    weak = [name for name in expected.unique if name in found and not found[name][1]]
    parts = (("missing", missing), ("invalid", invalid), ("not unique", weak))
    what = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in parts if names)
    if weak or expected.unique & {*missing, *invalid}:
        return INDEXES.broken(what)
    return INDEXES.warning(what) if what else INDEXES.ok(f"{len(found)} indexes, all valid")


def _fillfactor(tables: list[_Table], expected: ExpectedSchema) -> Finding:
    wanted = f"fillfactor={expected.fillfactor}"
    # A partitioned table has no pages, and what is kept for long is written once.
    filled = [
        table
        for table in tables
        if table.name.startswith("records") and table.kind == "r" and table.name != "records_kept"
    ]
    other = [table.name for table in filled if wanted not in table.options.split()]
    if other:
        return FILLFACTOR.warning(f"not {wanted}: {', '.join(other)}")
    return FILLFACTOR.ok(wanted)


def _vacuum(session: CheckupSession) -> Finding:
    check = server_checks.AUTOVACUUM
    found = server_checks.vacuum_settings(server_checks.read_server(session))
    if found is not None:
        return found
    tables = [table for row in session.rows("tables") if (table := _Table(*row)).is_ours]
    off = [table.name for table in tables if not table.is_vacuumed]
    if off:
        return check.warning(f"switched off for {', '.join(off)}")
    late = [
        f"{table.name} has {table.dead:,} dead rows beside {table.live:,}"
        for table in tables
        if table.dead > DEAD_ROWS_MIN and table.dead > DEAD_ROWS_PART * (table.live + table.dead)
    ]
    return check.warning("; ".join(late)) if late else check.ok("on, and not late")


def _sweeper(session: CheckupSession, layout: Layout) -> Finding:
    now = time.time_ns() // 1_000
    late = now - SWEEP_LATE_US - layout.sweep_lag
    rows = session.rows_or_reason("overdue", (late, OVERDUE_MAX + 1))
    if isinstance(rows, str):
        return SWEEPER.info(f"not checked: {rows}")
    count, oldest = rows[0]
    if count:
        return SWEEPER.warning(overdue_text(count, now - oldest))
    return SWEEPER.ok("nothing is overdue by more than a day")


def _runs(session: CheckupSession) -> list[ObservedRun]:
    rows = session.rows_or_reason("runs", (RUNS_MAX,))
    return [] if isinstance(rows, str) else [ObservedRun(*row) for row in rows]


# --- everything -----------------------------------------------------------------------------------


def checkup(url: str) -> Checkup:
    """Check a server and a schema. StoreUnavailable if the server does not answer."""
    address, options = read_url(url)
    parse_address(address)
    with checkup_session(address, options) as session:
        mode = session.pooler()
        findings = [server_checks.pooler(mode, options)]
        if mode is Pooler.STATEMENT:
            return Checkup(findings, [])  # every other check needs a transaction
        findings += server_checks.server_findings(session, options)
        findings.append(_vacuum(session))
        return _of_tables(session, options, findings)


def _of_tables(session: CheckupSession, options: Options, findings: list[Finding]) -> Checkup:
    layout = options.layout
    for check in (_schema, _retention):
        finding = check(session, layout)
        findings.append(finding)
        if finding.severity is Severity.BROKEN:
            return Checkup(findings, [])  # the other checks would find this fault again
    findings += table_findings(session, layout)
    found = {name for name, is_valid, _ in session.rows("indexes") if is_valid}
    if not {"records_sweep", "history_sweep"} <= found:
        findings.append(
            SWEEPER.info("not checked: without its index it would read the whole table")
        )
    else:
        findings.append(_sweeper(session, layout))
    return Checkup(findings, _runs(session) if "records_fence" in found else [])


def is_same_store(url: str, store: object) -> bool | None:
    """Whether a store object has its records in the schema of this URL. None if only the host
    differs: the same server can be reached in several ways."""
    address, options = read_url(url)
    theirs: Any = getattr(store, "_options", None)
    if not isinstance(theirs, Options):
        return False
    if theirs.schema != options.schema:
        return False
    other = getattr(getattr(getattr(store, "_database", None), "pool", None), "_address", None)
    if not isinstance(other, str):
        return None  # it was given a pool
    ours, yours = parse_address(address), parse_address(other)
    if ours.get("dbname") != yours.get("dbname"):
        return False
    where = ("host", "hostaddr", "port")
    return True if all(ours.get(name) == yours.get(name) for name in where) else None
