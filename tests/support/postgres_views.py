"""A schema with the operators' views on one server, and records to put into it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from tests.core.sample_records import record
from tests.support.postgres_stores import server
from tests.support.servers import Postgres, find_postgres

from oncekey.core.codec import JSON, pack_value
from oncekey.core.record import Record, State
from oncekey.stores.postgres import migrate
from oncekey.stores.record_format import pack_steps

HOUR = 3_600_000_000
SCHEMA = 'views "of" all'
QUOTED = '"views ""of"" all"'
QUOTED_RING = '"views ""of"" all ring"'
RING = "&retention=ring&ring_slots=8&ring_period=3h"

MAJORS = sorted({found.major for found in find_postgres()}, reverse=True) or [18]


class ViewsSchema:
    """A schema on one server, which a fixture empties for each test."""

    def __init__(self, postgres: Postgres, url: str) -> None:
        self.postgres = postgres
        self.url = url
        self.connection = psycopg.connect(postgres.url(), autocommit=True)

    def query(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self.connection.execute(sql.replace("{schema}", QUOTED).encode(), values or None)
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def now(self) -> int:
        sql = "SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint AS us"
        return int(self.query(sql)[0]["us"])

    def put(self, made: Record, steps: bytes | None = None, *, schema: str = QUOTED) -> uuid.UUID:
        """Insert a row as the store would; `steps` replaces the bytes of that column."""
        values = made._asdict() | {"operation": made.label}
        del values["label"]
        values |= {
            "id": uuid.UUID(bytes=made.id),
            "owner": uuid.UUID(bytes=made.owner),
            "state": int(made.state),
            "steps": pack_steps(made.steps) if steps is None else steps,
            "sweep_at": made.audit_until,
            "revision": 0,
            "slot": 0,
        }
        marks = ", ".join(f"%({name})s" for name in values)
        sql = f"INSERT INTO {schema}.records ({', '.join(values)}) VALUES ({marks})"  # noqa: S608
        self.connection.execute(sql.encode(), values)
        return uuid.UUID(bytes=made.id)

    def operation(self, id: uuid.UUID) -> dict[str, Any]:
        (row,) = self.query("SELECT * FROM {schema}.operations WHERE id = %s", id)
        return row

    def steps(self, id: uuid.UUID) -> list[dict[str, Any]]:
        return self.query("SELECT * FROM {schema}.steps WHERE id = %s ORDER BY number", id)


def make_view_schemas(major: int) -> dict[str, ViewsSchema]:
    """Create a plain and a ring schema on the server of a major version."""
    postgres = server(None if major == MAJORS[0] else major)
    made = {}
    for shape in ("plain", "ring"):
        name = SCHEMA if shape == "plain" else f"{SCHEMA} ring"
        postgres.execute(f'DROP SCHEMA IF EXISTS "{name.replace(chr(34), chr(34) * 2)}" CASCADE')
        options = RING if shape == "ring" else ""
        quoted = name.replace('"', "%22").replace(" ", "%20")
        url = f"{postgres.url()}?schema={quoted}{options}"
        migrate(url)
        made[shape] = ViewsSchema(postgres, url)
    return made


NewRecord = Callable[..., Record]


def record_maker(now: int) -> NewRecord:
    """Makes records of the server's current hour, each with a new id."""

    def make(state: State = State.SUCCEEDED, **changes: Any) -> Record:
        ended = state in (State.SUCCEEDED, State.FAILED, State.UNKNOWN)
        times = {
            "id": uuid.uuid4().bytes,
            "fence": now,
            "created_at": now - 2 * HOUR,
            "lease_until": now + HOUR,
            "finished_at": now - HOUR - 1 if ended else 0,
            "keep": 24 * HOUR,
            "audit": 7 * 24 * HOUR,
            "body": b"",
        }
        return record(state, **{**times, **changes})

    return make


def at(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def value(data: Any) -> bytes:
    return pack_value(JSON, data)


# Bodies that the views cannot show as JSON.
NO_JSON = [
    b"",
    b"\x01",
    b"\x01\x01",
    b"\x01\x01\x00",
    b"\x01\x01\x04json",
    b"\x01\x01\x04json{",
    b"\x01\x01\x04json{} {}",
    b'\x01\x01\x04json"\xff\xfe"',
    b'\x01\x01\x04json"\x00"',
    b'\x01\x01\xffjson{"a": 1}',
    b"\x01\x01\x00{}",
    b"\x01\x00\x04json{}",
    b"\x01\x04\x04json{}",
    b"\x02\x01\x04json{}",
    b"\x01\x01\x06custom{}",
    b"\x01\x01\x04js\xffn{}",
    b"\x01\x01\x04json" + b"[" * 200_000,
    bytes(range(256)),
    random.Random(2).randbytes(100_000),
]
