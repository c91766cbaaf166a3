"""The operators' view of steps shows requests and results, whatever bytes are stored."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest
from tests.support.postgres_views import HOUR, NO_JSON, NewRecord, ViewsSchema, at, value

from oncekey.core.codec import JSON, StoredValue, Tombstone, pack_tombstone, unpack
from oncekey.core.record import Record, State, Step
from oncekey.core.step_format import ARGUMENTS, intent_facts, pack_step, unpack_step
from oncekey.engine.keys.key_status import step_statuses
from oncekey.stores.record_format import pack_steps, unpack_steps


def json_in(envelope: bytes) -> str | None:
    stored = unpack(envelope)
    if isinstance(stored, Tombstone):
        return f'{{"reason": "{stored.reason}", "too_large": {str(stored.too_large).lower()}}}'
    return stored.data.decode() if isinstance(stored, StoredValue) else None


def shown(step: Step) -> dict[str, Any]:
    """The expected row of a step, decoded in Python."""
    facts, envelope = unpack_step(step.body)
    result = {
        "result": json_in(envelope),
        "external_id": facts.get("external_id"),
        "status": facts.get("status"),
    }
    key = facts.get("key")
    intent = {
        "intent": key,
        "quoted_intent": None if key is None else f'"{key}"',
        "child_uuid": facts.get("uuid"),
        "request": json_in(envelope),
    }
    other = dict.fromkeys(intent if step.done else result)
    own = result if step.done else intent
    return {"step": step.name, "done": step.done, "at": at(step.at), **own, **other}


def rows_of(views: ViewsSchema, made: Record) -> list[dict[str, Any]]:
    """The rows of a record's steps, without the record's own columns."""
    rows = views.steps(views.put(made))
    assert [row.pop("number") for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        assert row.pop("id") == UUID(bytes=made.id)
        names = [row.pop(name) for name in ("scope", "operation", "key")]
        assert names == [made.scope, made.operation, made.key]
    return rows


def test_the_steps_view_shows_requests_and_results(views: ViewsSchema, new: NewRecord) -> None:
    now = views.now()
    result = {"external_id": "ch_7 ä€", "status": "201"}
    steps = (
        Step(
            "inventory:reserve", True, pack_step({}, value({"hold": "h_1", "ä": "€"})), now - HOUR
        ),
        Step("payment:charge", True, pack_step(result, value({"paid": True})), now - 2),
        Step("too:large", True, pack_step(result, pack_tombstone("5 MB", too_large=True)), now - 2),
        Step("mail:send", False, pack_step({"key": "ok1-0123456789abcdef"}), now - 1),
        Step("mail:bill", False, pack_step({"key": "ok1-fedc"}, value({"to": "ä@b.example"})), now),
        Step("ecs:run", False, pack_step(intent_facts("ok1-ab", UUID(int=7))), now),
    )
    rows = rows_of(views, new(State.PENDING, steps=steps, key="raw"))
    assert rows == [shown(step) for step in steps]
    assert rows[1]["external_id"] == "ch_7 ä€"
    assert rows[3]["intent"] == "ok1-0123456789abcdef"
    assert rows[3]["quoted_intent"] == '"ok1-0123456789abcdef"'
    assert rows[4]["request"] == '{"to":"ä@b.example"}'
    assert [row["child_uuid"] for row in rows[3:]] == [None, None, str(UUID(int=7))]
    for row, status in zip(rows, step_statuses(steps, JSON), strict=True):  # as `oncekey show` does
        assert (row["intent"], row["external_id"]) == (status.intent, status.external_id)
        assert (row["quoted_intent"], row["status"]) == (status.quoted_intent, status.status)
        assert row["child_uuid"] == status.child_uuid


def test_the_steps_view_hides_internal_steps(views: ViewsSchema, new: NewRecord) -> None:
    one = Step("one", True, pack_step({}, value(1)), 5)
    two = Step("two", False, pack_step({"key": "ok1-abc"}), 6)
    arguments = Step(ARGUMENTS, True, pack_step({"key": "raw"}, value({"order": 1})), 4)
    assert rows_of(views, new(steps=(arguments, one, two))) == [shown(one), shown(two)]
    assert rows_of(views, new(steps=(one, arguments))) == [shown(one)]
    assert rows_of(views, new(steps=(arguments,))) == []


def test_the_steps_view_shows_many_and_large_steps(views: ViewsSchema, new: NewRecord) -> None:
    """A hundred steps of all sizes, larger than a page and than one byte can count."""
    source = random.Random(4)
    now = views.now()
    steps = tuple(
        Step(
            f"{'ä' * (number % 60)}{number}",
            True,
            pack_step({"external_id": "ä" * (number * 3), "status": "ok"}, value("x" * size)),
            now + number,
        )
        for number, size in enumerate(source.choices([0, 1, 255, 256, 65_536, 300_000], k=100))
    )
    assert rows_of(views, new(steps=steps)) == [shown(step) for step in steps]


def test_a_step_whose_result_is_not_json_shows_none(views: ViewsSchema, new: NewRecord) -> None:
    facts = {"external_id": "ch_7"}
    steps = tuple(Step(f"s{n}", True, pack_step(facts, body), n) for n, body in enumerate(NO_JSON))
    rows = rows_of(views, new(steps=steps))
    assert [row["step"] for row in rows] == [step.name for step in steps]
    assert {row["result"] for row in rows} == {None}
    assert {row["external_id"] for row in rows} == {"ch_7"}


def facts_of(text: bytes) -> bytes:
    return b"\x01" + len(text).to_bytes(2, "big") + text + value("v")


DAMAGED = [
    b"",
    b"\x01",
    b"\x01\x00",
    b"\x01\x00\x00",
    b"\x01\x00\x05{}",
    b'\x01\xff\xff{"key": "k", "uuid": "u", "external_id": "e"}',
    b"\x02" + pack_step({"key": "k", "uuid": "u", "external_id": "e"}, value("v"))[1:],
    b"ok1-0123456789abcdef",
    value({"of": "an older release"}),
    facts_of(b""),
    facts_of(b"{"),
    facts_of(b"[1]"),
    facts_of(b"null"),
    facts_of(b'"text"'),
    facts_of(b'{"key": "\xff\xfe"}'),
    facts_of(b'{"key": "\x00"}'),
    facts_of(b'{"uuid": "\xff\xfe"}'),
    random.Random(2).randbytes(100_000),
]
NESTED = facts_of(b"[" * 60_000)


@pytest.mark.parametrize("done", [False, True])
def test_a_step_with_undecodable_bytes_shows_no_values(
    views: ViewsSchema, new: NewRecord, done: bool
) -> None:
    assert [unpack_step(body) for body in DAMAGED] == [({}, b"")] * len(DAMAGED)
    steps = tuple(Step(f"s{n}", done, body, n) for n, body in enumerate([*DAMAGED, NESTED]))
    rows = rows_of(views, new(steps=steps))
    nothing = dict.fromkeys(
        ("result", "intent", "quoted_intent", "child_uuid", "external_id", "status", "request")
    )
    assert rows == [{"step": s.name, "done": done, "at": at(s.at), **nothing} for s in steps]


def test_facts_that_are_not_text_do_not_hide_a_steps_result(
    views: ViewsSchema, new: NewRecord
) -> None:
    """JSON can hold numbers, and a zero byte, which text in PostgreSQL cannot."""
    zero, number = facts_of(b'{"external_id": "a\\u0000b"}'), facts_of(b'{"external_id": 7}')
    sent = Step("c", False, facts_of(b'{"uuid": "a\\u0000b"}'), 0)
    (row,) = rows_of(views, new(steps=(sent,)))
    assert (row["request"], row["child_uuid"]) == ('"v"', None)
    rows = rows_of(views, new(steps=(Step("a", True, zero, 0), Step("b", True, number, 0))))
    assert [(row["result"], row["external_id"]) for row in rows] == [('"v"', None), ('"v"', "7")]


def test_truncated_or_foreign_steps_show_as_a_row_without_a_name(
    views: ViewsSchema, new: NewRecord
) -> None:
    steps = (Step("one", True, pack_step({}, value(1)), 5), Step("two", False, b"", 6))
    whole, first = pack_steps(steps), len(pack_steps(steps[:1]))
    for length in range(1, len(whole)):
        part = whole[:length]
        rows = views.steps(views.put(new(), steps=part))
        readable: list[str | None]
        try:
            readable = [step.name for step in unpack_steps(part)]
        except ValueError:
            readable = ["one", None] if length >= first else [None]
        assert [row["step"] for row in rows] == readable, length
    (row,) = views.steps(views.put(new(), steps=b"\x07"))
    assert (row["step"], row["done"], row["at"], row["result"]) == (None, None, None, None)
