"""Values are packed, finished outcomes are cached and replayed, subscribers get events."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from tests.core.sample_records import record
from tests.engine.engine_parts import parts_with

from oncekey import Once
from oncekey.core.codec import JSON, Tombstone, pack_error, pack_value, unpack
from oncekey.core.effects import AttemptOutcome, Returned
from oncekey.core.errors import ConfigurationError, NotReplayable, OperationFailed
from oncekey.core.events import Event, EventKind
from oncekey.core.policy import Policy
from oncekey.core.record import State
from oncekey.core.recovery import Recovery
from oncekey.engine.attempts.attempt_outcomes import CACHE_AGE_MAX_US, pack
from oncekey.engine.jobs import Job
from oncekey.engine.once_base import EngineParts
from oncekey.engine.results import Result, conclude
from oncekey.stores.memory import MemoryStore
from oncekey.testing.fake_clock import FakeClock


def job(parts: EngineParts, request: Any = None, **options: Any) -> Job:
    return parts.jobs.make("charge", "k", "acct", request, None, options)


def finished(value: Any, **changes: Any) -> AttemptOutcome:
    outcome = AttemptOutcome(
        EventKind.FINISHED, pack_value(JSON, value), State.SUCCEEDED, 1, 7, 10**12
    )
    return replace(outcome, **changes)


def concluded(parts: EngineParts, begun: Job, outcome: AttemptOutcome) -> Result[Any]:
    parts.outcomes.record(begun, outcome)
    return conclude(begun, outcome)


class Shout:
    name = "shout"

    def dump(self, value: Any, /) -> bytes:
        return str(value).upper().encode()

    def load(self, data: bytes, /) -> Any:
        return data.decode()


# --- packing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "loaded"),
    [
        ("text", "text"),
        (7, 7),
        (None, None),
        (0.5, 0.5),
        ({"a": [1]}, {"a": [1]}),
        ([{}], [{}]),
        ((1,), [1]),
    ],
)
def test_the_caller_of_plain_json_gets_what_a_retry_reads(value: Any, loaded: Any) -> None:
    packed = pack(JSON, Policy(), value, 5)
    assert (packed.exact, packed.raw) == (True, loaded)


def test_i3_a_value_that_its_holder_changes_later_stays_as_it_was_stored() -> None:
    value: dict[str, list[int]] = {"charges": [1]}
    packed = pack(JSON, Policy(), value, 5)
    value["charges"].append(2)
    assert packed.raw == {"charges": [1]}
    assert packed.body == pack_value(JSON, {"charges": [1]})


def test_a_users_codec_says_whether_its_values_are_read_back() -> None:
    class Exact(Shout):
        exact = True

    assert not pack(Shout(), Policy(), "a", 5).exact
    assert pack(Exact(), Policy(), "a", 5).exact


def test_a_value_of_exactly_max_bytes_is_packed() -> None:
    body = pack_value(JSON, "answer")
    fits = pack(JSON, Policy(max_bytes=len(body)), "answer", 5)
    assert fits == Returned(body, 5, "answer", kept=True, exact=True)
    too_large = pack(JSON, Policy(max_bytes=len(body) - 1), "answer", 5)
    assert (too_large.raw, too_large.kept, too_large.deadline) == ("answer", False, 5)
    stone = unpack(too_large.body)
    assert isinstance(stone, Tombstone)
    assert stone.too_large


def test_a_value_no_codec_takes_is_packed_as_a_tombstone() -> None:
    value = object()
    packed = pack(JSON, Policy(), value, 5)
    assert packed.raw is value
    stone = unpack(packed.body)
    assert isinstance(stone, Tombstone)
    assert not stone.too_large
    assert stone.reason.startswith("TypeError: a object is no plain JSON value")


@pytest.mark.parametrize(
    ("answer", "state", "value"),
    [
        (Recovery.succeeded({"id": 1}), State.SUCCEEDED, {"id": 1}),
        (Recovery.failed("declined"), State.FAILED, "declined"),
        (Recovery.free(), State.ABSENT, None),
    ],
)
def test_the_recovery_that_recover_returns_is_packed(
    answer: Recovery, state: State, value: object
) -> None:
    parts = parts_with()
    found = parts.outcomes.recovered(job(parts), answer)
    assert found is not None
    assert (found.state, found.note) == (state, answer.note)
    expected = {
        State.SUCCEEDED: pack_value(JSON, value),
        State.FAILED: pack_error(RuntimeError(value)),
        State.ABSENT: b"",
    }
    assert found.body == expected[state]


def test_a_recover_that_returns_none_decides_nothing() -> None:
    parts = parts_with()
    assert parts.outcomes.recovered(job(parts), None) is None


@pytest.mark.parametrize("answer", [True, "succeeded", State.SUCCEEDED, {}])
def test_a_recover_that_returns_anything_else_raises(answer: object) -> None:
    parts = parts_with()
    with pytest.raises(ConfigurationError, match="recover for 'charge' returned a"):
        parts.outcomes.recovered(job(parts), answer)


def test_recover_gets_the_key_and_the_child_keys_of_the_dead_attempt() -> None:
    parts = parts_with()
    unknown = parts.outcomes.unknown_key(job(parts), record(State.UNKNOWN, attempt=2, fence=9))
    assert (unknown.scope, unknown.operation, unknown.key) == ("acct", "charge", "k")
    assert (unknown.attempt, unknown.fence) == (2, 9)
    identity = parts.jobs.identities.identify("acct", "charge", "k")
    assert unknown.child_key("pay") == parts.jobs.identities.child_key(identity, "pay")


# --- the replay cache ----------------------------------------------------------------------------


def test_i3_a_finished_outcome_is_replayed_without_the_store() -> None:
    parts = parts_with()
    first = concluded(parts, job(parts, request={"c": 1}), finished({"id": 1}))
    again = parts.outcomes.replay("charge", "k", "acct", {"c": 1}, None)
    assert again is not None
    assert (first.replayed, again.replayed) == (False, True)
    assert (again.value, again.attempt, again.fence) == ({"id": 1}, 1, 7)


def test_a_stored_failure_is_asked_of_the_store_each_time() -> None:
    """An operator may release it in another process; then the next call runs, here too."""
    parts = parts_with()
    body = pack_error(ValueError("no"))
    outcome = AttemptOutcome(EventKind.REPLAYED, body, State.FAILED, 1, 7, 10**12)
    with pytest.raises(OperationFailed) as caught:
        concluded(parts, job(parts), outcome)
    assert (caught.value.error_type, caught.value.error_message) == ("ValueError", "no")
    assert parts.outcomes.replay("charge", "k", "acct", None, None) is None


def test_a_failed_key_that_another_process_has_released_runs_at_the_next_call() -> None:
    store = MemoryStore()
    here, operator = Once(store), Once(store)

    def fails(attempt: object) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        here.run("charge", "k", fails)
    with pytest.raises(OperationFailed):
        here.run("charge", "k", fails)
    status = operator.get("charge", "k")
    assert status is not None
    operator.release(status, by="ana", why="mended")
    assert here.run("charge", "k", lambda attempt: "ran").value == "ran"
    here.close()
    operator.close()


@pytest.mark.parametrize(
    "asked",
    [
        ("charge", "k", "acct", {"c": 2}),
        ("charge", "k", "acct", None),
        ("charge", "k", "other", {"c": 1}),
        ("refund", "k", "acct", {"c": 1}),
        ("charge", "k2", "acct", {"c": 1}),
        ("charge", 5, "acct", {"c": 1}),
    ],
)
def test_i7_i8_another_key_or_request_is_not_replayed_from_the_cache(
    asked: tuple[Any, Any, Any, Any],
) -> None:
    parts = parts_with()
    concluded(parts, job(parts, request={"c": 1}), finished(1))
    assert parts.outcomes.replay(*asked, None) is None


@pytest.mark.parametrize("expires_in", [5_000, CACHE_AGE_MAX_US, 10 * CACHE_AGE_MAX_US])
def test_a_cached_outcome_is_valid_until_its_record_expires_and_a_minute_at_most(
    expires_in: int,
) -> None:
    clock = FakeClock()
    parts = parts_with(clock=clock)
    begun = job(parts)
    clock.advance(1_000)  # the run took a while; the record's time is counted from before it
    concluded(parts, begun, finished(1, expires_in=expires_in))
    clock.advance(min(expires_in, CACHE_AGE_MAX_US) - 1_001)
    assert parts.outcomes.replay("charge", "k", "acct", None, None) is not None
    clock.advance(1)
    assert parts.outcomes.replay("charge", "k", "acct", None, None) is None


def test_a_cached_outcome_of_another_codec_is_refused() -> None:
    parts, codec = parts_with(), Shout()
    shouted = finished(1, body=pack_value(codec, "hey"))
    begun = parts.jobs.make("charge", "k", "acct", None, codec, {})
    assert concluded(parts, begun, shouted).value == "HEY"
    with pytest.raises(NotReplayable, match="stored by codec 'shout'"):
        parts.outcomes.replay("charge", "k", "acct", None, None)


def test_an_outcome_is_cached_also_if_its_caller_has_left() -> None:
    parts = parts_with()
    parts.outcomes.record(job(parts), finished(1))
    again = parts.outcomes.replay("charge", "k", "acct", None, None)
    assert again is not None
    assert again.value == 1


@pytest.mark.parametrize(
    "kind", [EventKind.LOST, EventKind.RELEASED, EventKind.UNAVAILABLE, EventKind.UNKNOWN]
)
def test_an_unfinished_outcome_is_not_cached(kind: EventKind) -> None:
    parts = parts_with()
    parts.outcomes.record(job(parts), finished(1, kind=kind))
    assert len(parts.outcomes.cache) == 0


def test_the_bodys_own_error_is_raised_and_not_cached() -> None:
    parts, own = parts_with(), ValueError("no")
    with pytest.raises(ValueError) as caught:
        concluded(
            parts, job(parts), AttemptOutcome(EventKind.FINISHED, state=State.FAILED, error=own)
        )
    assert caught.value is own
    assert len(parts.outcomes.cache) == 0


def test_an_empty_stored_outcome_raises_not_replayable() -> None:
    parts = parts_with()
    outcome = AttemptOutcome(EventKind.REPLAYED, b"", State.SUCCEEDED, 1, 7, 10**12)
    with pytest.raises(NotReplayable, match="empty or cut short"):
        concluded(parts, job(parts), outcome)


# --- subscribers ---------------------------------------------------------------------------------


def test_a_subscriber_gets_events_until_it_unsubscribes() -> None:
    clock = FakeClock()
    parts = parts_with(clock=clock)
    events: list[Event] = []
    leave = parts.outcomes.events.subscribe(events.append)
    begun = job(parts)
    clock.advance(250)
    concluded(parts, begun, finished(1))
    parts.outcomes.replay("charge", "k", "acct", None, None)
    leave()
    leave()
    parts.outcomes.replay("charge", "k", "acct", None, None)
    tag = begun.identity.tag
    assert events == [
        Event(EventKind.FINISHED, "charge", "acct", tag, 7, 1, 250),
        Event(EventKind.REPLAYED, "charge", "acct", tag, 7, 1, 0, from_cache=True),
    ]


def test_a_subscriber_that_raises_is_logged_and_does_not_affect_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = parts_with()
    events: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("no metrics today")

    parts.outcomes.events.subscribe(broken)
    parts.outcomes.events.subscribe(events.append)
    with caplog.at_level(logging.ERROR, logger="oncekey"):
        assert concluded(parts, job(parts), finished(5)).value == 5
    assert len(events) == 1, "the others get the event all the same"
    assert "a subscriber failed on finished" in caplog.text
    assert "no metrics today" in caplog.text
    assert "acct" not in caplog.text
