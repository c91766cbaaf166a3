"""What tells a redriven message from an ordinary duplicate, and that each redrive opens once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.sample_records import KEEP, NOW, record, records, times

from oncekey.core.record import Record, State
from oncekey.queues import DeadLetter, Message
from oncekey.queues.redrive import (
    ERROR_HEADER,
    FENCE_HEADER,
    HEADERS,
    REDRIVE_HEADER,
    REDRIVE_ID_MAX_CHARS,
    TRIES_HEADER,
    Redrive,
    headers_of,
    redrive_of,
    without_marks,
)

LETTER = DeadLetter("Terminal: no such order", fence=77, tries=3)


def returned(headers: dict[str, str]) -> Message:
    return Message(b"", "orders", headers)


def test_a_dead_letter_that_comes_back_is_recognised_by_its_own_headers() -> None:
    headers = headers_of(LETTER)
    assert headers[ERROR_HEADER] == "Terminal: no such order"
    assert redrive_of(returned(headers)) == Redrive("", 77, 3)


def test_an_ordinary_message_has_no_marks() -> None:
    assert redrive_of(returned({})) is None
    assert redrive_of(returned(headers_of(DeadLetter("Mismatch: another request")))) is None


@pytest.mark.parametrize("text", ["", "-1", "7.5", "seven", "1" * 20, " 7", "0"])
def test_a_fence_that_is_no_number_marks_nothing(text: str) -> None:
    assert redrive_of(returned({FENCE_HEADER: text})) is None


@given(st.dictionaries(st.sampled_from([*HEADERS, "order-id"]), st.text(max_size=200)))
def test_any_headers_are_read_and_their_marks_can_be_taken_off(headers: dict[str, str]) -> None:
    redrive = redrive_of(returned(headers))
    if redrive is not None:
        assert len(redrive.id) <= REDRIVE_ID_MAX_CHARS
        assert redrive.id.isprintable()
        assert redrive.fence >= 0
    assert redrive_of(returned(without_marks(headers))) is None


# --- what is opened -------------------------------------------------------------------------------


def test_the_failed_fence_opens_its_own_record_only() -> None:
    redrive = Redrive("", 77, 3)
    assert redrive.opens(record(State.FAILED, fence=77), NOW)
    assert not redrive.opens(record(State.FAILED, fence=78), NOW)
    assert not redrive.opens(None, NOW)


@given(st.none() | records(), times, st.builds(Redrive, st.sampled_from(["", "a"]), times, times))
def test_i1_only_a_key_that_is_failed_now_is_ever_opened(
    found: Record | None, now: int, redrive: Redrive
) -> None:
    if redrive.opens(found, now):
        assert found is not None
        assert found.state is State.FAILED
        assert redrive.id or redrive.fence == found.fence


def test_a_failed_key_whose_time_is_over_needs_no_opening() -> None:
    assert not Redrive("", 77, 3).opens(record(State.FAILED, fence=77), NOW + KEEP + 1)


@given(st.text(min_size=1, max_size=30))
def test_i1_an_id_opens_a_key_once(text: str) -> None:
    redrive = redrive_of(returned({REDRIVE_HEADER: text}))
    if redrive is None:
        assert not text.strip()
        return
    failed = record(State.FAILED, attempt=4)
    assert redrive.opens(failed, NOW)
    noted = failed._replace(note=f"by consumer: {redrive.why(failed)}\n", fence=failed.fence + 1)
    assert not redrive.opens(noted, NOW)
    assert redrive.tries_before(noted) == 4
    other = redrive._replace(id=redrive.id + "x")
    assert other.opens(noted, NOW)


def test_tries_are_counted_anew_after_a_redrive() -> None:
    redrive = redrive_of(returned({**headers_of(LETTER), TRIES_HEADER: "3"}))
    assert redrive is not None
    freed = record(State.ABSENT, note="an operator released: by hand")
    assert redrive.tries_before(freed) == 3


def test_i11_the_number_of_tries_in_a_header_is_not_believed_by_itself() -> None:
    """Whoever sends messages could send them with one, and they would be tried for ever."""
    redrive = redrive_of(returned({**headers_of(LETTER), TRIES_HEADER: "999999999"}))
    assert redrive is not None
    assert redrive.tries_before(None) == 0
    assert redrive.tries_before(record(State.PENDING)) == 0
