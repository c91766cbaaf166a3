"""The operators' views: they say what the records say, on every PostgreSQL found, of any bytes."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from tests.core.making import record
from tests.postgres_stores import server

from oncekey import Once
from oncekey.core.codec import (
    JSON,
    StoredValue,
    pack_error,
    pack_tombstone,
    pack_value,
    unpack,
)
from oncekey.core.commands import Seen
from oncekey.core.machine import is_expired, state_now
from oncekey.core.record import Record, State, Step
from oncekey.engine.status import status_of
from oncekey.stores.postgres import migrate
from oncekey.stores.steps import pack_steps, unpack_steps
from oncekey.testing.servers import Postgres, find_postgres

HOUR = 3_600_000_000
SCHEMA = 'views "of" all'
QUOTED = '"views ""of"" all"'
RING = "&retention=ring&ring_slots=8&ring_period=3h"

MAJORS = sorted({found.major for found in find_postgres()}, reverse=True) or [18]


class Bench:
    """A schema on one server, emptied for each test."""

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

    def put(self, made: Record, steps: bytes | None = None) -> uuid.UUID:
        """A row as the store would write it; `steps` are other bytes for that column."""
        values = made._asdict() | {
            "id": uuid.UUID(bytes=made.id),
            "owner": uuid.UUID(bytes=made.owner),
            "state": int(made.state),
            "steps": pack_steps(made.steps) if steps is None else steps,
            "sweep_at": made.audit_until,
            "revision": 0,
            "slot": 0,
        }
        marks = ", ".join(f"%({name})s" for name in values)
        sql = f"INSERT INTO {QUOTED}.records ({', '.join(values)}) VALUES ({marks})"  # noqa: S608
        self.connection.execute(sql.encode(), values)
        return uuid.UUID(bytes=made.id)

    def operation(self, id: uuid.UUID) -> dict[str, Any]:
        (row,) = self.query("SELECT * FROM {schema}.operations WHERE id = %s", id)
        return row

    def steps(self, id: uuid.UUID) -> list[dict[str, Any]]:
        return self.query("SELECT * FROM {schema}.steps WHERE id = %s ORDER BY number", id)


@pytest.fixture(scope="module", params=MAJORS, ids=lambda major: f"postgres-{major}")
def benches(request: pytest.FixtureRequest) -> Iterator[dict[str, Bench]]:
    postgres = server(None if request.param == MAJORS[0] else request.param)
    made = {}
    for shape in ("plain", "ring"):
        name = SCHEMA if shape == "plain" else f"{SCHEMA} ring"
        postgres.execute(f'DROP SCHEMA IF EXISTS "{name.replace(chr(34), chr(34) * 2)}" CASCADE')
        options = RING if shape == "ring" else ""
        quoted = name.replace('"', "%22").replace(" ", "%20")
        url = f"{postgres.url()}?schema={quoted}{options}"
        migrate(url)
        made[shape] = Bench(postgres, url)
    yield made
    for bench in made.values():
        bench.connection.close()


@pytest.fixture
def bench(benches: dict[str, Bench]) -> Bench:
    benches["plain"].connection.execute(f"TRUNCATE {QUOTED}.records".encode())
    return benches["plain"]


NewRecord = Callable[..., Record]


@pytest.fixture
def new(bench: Bench) -> NewRecord:
    """A record of the server's present hour under an id of its own."""
    now = bench.now()

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


# --- where a key stands ---------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("retry_safe", [False, True])
@pytest.mark.parametrize("when", ["alive", "lease over", "expired"])
def test_a_row_says_what_the_record_says(
    bench: Bench, new: NewRecord, state: State, retry_safe: bool, when: str
) -> None:
    now = bench.now()
    times: dict[str, int] = {}
    if when == "lease over":
        times = {"lease_until": now - HOUR}
    elif when == "expired":
        times = {"lease_until": now - 30 * HOUR}
        if state not in (State.ABSENT, State.PENDING):
            times["finished_at"] = now - 30 * HOUR
    made = new(state, retry_safe=retry_safe, attempt=3, key="raw", note="by hand", **times)
    row = bench.operation(bench.put(made))
    expired = is_expired(made, now)
    assert row == {
        "id": uuid.UUID(bytes=made.id),
        "tag": made.id.hex()[:12],
        "scope": made.scope,
        "operation": made.operation,
        "key": "raw",
        "state": (made.state if expired else state_now(made, now)).name.lower(),
        "expired": expired,
        "attempt": 3,
        "fence": made.fence,
        "created_at": at(made.created_at),
        "lease_until": at(made.lease_until),
        "finished_at": at(made.finished_at) if made.finished_at else None,
        "expires_at": at(made.expires_at),
        "audit_until": at(made.audit_until),
        "answer_kind": None,
        "answer": None,
        "note": "by hand",
    }
    status = status_of(Seen(made, now), JSON)
    if status is not None:
        names = ("state", "expired", "tag", "created_at", "finished_at", "expires_at", "fence")
        assert {name: row[name] for name in names} == {n: getattr(status, n) for n in names}


