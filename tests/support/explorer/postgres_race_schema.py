"""A schema in a PostgreSQL database for races: made from the real SQL, or from an edited copy.

Owns the editing of migrations and queries, and how one statement is run in a transaction that stays
open. Which statements run when is in postgres_races.py. Needs psycopg and a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row
from tests.support.explorer.mutation import Edit, edited
from tests.support.explorer.race_scenarios import LATE

from oncekey.core.commands import Claim, Command, Finish
from oncekey.core.record import Record
from oncekey.stores.postgres.program import Program
from oncekey.stores.postgres.queries import Layout, Query, make_query, substitute
from oncekey.stores.postgres.rows import Row, StoredRow, stored_row_of
from oncekey.stores.postgres.schema import upgrade_script
from oncekey.stores.postgres.statements import Statement
from oncekey.stores.sql_files import load_migrations, load_queries

_PACKAGE: Final = "oncekey.stores.postgres"
_BETWEEN: Final = "\n--8<--\n"
_SESSION: Final = "-c lock_timeout=0 -c statement_timeout=120s"
# A ring that is large enough for the races, with a boundary between EARLY and LATE.
PLAIN: Final = Layout("races")
RING: Final = Layout("races on a ring", 12, 1_500)
# The slot that is emptied next at LATE, which moves its live records.
NEXT_SLOT: Final = (LATE // RING.period + 1) % RING.slots

_READ_ONLY: Final = b"SELECT pg_current_xact_id_if_assigned() IS NULL"


@dataclass(frozen=True)
class Setup:
    """How the store is set up, and the edits of its SQL.

    `in_batches`: no command is sent alone, since some statements treat a lone one differently.
    """

    layout: Layout
    claim: str = "insert"
    guard: bool = True
    in_batches: bool = False
    edits: tuple[Edit, ...] = ()

    def program(self, clock: Any = None) -> Program:
        return Program(self.layout, claim=self.claim, guard=self.guard, clock=clock)

    def batch(self, command: Command, number: int) -> list[Command]:
        """The command, and after it one of the same kind on another key."""
        if not self.in_batches or not isinstance(command, Claim | Finish):
            return [command]
        return [command, command._replace(id=b"companion %06d" % number)]


class Database:
    """A newly made schema, and connections to it."""

    def __init__(self, url: str, setup: Setup) -> None:
        self.setup = setup
        self._url = url
        script, self.queries = _texts(setup)
        self.judge = self.connect()
        self.judge.connection.execute(
            f"DROP SCHEMA IF EXISTS {setup.layout.quoted} CASCADE".encode()
        )
        self.judge.connection.execute(script.encode(), prepare=False)

    def connect(self) -> Session:
        connection = psycopg.connect(self._url, autocommit=True, options=_SESSION)
        return Session(connection, self.queries)

    def close(self) -> None:
        self.judge.connection.execute(
            f"DROP SCHEMA IF EXISTS {self.setup.layout.quoted} CASCADE".encode()
        )
        self.judge.close()

    def reset(self, before: Record | None) -> None:
        """Empty the schema, and insert the record if there is one."""
        name = self.setup.layout.quoted
        emptied = (f"DELETE FROM {name}.{table}" for table in ("records", "history"))  # noqa: S608
        self.judge.connection.execute("; ".join(emptied).encode())
        floor = f"DELETE FROM {name}.meta WHERE name = 'deleted-fences'"  # noqa: S608
        self.judge.connection.execute(floor.encode())
        if before is not None:
            slot = NEXT_SLOT if self.setup.layout.is_ring else 0
            statement = self.setup.program().insertion([before], 0)
            self.judge.run(Statement(statement.name, (*statement.params[:-1], slot)))

    def records(self, id: bytes) -> list[StoredRow]:
        """All records of the key; more than one means that it is not unique."""
        rows = self.judge.run(Statement("look", (0, [id])))
        return [stored for row in rows if (stored := stored_row_of(row)) is not None]

    def blocks(self, session: Session) -> bool:
        """True if a statement of this session waits for another one's lock."""
        rows = self.judge.connection.execute(
            "SELECT cardinality(pg_blocking_pids(%s)) > 0", (session.pid,)
        )
        row = rows.fetchone()
        return bool(row and row[0])


class Session:
    """One connection that runs statements of a program."""

    def __init__(self, connection: psycopg.Connection[Any], queries: dict[str, Query]) -> None:
        self.connection = connection
        self.pid = connection.info.backend_pid
        self._queries = queries
        self._cursor: psycopg.RawCursor[Any] = psycopg.RawCursor(connection, row_factory=tuple_row)

    def run(self, statement: Statement) -> Sequence[Row]:
        """Run the statement in a transaction of its own, or in the one that is open."""
        self._execute(statement)
        return self._rows()

    def begin(self, statement: Statement) -> tuple[Sequence[Row], bool]:
        """Run the statement in a new transaction. Returns its rows, and True if it wrote: then the
        transaction is still open."""
        with self.connection.pipeline():
            self.connection.execute(b"BEGIN")
            self._execute(statement)
            read_only = self.connection.execute(_READ_ONLY)
        row = read_only.fetchone()
        if row == (True,):
            self.commit()
        return self._rows(), row != (True,)

    def _execute(self, statement: Statement) -> None:
        query = self._queries[statement.name]
        self._cursor.execute(query.sql.encode(), query.encode(statement.params), binary=True)

    def _rows(self) -> Sequence[Row]:
        return self._cursor.fetchall() if self._cursor.description else ()

    def commit(self) -> None:
        self.connection.execute(b"COMMIT")

    def close(self) -> None:
        self.connection.close()


def _texts(setup: Setup) -> tuple[str, dict[str, Query]]:
    """The script that makes the schema, and the queries, with the edits made."""
    layout = setup.layout
    shape = "ring" if layout.is_ring else "plain"
    steps = load_migrations(_PACKAGE, f"sql/{shape}", "sql/shared")
    queries = load_queries(_PACKAGE, "sql/queries.sql")
    parts = [*(step.sql for step in steps), *queries.values()]
    parts = edited(_BETWEEN.join(parts), "the SQL", *setup.edits).split(_BETWEEN)
    parts = [substitute(part, layout) for part in parts]
    made = [step._replace(sql=sql) for step, sql in zip(steps, parts, strict=False)]
    texts = zip(queries, parts[len(steps) :], strict=True)
    return upgrade_script(layout, made), {name: make_query(sql) for name, sql in texts}
