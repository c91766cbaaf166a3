"""The operators' view of an SQLite store: states, origins, and answers as JSON."""

from __future__ import annotations

import json
import sqlite3
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.shown_records import Shown, records_in_every_state, shown_by_the_engine

from oncekey import Once, Terminal
from oncekey.core.origin import Origin
from oncekey.http.message import Response
from oncekey.http.response_codec import CODEC
from oncekey.stores.sqlite import SQLiteStore, schema
from oncekey.stores.sqlite.connection import run
from oncekey.stores.sqlite.program import QUERIES
from oncekey.stores.sqlite.rows import record_row

CHARGES = Origin("http", "POST /charges", "create_charge")
JSON_TYPE = ((b"content-type", b"application/json"),)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


def rows(path: Path, sql: str = "SELECT * FROM oncekey_operations") -> list[dict[str, Any]]:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(sql)]
    finally:
        connection.close()


def test_the_view_shows_states_answers_and_origins_as_get_does(path: Path) -> None:
    with Once(f"sqlite:///{path}", raw_keys=True) as once:
        once.run("charge", "k1", lambda attempt: {"id": "ch_1"}, scope="acct_1")
        with pytest.raises(Terminal):
            once.run("charge", "k2", _fail)
        status = once.get("charge", "k1", scope="acct_1")
    assert status is not None
    done, failed = rows(path, "SELECT * FROM oncekey_operations ORDER BY fence")
    assert (done["state"], json.loads(done["answer"])) == ("succeeded", {"id": "ch_1"})
    assert (done["tag"], done["id"], done["key"]) == (status.tag, status.id, "k1")
    assert (done["scope"], done["operation"], done["route"]) == ("acct_1", "charge", "")
    assert (done["surface"], done["name"], done["expired"]) == ("function", "", 0)
    assert done["created_at"][:19] == status.created_at.isoformat()[:19]
    assert (failed["state"], failed["answer_kind"]) == ("failed", "error")
    assert json.loads(failed["answer"])["message"] == "declined"


def _fail(attempt: Any) -> None:
    raise Terminal("declined")


@pytest.mark.parametrize(
    ("headers", "body", "shown"),
    [
        (JSON_TYPE, b'{"id": 1}', {"id": 1}),
        (((b"content-type", b"text/plain"),), b"done", "done"),
        (((b"content-type", b"image/png"),), b"\xff\x00", None),
        ((), b"", None),
    ],
    ids=["json", "text", "bytes", "empty"],
)
def test_answers_of_http_requests_can_be_queried(
    path: Path, headers: Any, body: bytes, shown: Any
) -> None:
    with Once(f"sqlite:///{path}") as once:
        response = Response(201, headers, body)
        once.run("http", "k", lambda attempt: response, codec=CODEC, origin=CHARGES)
    (row,) = rows(path)
    assert (row["operation"], row["surface"], row["route"], row["name"]) == ("http", *CHARGES)
    answer = json.loads(row["answer"])
    assert (row["answer_kind"], answer["status"], answer["body"]) == ("response", 201, shown)
    by_status = "SELECT id FROM oncekey_operations WHERE json_extract(answer, '$.status') = 201"
    assert len(rows(path, by_status)) == 1


def put_records_in_every_state(path: Path) -> None:
    connection = sqlite3.connect(path)
    now = time.time_ns() // 1_000_000 * 1_000  # the view shows milliseconds
    with connection:
        for made in records_in_every_state(now):
            connection.execute(QUERIES["insert_record"], record_row(made))
    connection.close()


def shown_by_the_view(path: Path) -> dict[str, Shown]:
    return {
        row["key"]: Shown(
            row["tag"],
            row["state"],
            bool(row["expired"]),
            _time(row["finished_at"]),
            _time(row["expires_at"]),
        )
        for row in rows(path)
    }


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None


def test_the_view_and_the_engine_say_the_same_of_every_state(path: Path) -> None:
    SQLiteStore(path).close()
    put_records_in_every_state(path)
    with Once(f"sqlite:///{path}") as once:
        shown = shown_by_the_engine(once)
    assert {one.state for one in shown.values()} == {
        "absent", "pending", "succeeded", "failed", "unknown"
    }  # fmt: skip
    assert all(one.finished_at is None for one in shown.values() if one.state == "unknown")
    assert shown_by_the_view(path) == shown


def test_a_store_that_was_opened_before_gets_the_view_of_this_release(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    run(connection, schema.prepare(lambda: 7, schema.MIGRATIONS[:3]))
    connection.execute("CREATE VIEW mine AS SELECT tag, finished_at FROM oncekey_operations")
    connection.close()
    put_records_in_every_state(path)
    with Once(f"sqlite:///{path}") as once:
        shown = shown_by_the_engine(once)
    assert shown_by_the_view(path) == shown
    ends = {row["tag"]: _time(row["finished_at"]) for row in rows(path, "SELECT * FROM mine")}
    assert ends == {one.tag: one.finished_at for one in shown.values()}, "a user's view on ours"