# --- answers --------------------------------------------------------------------------------------

VALUES: list[Any] = [
    None,
    True,
    12.5,
    "",
    "ä€😀\x00\u2028'\"\\",
    {"id": "ch_1", "nested": [{"a": []}]},
    "x" * 3_000_000,
    [random.Random(1).random() for _ in range(20_000)],
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_a_json_answer_is_shown_to_the_letter(bench: Bench, new: NewRecord, value: Any) -> None:
    body = pack_value(JSON, value)
    row = bench.operation(bench.put(new(body=body)))
    stored = unpack(body)
    assert isinstance(stored, StoredValue)
    assert (row["answer_kind"], row["answer"]) == ("value", stored.data.decode())


def test_errors_and_tombstones_are_answers_of_their_kind(bench: Bench, new: NewRecord) -> None:
    failed = bench.operation(
        bench.put(new(State.FAILED, body=pack_error(ValueError("dec\0lined"))))
    )
    assert failed["answer_kind"] == "error"
    assert failed["answer"] == '{"type": "ValueError", "message": "dec\\u0000lined"}'
    large = bench.operation(bench.put(new(body=pack_tombstone("too large", too_large=True))))
    assert large["answer_kind"] == "tombstone"
    assert large["answer"] == '{"reason": "too large", "too_large": true}'


@pytest.mark.parametrize("codec", [b"dataclass", b"pydantic"])
def test_other_built_in_codecs_write_json_too(bench: Bench, new: NewRecord, codec: bytes) -> None:
    body = bytes([1, 1, len(codec)]) + codec + b'{"id": 1}'
    assert bench.operation(bench.put(new(body=body)))["answer"] == '{"id": 1}'


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


@pytest.mark.parametrize("body", NO_JSON, ids=lambda body: repr(body[:12]))
def test_bytes_that_are_no_json_are_no_answer_and_no_error(
    bench: Bench, new: NewRecord, body: bytes
) -> None:
    row = bench.operation(bench.put(new(body=body)))
    assert row["answer"] is None
    is_envelope = len(body) >= 3 and body[0] == 1
    kinds = {1: "value", 2: "error", 3: "tombstone"}
    assert row["answer_kind"] == (kinds.get(body[1]) if is_envelope else None)


def test_any_bytes_can_be_looked_at(bench: Bench, new: NewRecord) -> None:
    """Random ones that begin as an envelope does, so that every branch is met."""
    source = random.Random(3)
    for _ in range(300):
        head = bytes([1, source.randrange(5), source.randrange(8)])
        body = (head + b"json" + source.randbytes(12))[: source.randrange(20)]
        bench.put(new(body=body, steps=()), steps=b"\x01" + source.randbytes(40))
    assert len(bench.query("SELECT * FROM {schema}.operations")) == 300
    assert len(bench.query("SELECT * FROM {schema}.steps")) >= 300


# --- steps ----------------------------------------------------------------------------------------


def shown(step: Step) -> tuple[Any, ...]:
    stored = unpack(step.body)
    json = stored.data.decode() if isinstance(stored, StoredValue) else None
    intent = None if step.done else step.body.decode("ascii")
    return step.name, step.done, at(step.at), json if step.done else None, intent


def test_steps_are_rows_with_their_results(bench: Bench, new: NewRecord) -> None:
    now = bench.now()
    steps = (
        Step("inventory:reserve", True, pack_value(JSON, {"hold": "h_1", "ä": "€"}), now - HOUR),
        Step("payment:charge", False, b"ok1-0123456789abcdef", now - 1),
    )
    made = new(State.PENDING, steps=steps, key="raw")
    rows = bench.steps(bench.put(made))
    names = ("step", "done", "at", "result", "intent")
    assert [tuple(row[name] for name in names) for row in rows] == [shown(s) for s in steps]
    assert [row["number"] for row in rows] == [1, 2]
    for row in rows:
        assert row["id"] == uuid.UUID(bytes=made.id)
        assert (row["scope"], row["operation"], row["key"]) == (made.scope, made.operation, "raw")


def test_many_and_large_steps(bench: Bench, new: NewRecord) -> None:
    """A hundred, of all sizes, past what one page and one byte's count can hold."""
    source = random.Random(4)
    now = bench.now()
    steps = tuple(
        Step(f"{'ä' * (number % 60)}{number}", True, pack_value(JSON, "x" * size), now + number)
        for number, size in enumerate(source.choices([0, 1, 255, 256, 65_536, 300_000], k=100))
    )
    rows = bench.steps(bench.put(new(steps=steps)))
    assert [row["step"] for row in rows] == [step.name for step in steps]
    assert [row["at"] for row in rows] == [at(step.at) for step in steps]
    assert [row["result"] for row in rows] == [shown(step)[3] for step in steps]


def test_steps_that_are_no_json_have_no_result(bench: Bench, new: NewRecord) -> None:
    steps = tuple(Step(f"s{n}", True, body, n) for n, body in enumerate(NO_JSON))
    rows = bench.steps(bench.put(new(steps=steps)))
    assert [row["step"] for row in rows] == [step.name for step in steps]
    assert {row["result"] for row in rows} == {None}
    unfinished = (Step("a", False, b"\x00\xff\\", 0),)
    (row,) = bench.steps(bench.put(new(steps=unfinished)))
    assert row["intent"] == "\\000\\377\\\\"


def test_cut_or_foreign_steps_show_as_a_row_without_a_name(bench: Bench, new: NewRecord) -> None:
    steps = (Step("one", True, pack_value(JSON, 1), 5), Step("two", False, b"ok1-abc", 6))
    whole, first = pack_steps(steps), len(pack_steps(steps[:1]))
    for length in range(1, len(whole)):
        part = whole[:length]
        rows = bench.steps(bench.put(new(), steps=part))
        readable: list[str | None]
        try:
            readable = [step.name for step in unpack_steps(part)]
        except ValueError:
            readable = ["one", None] if length >= first else [None]
        assert [row["step"] for row in rows] == readable, length
    (row,) = bench.steps(bench.put(new(), steps=b"\x07"))
    assert (row["step"], row["done"], row["at"], row["result"]) == (None, None, None, None)


def test_the_engines_own_keys_on_the_ring(benches: dict[str, Bench]) -> None:
    bench = benches["ring"]

    def body(attempt: Any) -> dict[str, str]:
        hold = attempt.step("hold", lambda key: {"id": "h_1"})
        return {"hold": hold["id"]}

    with Once(bench.url, raw_keys=True) as once:
        once.run("checkout", "cart-1", body, scope="acct_1", keep="1h", audit="1h")
        status = once.get("checkout", "cart-1", scope="acct_1")
    assert status is not None
    schema = '"views ""of"" all ring"'
    query = f"SELECT key, state, answer, created_at FROM {schema}.operations"  # noqa: S608
    assert bench.postgres.execute(query) == [
        ("cart-1", "succeeded", '{"hold":"h_1"}', status.created_at)
    ]
    query = f"SELECT step, done, result, at FROM {schema}.steps"  # noqa: S608
    (step,) = status.steps
    assert bench.postgres.execute(query) == [("hold", True, '{"id":"h_1"}', step.at)]


# --- who may read them ----------------------------------------------------------------------------


def test_a_role_with_the_documented_grants_reads_the_views_and_nothing_else(
    bench: Bench, new: NewRecord
) -> None:
    bench.put(new(body=pack_value(JSON, 1), steps=(Step("a", True, pack_value(JSON, 2), 0),)))
    bench.connection.execute("DROP ROLE IF EXISTS oncekey_support")
    bench.connection.execute("CREATE ROLE oncekey_support LOGIN")
    try:
        for grant in (
            "USAGE ON SCHEMA {schema}",
            "SELECT ON {schema}.operations, {schema}.steps",
        ):
            sql = f"GRANT {grant} TO oncekey_support".replace("{schema}", QUOTED)
            bench.connection.execute(sql.encode())
        url = bench.postgres.url(user="oncekey_support")
        with psycopg.connect(url, autocommit=True) as theirs:
            for view, column, value in (("operations", "answer", "1"), ("steps", "result", "2")):
                rows = theirs.execute(f"SELECT {column} FROM {QUOTED}.{view}".encode())  # noqa: S608
                assert rows.fetchall() == [(value,)]
            for words in ("SELECT * FROM", "DELETE FROM"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    theirs.execute(f"{words} {QUOTED}.records".encode())
    finally:
        bench.connection.execute("DROP OWNED BY oncekey_support")
        bench.connection.execute("DROP ROLE oncekey_support")
