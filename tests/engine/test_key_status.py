"""The status of a key as `get` returns it, for each state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from tests.core.sample_records import record

from oncekey.core.codec import (
    JSON,
    Codec,
    pack_error,
    pack_tombstone,
    pack_value,
)
from oncekey.core.commands import Seen
from oncekey.core.record import State, Step
from oncekey.core.step_format import ARGUMENTS, StepStatus, intent_facts, pack_step
from oncekey.core.typed_codecs import DataclassCodec
from oncekey.engine.keys.key_status import KeyStatus, status_of

NOW = 1_700_000_000_123_456
THEN = datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=UTC)
US = timedelta(microseconds=1)


def status(state: State = State.PENDING, *, now: int = NOW, **changes: Any) -> KeyStatus:
    ended = state in (State.SUCCEEDED, State.FAILED, State.UNKNOWN)
    times = {"created_at": NOW, "lease_until": NOW + 50, "finished_at": NOW if ended else 0}
    made = status_of(Seen(record(state, **{**times, "body": b"", **changes}), now), JSON)
    assert made is not None
    return made


def test_a_key_never_seen_or_freed_has_no_status() -> None:
    assert status_of(Seen(None, NOW), JSON) is None
    assert status_of(Seen(record(State.ABSENT), NOW), JSON) is None


def test_a_running_key_shows_its_lease_and_attempt() -> None:
    shown = status(note="n")
    assert shown == KeyStatus(
        state="pending",
        operation="charge",
        scope="acct",
        tag="69" * 6,
        attempt=1,
        fence=record().fence,
        created_at=THEN,
        lease_until=THEN + 50 * US,
        finished_at=None,
        expires_at=None,
        expired=False,
        value=None,
        error=None,
        note="n",
        steps=(),
        id="69" * 16,
        seen_at=status().seen_at,
    )


def test_a_succeeded_key_shows_its_value() -> None:
    shown = status(State.SUCCEEDED, body=pack_value(JSON, {"id": 1}))
    assert (shown.state, shown.value, shown.error) == ("succeeded", {"id": 1}, None)
    assert shown.finished_at == THEN


def test_a_failed_key_shows_its_error() -> None:
    shown = status(State.FAILED, body=pack_error(ValueError("declined")))
    assert (shown.state, shown.value, shown.error) == ("failed", None, "ValueError: declined")


def test_an_unknown_key_shows_as_unknown() -> None:
    assert status(State.UNKNOWN).state == "unknown"


def test_a_key_whose_lease_ended_shows_as_unknown_before_the_next_claim() -> None:
    assert status(lease_until=NOW).state == "unknown"
    assert status(lease_until=NOW, retry_safe=True).state == "pending"


@pytest.mark.parametrize("state", [State.PENDING, State.SUCCEEDED, State.UNKNOWN])
def test_an_expired_key_shows_its_last_state(state: State) -> None:
    ends = record(state, lease_until=NOW + 50, finished_at=0 if state == 1 else NOW).expires_at
    assert not status(state, now=ends - 1).expired
    shown = status(state, now=ends)
    assert (shown.expired, shown.state) == (True, state.name.lower())


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (pack_tombstone("too big", too_large=True), "too big"),
        (
            b"\x01\x01\x05otherdata",
            "was stored by codec 'other', which only its application can read",
        ),
        (b"\x01\x01\x04json{", "cannot be decoded: JSONDecodeError"),
        (b"\x07", "empty or cut short"),
    ],
)
def test_a_value_that_cannot_be_shown_is_replaced_by_the_reason(body: bytes, error: str) -> None:
    shown = status(State.SUCCEEDED, body=body)
    assert shown.value is None
    assert shown.error is not None
    assert error in shown.error


@dataclass
class Charge:
    id: str
    cents: int


@pytest.mark.parametrize("codec", [JSON, DataclassCodec(Charge)])
def test_a_value_of_another_built_in_codec_shows_as_plain_json(codec: Codec) -> None:
    body = pack_value(DataclassCodec(Charge), Charge("ch_1", 500))
    charge = {"id": "ch_1", "cents": 500}
    step = Step("pay", True, pack_step({}, body), NOW)
    stored = record(State.SUCCEEDED, body=body, steps=(step,))
    shown = status_of(Seen(stored, NOW), codec)
    assert shown is not None
    # The class that a step's value was written for is not known here.
    assert shown.steps == (StepStatus("pay", True, datetime.fromtimestamp(NOW / 1e6, UTC), charge),)
    assert shown.value == (charge if codec is JSON else Charge("ch_1", 500))


def test_steps_are_shown_with_their_results() -> None:
    facts = {"external_id": "ch_1", "status": "201"}
    done = Step("a", True, pack_step(facts, pack_value(JSON, {"id": "ch_1"})), NOW)
    begun = Step("b", False, pack_step({"key": "ok1-abc"}), NOW + 1)
    sent = pack_step({"key": "ok1-def"}, pack_value(JSON, {"cents": 5}))
    both = Step("d", False, pack_step(intent_facts("ok1-d", UUID(int=7))), NOW)
    assert status(steps=(done, begun, Step("c", False, sent, NOW), both)).steps == (
        StepStatus("a", True, THEN, value={"id": "ch_1"}, external_id="ch_1", status="201"),
        StepStatus("b", False, THEN + US, intent="ok1-abc"),
        StepStatus("c", False, THEN, intent="ok1-def", request={"cents": 5}),
        StepStatus("d", False, THEN, intent="ok1-d", child_uuid=str(UUID(int=7))),
    )


def test_the_arguments_of_an_operation_are_shown_and_are_no_step() -> None:
    body = pack_step({"key": "order-1"}, pack_value(JSON, {"cents": 5}))
    shown = status(steps=(Step(ARGUMENTS, True, body, NOW),))
    assert (shown.steps, shown.arguments) == ((), {"cents": 5})


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "empty or cut short"),
        (b"\x07\x00\x00", "empty or cut short"),
        (b"\x01\xff\xff{}", "empty or cut short"),
        (b"\x01\x00\x02[]", "empty or cut short"),
        (pack_step({}, b"\xff\xfe\x00"), "format 255"),
        (pack_step({}, b"\x01\x01\x04json\xff\xfe"), "cannot be decoded"),
        (pack_step({}, b"\x01\x01\x05other\x00\x01"), "codec 'other'"),
        (pack_step({}, pack_tombstone("more than 10 bytes", too_large=True)), "more than 10 bytes"),
    ],
)
def test_a_step_whose_bytes_cannot_be_read_says_why(body: bytes, error: str) -> None:
    (step,) = status(steps=(Step("a", True, body, NOW),)).steps
    assert (step.done, step.value) == (True, None)
    assert step.error is not None
    assert error in step.error


def test_an_intent_of_any_bytes_can_be_shown() -> None:
    (step,) = status(steps=(Step("a", False, b"k\xff", NOW),)).steps
    assert (step.intent, step.child_uuid) == ("", None)
