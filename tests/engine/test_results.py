"""Each outcome becomes a result for the caller, or the error to raise."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.engine_parts import parts_with

from oncekey.core.codec import JSON, PLAIN_HEAD, pack_error, pack_tombstone, pack_value
from oncekey.core.effects import AttemptOutcome, Returned
from oncekey.core.errors import (
    InFlight,
    LeaseLost,
    Mismatch,
    NotReplayable,
    OncekeyError,
    OperationFailed,
    OutcomeUnknown,
    StoreUnavailable,
    WaitTimeout,
)
from oncekey.core.events import EventKind
from oncekey.core.fingerprint import VERSION
from oncekey.core.identity import Identities
from oncekey.engine.results import Result, error_of, not_kept, result_of

WHO = Identities().identify("acct", "charge", "very-secret-key")
WHOSE = parts_with().jobs.make("charge", "very-secret-key", "acct", None, None, {})


class CardDeclined(Exception):
    pass


def unkept(body: bytes, raw: object) -> Returned:
    """What a body returned that could not be stored."""
    return Returned(body, 0, raw, kept=False)


@pytest.mark.parametrize(
    ("verdict", "kind", "words"),
    [
        (
            AttemptOutcome(EventKind.MISMATCH, version=VERSION),
            Mismatch,
            "use a new key for a new request",
        ),
        (
            AttemptOutcome(EventKind.MISMATCH, version=VERSION + 1),
            NotReplayable,
            "another release of oncekey",
        ),
        (AttemptOutcome(EventKind.MISMATCH, version=0), NotReplayable, "has format 0"),
        (AttemptOutcome(EventKind.IN_FLIGHT, retry_after=1), InFlight, "retry with the same key"),
        (AttemptOutcome(EventKind.WAIT_TIMEOUT), WaitTimeout, "after the whole wait"),
        (AttemptOutcome(EventKind.UNKNOWN), OutcomeUnknown, "do not use a new key"),
        (AttemptOutcome(EventKind.LOST), LeaseLost, "overtaken"),
        (
            AttemptOutcome(
                EventKind.UNAVAILABLE, error=StoreUnavailable("disk full", ambiguous=False)
            ),
            StoreUnavailable,
            "disk full. Retry with the same key",
        ),
    ],
)
def test_each_outcome_without_a_value_has_its_error(
    verdict: AttemptOutcome, kind: type[OncekeyError], words: str
) -> None:
    error = error_of(WHO, JSON, verdict)
    assert type(error) is kind
    assert isinstance(error, OncekeyError)
    assert str(error).startswith(f"charge [{WHO.tag}]: ")
    assert words in str(error)
    assert "very-secret-key" not in str(error)


def test_retry_after_of_an_error_is_in_seconds() -> None:
    error = error_of(WHO, JSON, AttemptOutcome(EventKind.IN_FLIGHT, retry_after=2_500_000))
    assert isinstance(error, InFlight)
    assert error.retry_after == 2.5


@pytest.mark.parametrize("ambiguous", [True, False])
def test_the_error_of_an_unrecorded_outcome_has_its_value(ambiguous: bool) -> None:
    cause = StoreUnavailable("gone", ambiguous=ambiguous)
    body = pack_value(JSON, ("answer",))
    error = error_of(WHO, JSON, AttemptOutcome(EventKind.UNAVAILABLE, body, error=cause))
    assert isinstance(error, StoreUnavailable)
    assert (error.value, error.ambiguous, error.__cause__) == (["answer"], ambiguous, cause)
    assert "The operation ran, its outcome is not recorded" in str(error)


def test_the_error_of_an_unrecorded_outcome_has_a_value_no_codec_takes_unchanged() -> None:
    raw, cause = object(), StoreUnavailable("gone")
    body = pack_tombstone("no codec", too_large=False)
    error = error_of(
        WHO,
        JSON,
        AttemptOutcome(EventKind.UNAVAILABLE, body, returned=unkept(body, raw), error=cause),
    )
    assert isinstance(error, StoreUnavailable)
    assert error.value is raw


def test_the_error_of_a_failed_claim_has_no_value() -> None:
    error = error_of(
        WHO, JSON, AttemptOutcome(EventKind.UNAVAILABLE, error=StoreUnavailable("gone"))
    )
    assert isinstance(error, StoreUnavailable)
    assert error.value is None
    assert "ran" not in str(error)


def test_the_bodys_own_error_is_raised_as_it_is() -> None:
    own = ValueError("no")
    assert error_of(WHO, JSON, AttemptOutcome(EventKind.LOST, error=own)) is own
    assert error_of(WHO, JSON, AttemptOutcome(EventKind.RELEASED, error=own)) is own
    assert error_of(WHO, JSON, AttemptOutcome(EventKind.UNAVAILABLE, error=own)) is own


def test_a_stored_value_is_decoded() -> None:
    found = result_of(WHOSE, JSON, pack_value(JSON, [1]), True, 2, 7, 3_000_000)
    assert found == Result([1], True, 2, 7, 3.0)


def test_a_stored_failure_is_raised_with_the_first_errors_message() -> None:
    with pytest.raises(OperationFailed, match="failed with CardDeclined: no funds") as caught:
        result_of(WHOSE, JSON, pack_error(CardDeclined("no funds")), True, 1, 7, 0)
    assert (caught.value.error_type, caught.value.error_message) == ("CardDeclined", "no funds")
    assert caught.value.tag == WHO.tag


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (pack_tombstone("it was too big", too_large=True), "cannot be given again: it was too big"),
        (b"", "cannot be given again: the stored outcome is empty"),
        (PLAIN_HEAD + b"{", "cannot be decoded: JSONDecodeError"),
        (PLAIN_HEAD, "cannot be decoded: ValueError: there is no value"),
        (PLAIN_HEAD + b"1 2", "cannot be decoded: ValueError: something follows"),
        (b"\x01\x01\x06pickle", "stored by codec 'pickle', this operation uses 'json'"),
    ],
)
def test_a_stored_outcome_that_cannot_be_read_raises_not_replayable(
    stored: bytes, words: str
) -> None:
    with pytest.raises(NotReplayable, match=words) as caught:
        result_of(WHOSE, JSON, stored, True, 1, 7, 0)
    assert caught.value.operation == "charge"
    assert str(caught.value).count(WHO.tag) == 1


def test_an_error_of_a_users_codec_raises_not_replayable() -> None:
    class Broken:
        name = "json"

        def dump(self, value: Any, /) -> bytes:
            return b""

        def load(self, data: bytes, /) -> Any:
            raise LookupError("lost the schema")

    with pytest.raises(NotReplayable, match="LookupError: lost the schema"):
        result_of(WHOSE, Broken(), PLAIN_HEAD, True, 1, 7, 0)


def test_a_value_too_large_to_store_is_returned_to_the_caller_that_ran_it() -> None:
    body = pack_tombstone("big", too_large=True)
    verdict = AttemptOutcome(
        EventKind.FINISHED, body, attempt=1, fence=7, returned=unkept(body, "large")
    )
    assert not_kept(WHO, verdict) == Result("large", False, 1, 7)


@pytest.mark.parametrize("body", [pack_tombstone("TypeError: no", too_large=False), b"x"])
def test_a_value_no_codec_takes_is_in_the_error(body: bytes) -> None:
    raw = object()
    with pytest.raises(NotReplayable, match="cannot be stored") as caught:
        not_kept(WHO, AttemptOutcome(EventKind.FINISHED, body, returned=unkept(body, raw)))
    assert caught.value.value is raw
