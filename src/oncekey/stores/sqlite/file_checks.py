"""The checks of `oncekey doctor` on an SQLite file: read-only, and without creating the file.

This module owns what makes a file unsafe or slow: its library, file system, settings, rights, room,
tables and garbage. How the findings are shown is not known here (see oncekey.stores.inspection).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from contextlib import closing
from typing import Any, Final
from urllib.parse import quote

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
from oncekey.stores.sql_files import load_queries, plan
from oncekey.stores.sqlite import durability, errors, mounts
from oncekey.stores.sqlite.program import QUERIES as STORE_QUERIES
from oncekey.stores.sqlite.schema import MIGRATIONS, statements
from oncekey.stores.sqlite.sqlite_store import SYNCHRONOUS_DEFAULT, AsyncSQLiteStore

QUERIES: Final = load_queries("oncekey.stores.sqlite", "sql/checkup.sql")

# A larger file is not read as a whole to find out whether it is damaged.
QUICK_CHECK_MAX_BYTES: Final = 256 * 1024 * 1024
# How long the doctor's queries of one file may take.
CHECKUP_SECONDS: Final = 10.0
DISK_LOW_BYTES: Final = 256 * 1024 * 1024
DISK_FULL_BYTES: Final = 8 * 1024 * 1024
_PROGRESS_STEPS: Final = 10_000

VERSION: Final = Check(
    "sqlite.version",
    "whether the SQLite library has the WAL-reset bug",
    "in rare cases two processes that write and checkpoint at once damage the file",
    "use SQLite 3.51.3 or newer (3.50.7 and 3.44.6 are mended too); where one process uses the "
    "file, or the build is patched, add ?acknowledge=wal-reset-bug to the URL",
)
FILE_SYSTEM: Final = Check(
    "sqlite.file-system",
    "whether the file is on a local disk",
    "SQLite's locks do not hold on a network file system, so two hosts can claim one key and "
    "nothing reports it; a file in memory is lost with the host",
    "put the file on a local disk, or use PostgreSQL for several hosts",
)
FILE: Final = Check(
    "sqlite.file",
    "whether the file exists and holds oncekey's tables",
    "an application that is given another file finds every key fresh and runs everything again",
    "check the path in the URL; `oncekey migrate` makes a new store",
)
SYNCHRONOUS: Final = Check(
    "sqlite.synchronous",
    "the URL's option synchronous",
    "below `full` a loss of power takes back claims that were acknowledged, and their operations "
    "run a second time",
    "remove synchronous= from the URL, or set it to full",
)
JOURNAL: Final = Check(
    "sqlite.journal-mode",
    "whether the file uses write-ahead logging",
    "oncekey turns it on when it opens a file; somebody has turned it off since, and readers and "
    "the writer now block each other",
    "find what sets PRAGMA journal_mode on this file, and restart the application, which sets WAL",
)
PERMISSIONS: Final = Check(
    "sqlite.permissions",
    "which other users of the host may read or write the file",
    "stored answers can hold confidential data, and whoever writes the file can free a claimed key",
    "chmod 600 (or 640 with a group of its own) the file, its -wal and its -shm",
)
DISK: Final = Check(
    "sqlite.disk",
    "how much room the disk has",
    "on a full disk no claim and no outcome can be stored: operations are refused, and those that "
    "run end unrecorded",
    "make room, or move the file to a larger disk",
)
SCHEMA: Final = Check(
    "sqlite.schema",
    "whether the tables, indexes and triggers are those of this release",
    "a missing index makes every sweep and listing read the whole table; a changed table or a "
    "trigger can change what is stored",
    "run `oncekey migrate`; undo what was changed by hand, by the statements in this release's "
    "sql/migrations",
)
INTEGRITY: Final = Check(
    "sqlite.integrity",
    "whether the file is damaged (PRAGMA quick_check)",
    "a damaged index can hide a claimed key",
    "stop every process that uses the file and restore a backup",
)
SWEEPER: Final = Check(
    "sqlite.sweeper",
    "whether records that nothing needs any more are removed",
    "the file grows without bound, and with it the time of every backup and check",
    "give the application sweep_every=, or run `oncekey sweep` from cron",
)
CHECKS: Final = (
    FILE, VERSION, FILE_SYSTEM, SYNCHRONOUS, JOURNAL, PERMISSIONS, DISK, SCHEMA, INTEGRITY, SWEEPER
)  # fmt: skip


def checkup(path: str, options: dict[str, Any]) -> Checkup:
    """Check a file. ConfigurationError for unknown options, or if it is no database at all."""
    path = AsyncSQLiteStore(path, **options).path  # checks the options, opens no file yet
    findings = [_version(options), _synchronous(options), _file_system(path)]
    if not os.path.isfile(path):
        return Checkup([FILE.broken(f"{path} is no file"), *findings], [])
    findings += [_permissions(path), _disk(path)]
    runs: list[ObservedRun] = []
    try:
        with closing(_open_read_only(path)) as file:
            if not file.execute(STORE_QUERIES["columns"]).fetchall():
                missing = FILE.broken(f"{path} is a database without oncekey's tables")
                return Checkup([missing, *findings], [])
            findings.insert(0, FILE.ok(path))
            schema = _schema(file)
            findings += [_journal(file), schema]
            if schema.severity is not Severity.BROKEN:
                findings.append(_sweeper(file))
                runs = _runs(file)
            findings.append(_integrity(file, path))  # last, for it may use up the time
    except sqlite3.Error as error:
        if errors.primary_code(error) != sqlite3.SQLITE_CORRUPT:
            raise errors.translate_open_error(error, path) from error
        findings.append(INTEGRITY.broken(f"{path}: {error}"))
    return Checkup(findings, runs)


def is_same_store(path: str, store: object) -> bool | None:
    """Whether a store object uses this file."""
    theirs = getattr(store, "path", None)
    if not isinstance(theirs, str):
        return False
    return os.path.realpath(theirs) == os.path.realpath(path)


# --- outside of the file ------------------------------------------------------------------------


def _version(options: dict[str, Any]) -> Finding:
    what = f"SQLite {sqlite3.sqlite_version}"
    if not durability.has_wal_reset_bug():
        return VERSION.ok(what)
    if options.get("acknowledge") == durability.WAL_RESET_BUG:
        return VERSION.ok(f"{what} has the WAL-reset bug, and the URL acknowledges it")
    return VERSION.warning(f"{what} has the WAL-reset bug")


def _synchronous(options: dict[str, Any]) -> Finding:
    mode = options.get("synchronous", SYNCHRONOUS_DEFAULT).lower()
    if mode in ("full", "extra"):
        return SYNCHRONOUS.ok(f"synchronous={mode}")
    return SYNCHRONOUS.broken(f"synchronous={mode}: the guarantee is best effort")


def _file_system(path: str) -> Finding:
    found = mounts.read_file_system(path)
    if found is None:
        return FILE_SYSTEM.info("not checked: this system has no list of mounts to read")
    what = f"{found.kind}, mounted at {found.mounted_at}"
    if found.kind in mounts.NETWORK:
        return FILE_SYSTEM.broken(f"a network file system: {what}")
    if found.kind in mounts.IN_MEMORY:
        return FILE_SYSTEM.warning(f"a file system in memory: {what}")
    if found.kind.startswith("fuse"):
        return FILE_SYSTEM.info(f"not known whether it is local: {what}")
    return FILE_SYSTEM.ok(what)


def _permissions(path: str) -> Finding:
    if os.name != "posix":
        return PERMISSIONS.info("not checked: this system has no POSIX rights")
    if _is_hidden(path):
        return PERMISSIONS.ok("other users cannot enter its directory")
    modes = {
        name: stat.S_IMODE(os.stat(name).st_mode)
        for name in (path, f"{path}-wal", f"{path}-shm")
        if os.path.exists(name)
    }
    for bit, finding, verb in (
        (stat.S_IWOTH, PERMISSIONS.broken, "write"),
        (stat.S_IROTH, PERMISSIONS.warning, "read"),
    ):
        open_to_all = [f"{name} ({mode:o})" for name, mode in modes.items() if mode & bit]
        if open_to_all:
            return finding(f"every user of the host may {verb} {', '.join(open_to_all)}")
    return PERMISSIONS.ok(f"mode {modes[path]:o}")


def _is_hidden(path: str) -> bool:
    """True if a directory above the file keeps all other users out."""
    above = os.path.dirname(os.path.realpath(path))
    while os.stat(above).st_mode & stat.S_IXOTH:
        if above == os.path.dirname(above):
            return False
        above = os.path.dirname(above)
    return True


def _disk(path: str) -> Finding:
    free = shutil.disk_usage(os.path.dirname(path)).free
    what = f"{free / 2**20:,.0f} MiB free"
    if free < DISK_FULL_BYTES:
        return DISK.broken(what)
    if free < DISK_LOW_BYTES:
        return DISK.warning(what)
    return DISK.ok(what)


# --- inside of the file -------------------------------------------------------------------------


def _journal(file: sqlite3.Connection) -> Finding:
    mode = file.execute(QUERIES["journal_mode"]).fetchone()[0]
    return JOURNAL.ok("WAL") if mode == "wal" else JOURNAL.warning(f"the journal mode is {mode!r}")


def _schema(file: sqlite3.Connection) -> Finding:
    encoding = file.execute(QUERIES["encoding"]).fetchone()[0]
    if encoding != "UTF-8":
        return SCHEMA.broken(f"the database is encoded in {encoding}, oncekey needs UTF-8")
    found = dict(file.execute(QUERIES["objects"]))
    if "table oncekey_migrations" not in found:
        return SCHEMA.broken("the table oncekey_migrations is missing")
    applied = [version for (version,) in file.execute(QUERIES["versions"])]
    try:
        missing = plan(applied, MIGRATIONS)
    except ConfigurationError as error:
        return SCHEMA.broken(str(error))
    if missing:
        names = ", ".join(migration.name for migration in missing)
        return SCHEMA.broken(f"version {max(applied)} of the tables lacks {names}")
    expected, columns = _expected_schema()
    lost = [name for name in expected if name not in found]
    changed = [
        name for name in expected if name in found and _squeezed(found[name]) != expected[name]
    ]
    lacking = columns - {*file.execute(STORE_QUERIES["columns"])}
    if lacking:
        each = sorted(f"{table.decode()}.{column.decode()}" for table, column in lacking)
        return SCHEMA.broken(f"missing columns: {', '.join(each)}")
    added = [name for name in found if name not in expected]
    if lost or changed or added:
        return SCHEMA.warning(_drift(lost, changed, added))
    return SCHEMA.ok(f"version {max(applied)}, {len(expected)} tables, indexes and views as made")


def _expected_schema() -> tuple[dict[str, str], set[tuple[bytes, bytes]]]:
    """What the migrations of this release make, from a database in memory: the statements by name,
    and (table, column)."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.execute(STORE_QUERIES["create_migrations"])
        for migration in MIGRATIONS:
            for sql in statements(migration.sql):
                fresh.execute(sql)
        objects = {name: _squeezed(sql) for name, sql in fresh.execute(QUERIES["objects"])}
        return objects, {*fresh.execute(STORE_QUERIES["columns"])}


