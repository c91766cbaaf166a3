"""The operators' views show the records, on every installed PostgreSQL, whatever the bytes are."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import psycopg
import pytest
from tests.support.postgres_views import (
    HOUR,
    NO_JSON,
    QUOTED,
    QUOTED_RING,
    SCHEMA,
    NewRecord,
    ViewsSchema,
    at,
    record_maker,
    value,
)
from tests.support.shown_records import Shown, records_in_every_state, shown_by_the_engine

from oncekey import Once
from oncekey.core.codec import JSON, StoredValue, pack_error, pack_tombstone, pack_value, unpack
from oncekey.core.commands import Seen
from oncekey.core.origin import Origin, label_of
from oncekey.core.record import State, Step
from oncekey.core.state_machine import is_expired, state_now
from oncekey.core.step_format import StepResult, pack_step
from oncekey.engine.keys.key_status import end_of, status_of
from oncekey.http.message import Response
from oncekey.http.response_codec import CODEC
from oncekey.stores.postgres.queries import Layout, make_migrations
from oncekey.stores.postgres.schema import upgrade_script

# --- where a key stands ---------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("retry_safe", [False, True])
@pytest.mark.parametrize("when", ["alive", "lease over", "expired"])
def test_the_operations_view_shows_the_records_state_and_times(
    views: ViewsSchema, new: NewRecord, state: State, retry_safe: bool, when: str
) -> None:
    now = views.now()
    times: dict[str, int] = {}
    if when == "lease over":
        times = {"lease_until": now - HOUR}
    elif when == "expired":
        times = {"lease_until": now - 30 * HOUR}
        if state not in (State.ABSENT, State.PENDING):
            times["finished_at"] = now - 30 * HOUR
    made = new(state, retry_safe=retry_safe, attempt=3, key="raw", note="by hand", **times)
    row = views.operation(views.put(made))
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
        "finished_at": end_of(made),
        "expires_at": None if made.lasts_until_decided else at(made.expires_at),
        "audit_until": None if made.lasts_until_decided else at(made.audit_until),
        "answer_kind": None,
        "answer": None,
        "note": "by hand",
        "surface": "function",
        "route": "",
        "name": "",
    }
    status = status_of(Seen(made, now), JSON)
    if status is not None:
        names = ["state", "expired", "tag", "created_at", "finished_at", "expires_at", "fence"]
        assert {name: row[name] for name in names} == {n: getattr(status, n) for n in names}


def engine_and_view(
    views: ViewsSchema, url: str, schema: str
) -> tuple[dict[str, Shown], dict[str, Shown]]:
    """What both say of records in every state."""
    for made in records_in_every_state(views.now()):
        views.put(made, schema=schema)
    with Once(url) as once:
        by_engine = shown_by_the_engine(once)
    sql = f"SELECT key, tag, state, expired, finished_at, expires_at FROM {schema}.operations"  # noqa: S608
    return by_engine, {key: Shown(*told) for key, *told in views.postgres.execute(sql)}


@pytest.mark.parametrize("shape", ["plain", "ring"])
def test_the_operations_view_and_the_engine_say_the_same_of_every_state(
    view_schemas: dict[str, ViewsSchema], shape: str
) -> None:
    views = view_schemas[shape]
    schema = QUOTED if shape == "plain" else QUOTED_RING
    views.connection.execute(f"TRUNCATE {schema}.records".encode())
    by_engine, by_view = engine_and_view(views, views.url, schema)
    views.connection.execute(f"TRUNCATE {schema}.records".encode())
    states = {one.state for one in by_engine.values()}
    assert states == {"absent", "pending", "succeeded", "failed", "unknown"}
    assert all(one.finished_at is None for one in by_engine.values() if one.state == "unknown")
    assert by_view == by_engine


def test_a_store_that_was_opened_before_gets_the_views_of_this_release(views: ViewsSchema) -> None:
    layout = Layout("views_before")
    views.connection.execute("DROP SCHEMA IF EXISTS views_before CASCADE")
    views.connection.execute(upgrade_script(layout, make_migrations(layout)[:12]).encode())
    url = f"{views.postgres.url()}?schema=views_before"
    by_engine, by_view = engine_and_view(views, url, layout.quoted)
    views.connection.execute("DROP SCHEMA views_before CASCADE")
    assert by_view == by_engine


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
def test_the_operations_view_shows_a_json_answer_verbatim(
    views: ViewsSchema, new: NewRecord, value: Any
) -> None:
    body = pack_value(JSON, value)
    row = views.operation(views.put(new(body=body)))
    stored = unpack(body)
    assert isinstance(stored, StoredValue)
    assert (row["answer_kind"], row["answer"]) == ("value", stored.data.decode())


def test_the_operations_view_shows_errors_and_tombstones_by_kind(
    views: ViewsSchema, new: NewRecord
) -> None:
    failed = views.operation(
        views.put(new(State.FAILED, body=pack_error(ValueError("dec\0lined"))))
    )
    assert failed["answer_kind"] == "error"
    assert failed["answer"] == '{"type": "ValueError", "message": "dec\\u0000lined"}'
    large = views.operation(views.put(new(body=pack_tombstone("too large", too_large=True))))
    assert large["answer_kind"] == "tombstone"
    assert large["answer"] == '{"reason": "too large", "too_large": true}'


@pytest.mark.parametrize(
    ("body", "shown"),
    [(b'{"id": 1}', {"id": 1}), (b"", ""), ("ärger".encode(), "ärger"), (b"\xff\x00", None)],
    ids=["json", "empty", "text", "bytes"],
)
def test_the_operations_view_shows_http_responses_and_where_they_came_from(
    views: ViewsSchema, new: NewRecord, body: bytes, shown: Any
) -> None:
    headers = ((b"content-type", b"application/json"), (b"x-name", "ä".encode("latin-1")))
    label = label_of("http", Origin("http", "POST /charges", "create_charge"))
    stored = pack_value(CODEC, Response(201, headers, body))
    row = views.operation(views.put(new(label=label, body=stored)))
    origin = (row["operation"], row["surface"], row["route"], row["name"])
    assert origin == ("http", "http", "POST /charges", "create_charge")
    assert row["answer_kind"] == "response"
    pairs = [["content-type", "application/json"], ["x-name", "ä"]]
    assert json.loads(row["answer"]) == {"status": 201, "headers": pairs, "body": shown}


@pytest.mark.parametrize("codec", [b"dataclass", b"pydantic"])
def test_answers_of_the_other_built_in_codecs_are_shown_as_json(
    views: ViewsSchema, new: NewRecord, codec: bytes
) -> None:
    body = bytes([1, 1, len(codec)]) + codec + b'{"id": 1}'
    assert views.operation(views.put(new(body=body)))["answer"] == '{"id": 1}'


@pytest.mark.parametrize("body", NO_JSON, ids=lambda body: repr(body[:12]))
def test_answers_that_are_not_json_show_as_null(
    views: ViewsSchema, new: NewRecord, body: bytes
) -> None:
    row = views.operation(views.put(new(body=body)))
    assert row["answer"] is None
    is_envelope = len(body) >= 3 and body[0] == 1
    kinds = {1: "value", 2: "error", 3: "tombstone"}
    assert row["answer_kind"] == (kinds.get(body[1]) if is_envelope else None)


def test_the_views_can_read_random_bytes(views: ViewsSchema, new: NewRecord) -> None:
    """Random bytes that begin like an envelope, so that every branch is covered."""
    source = random.Random(3)
    for _ in range(300):
        head = bytes([1, source.randrange(5), source.randrange(8)])
        body = (head + b"json" + source.randbytes(12))[: source.randrange(20)]
        views.put(new(body=body, steps=()), steps=b"\x01" + source.randbytes(40))
        facts = bytes([1, 0, source.randrange(30)]) + b'{"key": "k"}' + source.randbytes(20)
        steps = (
            Step("whole", False, facts, 0),
            Step("cut", True, facts[: source.randrange(35)], 0),
        )
        views.put(new(steps=steps))
    assert len(views.query("SELECT * FROM {schema}.operations")) == 600
    assert len(views.query("SELECT * FROM {schema}.steps")) >= 900


def test_the_views_show_keys_of_an_engine_on_the_ring(view_schemas: dict[str, ViewsSchema]) -> None:
    views = view_schemas["ring"]

    def body(attempt: Any) -> dict[str, str]:
        hold = attempt.step("hold", lambda key: StepResult({"id": "h_1"}, "h_1", 201))
        return {"hold": hold["id"]}

    with Once(views.url, raw_keys=True) as once:
        once.run("checkout", "cart-1", body, scope="acct_1", keep="1h", audit="1h")
        status = once.get("checkout", "cart-1", scope="acct_1")
    assert status is not None
    query = f"SELECT key, state, answer, created_at FROM {QUOTED_RING}.operations"  # noqa: S608
    assert views.postgres.execute(query) == [
        ("cart-1", "succeeded", '{"hold":"h_1"}', status.created_at)
    ]
    query = f"SELECT step, done, result, external_id, status, at FROM {QUOTED_RING}.steps"  # noqa: S608
    (step,) = status.steps
    row = ("hold", True, '{"id":"h_1"}', "h_1", "201", step.at)
    assert views.postgres.execute(query) == [row]


# --- who may read them ----------------------------------------------------------------------------


def test_a_role_with_the_documented_grants_reads_the_views_and_nothing_else(
    views: ViewsSchema, new: NewRecord
) -> None:
    views.put(new(body=value(1), steps=(Step("a", True, pack_step({}, value(2)), 0),)))
    views.connection.execute("DROP ROLE IF EXISTS oncekey_support")
    views.connection.execute("CREATE ROLE oncekey_support LOGIN")
    try:
        for grant in (
            "USAGE ON SCHEMA {schema}",
            "SELECT ON {schema}.operations, {schema}.steps",
        ):
            sql = f"GRANT {grant} TO oncekey_support".replace("{schema}", QUOTED)
            views.connection.execute(sql.encode())
        url = views.postgres.url(user="oncekey_support")
        with psycopg.connect(url, autocommit=True) as theirs:
            for view, column, text in (("operations", "answer", "1"), ("steps", "result", "2")):
                rows = theirs.execute(f"SELECT {column} FROM {QUOTED}.{view}".encode())  # noqa: S608
                assert rows.fetchall() == [(text,)]
            for words in ("SELECT * FROM", "DELETE FROM"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    theirs.execute(f"{words} {QUOTED}.records".encode())
    finally:
        views.connection.execute("DROP OWNED BY oncekey_support")
        views.connection.execute("DROP ROLE oncekey_support")


# The view calls a function that was added later. It must have the rights of the older ones.
ROLES = ("oncekey_support", "oncekey_nobody")


@pytest.mark.parametrize("public", [True, False])
def test_an_upgrade_neither_revokes_nor_grants_rights(views: ViewsSchema, public: bool) -> None:
    """It also works if a user has built a view on ours."""
    layout = Layout(SCHEMA + " before")
    steps = make_migrations(layout)
    connection = views.connection

    def run(sql: str) -> None:
        connection.execute(sql.replace("{schema}", layout.quoted).encode())

    def may_read(role: str, view: str) -> bool:
        run(f"SET ROLE {role}")
        try:
            connection.execute(f"SELECT * FROM {layout.quoted}.{view}".encode())  # noqa: S608
        except psycopg.errors.InsufficientPrivilege:
            return False
        finally:
            run("RESET ROLE")
        return True

    run("DROP SCHEMA IF EXISTS {schema} CASCADE")
    run(upgrade_script(layout, steps[:5]))
    made = record_maker(views.now())(steps=(Step("a", True, pack_step({}, value(2)), 0),))
    views.put(made, schema=layout.quoted)
    for role in ROLES:
        run(f"DROP ROLE IF EXISTS {role}; CREATE ROLE {role}")
        run(f"GRANT USAGE ON SCHEMA {{schema}} TO {role}")
        run(f"GRANT SELECT ON {{schema}}.steps TO {role}")
    run("CREATE VIEW {schema}.mine AS SELECT step, result FROM {schema}.steps")
    run("GRANT SELECT ON {schema}.mine TO oncekey_support")
    if not public:
        run("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC")
        functions = "{schema}.answer_1(bytea), {schema}.steps_1(bytea)"
        run(f"GRANT EXECUTE ON FUNCTION {functions} TO oncekey_support")
    readers = [
        ("oncekey_support", "steps"),
        ("oncekey_support", "mine"),
        ("oncekey_nobody", "steps"),
    ]
    before = [may_read(*one) for one in readers]
    assert before == [True, True, public]
    run(upgrade_script(layout, steps[5:]))
    assert [may_read(*one) for one in readers] == before
    may_call = "SELECT has_function_privilege('oncekey_nobody', %s, 'EXECUTE')"
    for function in ("step_1", "child_uuid_1"):
        called = connection.execute(may_call, (f"{layout.quoted}.{function}(bytea)",))
        assert called.fetchall() == [(public,)]
    assert connection.execute(f"SELECT * FROM {layout.quoted}.mine".encode()).fetchall() == [  # noqa: S608
        ("a", "2")
    ]
    run("DROP SCHEMA {schema} CASCADE")
    for role in ROLES:
        run(f"DROP OWNED BY {role}; DROP ROLE {role}")
