"""The table from how an attempt ended to what becomes of its message: total, and safe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.sample_records import NOW, record, records, times

from oncekey import (
    InFlight,
    InvalidKey,
    Mismatch,
    MissingKey,
    NotStarted,
    OperationFailed,
    OutcomeUnknown,
    StoreUnavailable,
    Terminal,
    WaitTimeout,
)
from oncekey.core.codec import pack_error
from oncekey.core.commands import Seen
from oncekey.core.record import Record, State
from oncekey.core.state_machine import state_now
from oncekey.queues.disposition import (
    ERROR_MAX_CHARS,
    FOLLOWS,
    HIDE_MARGIN_S,
    STOPPED,
    ConsumerStops,
    Kind,
    backoff_s,
    by_error,
    by_record,
    describe,
)

RAISED = ValueError("the van is full")
FAILED_ODDLY = Seen(
    record(State.FAILED, body=pack_error(Terminal("no file caf\udce9.txt \0"))), NOW
)
BY_STATE = {
    State.ABSENT: Kind.RETRY,
    State.PENDING: Kind.HIDE,
    State.SUCCEEDED: Kind.REMOVE,
    State.FAILED: Kind.DEAD_LETTER,
    State.UNKNOWN: Kind.PARK,
}


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InFlight("busy", retry_after=7.0), Kind.HIDE),
        (WaitTimeout("busy", retry_after=7.0), Kind.HIDE),
        (Mismatch("another request"), Kind.DEAD_LETTER),
        (MissingKey("no key"), Kind.DEAD_LETTER),
        (InvalidKey("too long"), Kind.DEAD_LETTER),
        (OutcomeUnknown("who knows"), Kind.PARK),
        (StoreUnavailable("down"), Kind.GIVE_BACK),
        (ConsumerStops("stop"), Kind.GIVE_BACK),
        (KeyboardInterrupt(), Kind.GIVE_BACK),
        (SystemExit(1), Kind.GIVE_BACK),
    ],
)
def test_errors_that_are_clear_by_themselves(error: BaseException, kind: Kind) -> None:
    found = by_error(error)
    assert found is not None
    assert found.kind is kind


@pytest.mark.parametrize(
    "error", [RAISED, Terminal("no"), NotStarted("later"), OperationFailed("stored")]
)
def test_other_errors_leave_it_to_the_record(error: Exception) -> None:
    assert by_error(error) is None


def test_in_flight_elsewhere_is_hidden_for_the_rest_of_that_lease() -> None:
    found = by_error(InFlight("busy", retry_after=7.0))
    assert found is not None
    assert found.seconds == 7.0 + HIDE_MARGIN_S


@given(st.none() | records(), times)
def test_i10_every_record_leads_to_one_disposition(found: Record | None, now: int) -> None:
    disposition = by_record(Seen(found, now), RAISED, 3.0)
    assert disposition.kind is BY_STATE[state_now(found, now)]
    if disposition.kind is Kind.RETRY:
        assert disposition.seconds == 3.0
    if disposition.kind is Kind.HIDE:
        assert found is not None
        left = max(0, found.lease_until - now) / 1_000_000
        assert disposition.seconds == pytest.approx(left + HIDE_MARGIN_S)


@given(st.none() | records(), times)
def test_i4_a_message_is_removed_or_moved_only_if_its_record_says_so_durably(
    found: Record | None, now: int
) -> None:
    disposition = by_record(Seen(found, now), RAISED, 3.0)
    is_out = disposition.kind in (Kind.REMOVE, Kind.DEAD_LETTER, Kind.PARK)
    assert is_out == disposition.lets_pass
    if is_out:
        assert state_now(found, now) in (State.SUCCEEDED, State.FAILED, State.UNKNOWN)


def test_a_dead_letter_has_the_stored_error_and_the_failed_fence() -> None:
    failed = record(State.FAILED, body=pack_error(Terminal("no such\norder")), attempt=3, fence=77)
    letter = by_record(Seen(failed, NOW), RAISED, 1.0).dead_letter
    assert letter is not None
    assert (letter.error, letter.fence, letter.tries) == ("Terminal: no such order", 77, 3)


def test_a_stored_error_that_cannot_be_read_gives_way_to_the_one_at_hand() -> None:
    letter = by_record(Seen(record(State.FAILED, body=b"?"), NOW), RAISED, 1.0).dead_letter
    assert letter is not None
    assert letter.error == "ValueError: the van is full"


def test_a_mismatch_names_no_failed_record_so_a_redrive_opens_nothing() -> None:
    found = by_error(Mismatch("another request"))
    assert found is not None
    assert found.dead_letter is not None
    assert (found.dead_letter.fence, found.dead_letter.tries) == (0, 0)


@given(st.text(max_size=2 * ERROR_MAX_CHARS))
def test_a_described_error_is_one_short_line(text: str) -> None:
    said = describe(ValueError(text))
    assert len(said) <= ERROR_MAX_CHARS
    assert said.splitlines() in ([said], [])
    assert said.startswith("ValueError:")


def test_an_error_with_bytes_of_a_file_name_fits_into_a_header() -> None:
    """Text with half a surrogate pair cannot be sent, so its message could not leave the queue."""
    letter = by_record(FAILED_ODDLY, ValueError("x"), 1.0).dead_letter
    assert letter is not None
    assert letter.error == r"Terminal: no file caf\udce9.txt \x00"
    assert describe(Terminal("no file caf\udce9.txt \0")) == letter.error


def test_an_error_without_words_is_described_too() -> None:
    assert describe(Mute()) == "Mute: (this error has no readable message)"
    assert by_record(Seen(None, NOW), Mute(), 1.0).kind is Kind.RETRY


@given(st.integers(-5, 10_000), st.floats(0, 1e6), st.floats(0, 1e9))
def test_the_backoff_grows_from_the_first_to_the_longest_wait(
    tries: int, first: float, most: float
) -> None:
    wait = backoff_s(tries, first, most)
    assert 0 <= wait <= most
    assert backoff_s(tries + 1, first, most) >= wait


def test_the_backoff_doubles() -> None:
    assert [backoff_s(tries, 1.0, 60.0) for tries in (1, 2, 3, 4, 9)] == [1.0, 2.0, 4.0, 8.0, 60.0]


def test_what_is_given_back_holds_up_its_group() -> None:
    assert not STOPPED.lets_pass
    assert not FOLLOWS.lets_pass