def _squeezed(sql: str) -> str:
    return " ".join(sql.split())


def _drift(lost: list[str], changed: list[str], added: list[str]) -> str:
    kinds = (("missing", lost), ("changed", changed), ("not oncekey's", added))
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds if names)


def _integrity(file: sqlite3.Connection, path: str) -> Finding:
    size = os.path.getsize(path)
    if size > QUICK_CHECK_MAX_BYTES:
        return INTEGRITY.info(
            f"not checked: the file has {size / 2**20:,.0f} MiB",
            "run PRAGMA quick_check on a copy of the file",
        )
    try:
        result = file.execute(QUERIES["quick_check"]).fetchone()[0]
    except sqlite3.DatabaseError as error:
        if errors.primary_code(error) == sqlite3.SQLITE_INTERRUPT:
            return INTEGRITY.info(f"not checked: it takes longer than {CHECKUP_SECONDS:.0f} s")
        return INTEGRITY.broken(str(error))
    return INTEGRITY.ok("quick_check: ok") if result == "ok" else INTEGRITY.broken(result)


def _sweeper(file: sqlite3.Connection) -> Finding:
    now = time.time_ns() // 1_000
    late = now - SWEEP_LATE_US
    limit = OVERDUE_MAX + 1
    count, oldest = file.execute(QUERIES["overdue"], (late, limit, late, limit)).fetchone()
    if count:
        return SWEEPER.warning(overdue_text(count, now - oldest))
    return SWEEPER.ok("nothing is overdue by more than a day")


def _runs(file: sqlite3.Connection) -> list[ObservedRun]:
    return [ObservedRun(*row) for row in file.execute(QUERIES["runs"], (RUNS_MAX,))]


def _open_read_only(path: str) -> sqlite3.Connection:
    """A connection whose statements end when the checkup has taken long enough."""
    connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)
    end = time.monotonic() + CHECKUP_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > end, _PROGRESS_STEPS)
    return connection
