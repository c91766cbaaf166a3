"""What both engines share: options, levels, packing, recovery, results, subscribers."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.core.making import record

from oncekey.core.codec import JSON, Tombstone, pack_error, pack_value, unpack
from oncekey.core.effects import AttemptOutcome, Grant
from oncekey.core.errors import ConfigurationError, InvalidKey, NotReplayable, OperationFailed
from oncekey.core.events import Event, EventKind
from oncekey.core.guarantees import Guarantee, Level
from oncekey.core.policy import Policy
from oncekey.core.record import State
from oncekey.core.recovery import Recovery
from oncekey.engine import jobs as kernels
from oncekey.engine.jobs import Job, Kernel
from oncekey.engine.once_base import make_kernel
from oncekey.engine.replay_cache import CACHE_AGE_MAX_US
from oncekey.engine.results import Result
from oncekey.testing.fake_clock import FakeClock

STRONG = Guarantee(Level.TRANSACTIONAL, "a file")
WEAK = Guarantee(Level.BEST_EFFORT, "it forgets")


def made(guarantee: Guarantee = STRONG, **changes: Any) -> Kernel:
    options: dict[str, Any] = {
        "policy": None,
        "secret": None,
        "codec": None,
        "cache": None,
        "raw_keys": False,
        "clock": FakeClock(),
    }
    return make_kernel(guarantee, **{**options, **changes})


def job(kernel: Kernel, request: Any = None, **options: Any) -> Job:
    return kernel.job("charge", "k", "acct", request, None, options)


def finished(value: Any, **changes: Any) -> AttemptOutcome:
    verdict = AttemptOutcome(
        EventKind.FINISHED, pack_value(JSON, value), State.SUCCEEDED, 1, 7, 10**12
    )
    return verdict._replace(**changes)


def conclude(kernel: Kernel, begun: Job, verdict: AttemptOutcome) -> Result[Any]:
    return kernel.conclude(begun, verdict, kernel.settle(begun, verdict))


class Shout:
    name = "shout"

    def dump(self, value: Any, /) -> bytes:
        return str(value).upper().encode()

    def load(self, data: bytes, /) -> Any:
        return data.decode()


# --- set-up and options -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": {"lease": "5s"}}, "policy must be a Policy, not a dict"),
        ({"cache": -1}, "cache=-1 must be a number of entries"),
        ({"cache": "10"}, "cache='10'"),
        ({"secret": "short"}, "the secret must have"),
        ({"codec": "json"}, "no pydantic model"),
        ({"policy": Policy(require="fenced")}, "requires fenced but would run at at most once"),
    ],
)
def test_mistakes_show_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        made(**options)


def test_a_level_the_store_cannot_give_is_refused_at_construction() -> None:
    with pytest.raises(ConfigurationError, match="it forgets"):
        made(WEAK, policy=Policy(require="at_most_once"))


def test_without_options_the_policy_is_taken_as_it_is() -> None:
    kernel = made(policy=Policy(lease="5s"))
    assert job(kernel).policy is kernel.policy


def test_options_are_worked_out_once() -> None:
    kernel = made()
    first = job(kernel, lease="5s", retry_safe=True).policy
    assert first == Policy(lease="5s", retry_safe=True)
    assert job(kernel, retry_safe=True, lease="5s").policy is first
    assert job(kernel, lease="6s", retry_safe=True).policy is not first


def test_i11_the_memory_of_options_is_bounded() -> None:
    kernel = made()
    for number in range(1, 3 * kernels._POLICIES_MAX):
        assert job(kernel, max_bytes=number).policy.max_bytes == number
        assert len(kernel._policies) <= kernels._POLICIES_MAX


def test_an_unknown_option_is_refused_every_time() -> None:
    kernel = made()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="unknown option ttl; known: lease"):
            job(kernel, ttl="5s")


def test_an_option_that_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="an option has an unusable value"):
        job(made(), recover=[])


def test_an_option_may_not_ask_for_more_than_the_store_gives() -> None:
    kernel = made(WEAK)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="'charge' requires at most once"):
            job(kernel, require="at_most_once")


def test_in_a_transaction_a_raising_body_leaves_nothing_and_nothing_is_cached() -> None:
    inside = made(policy=Policy(lease="5s")).for_transaction()
    assert inside.policy == Policy(lease="5s", retry_safe=True)
    assert job(inside, retry_safe=False, keep="1h").policy.retry_safe
    assert job(inside, require="transactional").policy.required_level is Level.TRANSACTIONAL
    conclude(inside, job(inside), finished(1))
    assert inside.replay("charge", "k", "acct", None, None) is None


def test_a_job_is_validated() -> None:
    with pytest.raises(InvalidKey):
        made().job("charge", "", "acct", None, None, {})
    with pytest.raises(InvalidKey, match="cannot be fingerprinted"):
        made().job("charge", "k", "acct", object(), None, {})
    with pytest.raises(ConfigurationError):
        made().job("charge", "k", "acct", None, "json", {})


def test_raw_keys_reach_the_store_only_when_asked_for() -> None:
    hidden, shown = made(), made(raw_keys=True)
    assert hidden.task(job(hidden)).key == ""
    assert shown.task(job(shown)).key == "k"


def test_each_task_has_an_owner_of_its_own() -> None:
    kernel = made()
    one = job(kernel, recover=print)
    assert kernel.task(one).owner != kernel.task(one).owner
    assert kernel.task(one).recoverable
    assert not kernel.task(job(kernel)).recoverable


# --- the body's result --------------------------------------------------------------------------


def test_a_result_is_packed_up_to_max_bytes_exactly() -> None:
    kernel, body = made(), pack_value(JSON, "answer")
    fits = kernel.pack(JSON, Policy(max_bytes=len(body)), "answer", 5)
    assert fits == (body, 5, None, True)
    too_large = kernel.pack(JSON, Policy(max_bytes=len(body) - 1), "answer", 5)
    assert (too_large.raw, too_large.kept, too_large.deadline) == ("answer", False, 5)
    stone = unpack(too_large.body)
    assert isinstance(stone, Tombstone)
    assert stone.too_large


def test_a_result_no_codec_takes_leaves_a_tombstone() -> None:
    value = object()
    packed = made().pack(JSON, Policy(), value, 5)
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
def test_what_recover_says_is_packed_for_the_flow(
    answer: Recovery, state: State, value: object
) -> None:
    kernel = made()
    found = kernel.recovered(job(kernel), answer)
    assert found is not None
    assert (found.state, found.note) == (state, answer.note)
    expected = {
        State.SUCCEEDED: pack_value(JSON, value),
        State.FAILED: pack_error(RuntimeError(value)),
        State.ABSENT: b"",
    }
    assert found.body == expected[state]


def test_recover_may_not_know() -> None:
    kernel = made()
    assert kernel.recovered(job(kernel), None) is None


@pytest.mark.parametrize("answer", [True, "succeeded", State.SUCCEEDED, {}])
def test_recover_may_say_nothing_else(answer: object) -> None:
    kernel = made()
    with pytest.raises(ConfigurationError, match="recover for 'charge' returned a"):
        kernel.recovered(job(kernel), answer)


def test_recover_is_told_the_key_and_the_child_keys_of_the_dead_attempt() -> None:
    kernel = made()
    unknown = kernel.unknown_key(job(kernel), record(State.UNKNOWN, attempt=2, fence=9))
    assert (unknown.scope, unknown.operation, unknown.key) == ("acct", "charge", "k")
    assert (unknown.attempt, unknown.fence) == (2, 9)
    identity = kernel.identities.identify("acct", "charge", "k")
    assert unknown.child_key("pay") == kernel.identities.child_key(identity, "pay")


# --- the replay cache ---------------------------------------------------------------------------


def test_i3_a_finished_outcome_is_replayed_without_the_store() -> None:
    kernel = made()
    first = conclude(kernel, job(kernel, request={"c": 1}), finished({"id": 1}))
    again = kernel.replay("charge", "k", "acct", {"c": 1}, None)
    assert again is not None
    assert (first.replayed, again.replayed) == (False, True)
    assert (again.value, again.attempt, again.fence) == ({"id": 1}, 1, 7)


def test_a_stored_failure_is_replayed_without_the_store() -> None:
    kernel = made()
    body = pack_error(ValueError("no"))
    verdict = AttemptOutcome(EventKind.REPLAYED, body, State.FAILED, 1, 7, 10**12)
    with pytest.raises(OperationFailed) as first:
        conclude(kernel, job(kernel), verdict)
    with pytest.raises(OperationFailed) as again:
        kernel.replay("charge", "k", "acct", None, None)
    assert (first.value.error_type, first.value.error_message) == ("ValueError", "no")
    assert vars(again.value) == vars(first.value)


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
def test_i7_i8_the_cache_answers_for_nothing_else(asked: tuple[Any, Any, Any, Any]) -> None:
    kernel = made()
    conclude(kernel, job(kernel, request={"c": 1}), finished(1))
    assert kernel.replay(*asked, None) is None


@pytest.mark.parametrize("expires_in", [5_000, CACHE_AGE_MAX_US, 10 * CACHE_AGE_MAX_US])
def test_a_cached_outcome_holds_as_long_as_its_record_and_a_minute_at_most(
    expires_in: int,
) -> None:
    clock = FakeClock()
    kernel = made(clock=clock)
    begun = job(kernel)
    clock.advance(1_000)  # the run took a while; the record's time is counted from before it
    conclude(kernel, begun, finished(1, expires_in=expires_in))
    clock.advance(min(expires_in, CACHE_AGE_MAX_US) - 1_001)
    assert kernel.replay("charge", "k", "acct", None, None) is not None
    clock.advance(1)
    assert kernel.replay("charge", "k", "acct", None, None) is None


def test_a_cached_outcome_of_another_codec_is_refused_not_guessed() -> None:
    kernel, codec = made(), Shout()
    shouted = finished(1, body=pack_value(codec, "hey"))
    begun = kernel.job("charge", "k", "acct", None, codec, {})
    assert conclude(kernel, begun, shouted).value == "HEY"
    with pytest.raises(NotReplayable, match="stored by codec 'shout'"):
        kernel.replay("charge", "k", "acct", None, None)


def test_an_outcome_is_remembered_also_when_nobody_waits_for_it_any_more() -> None:
    kernel = made()
    kernel.settle(job(kernel), finished(1))
    again = kernel.replay("charge", "k", "acct", None, None)
    assert again is not None
    assert again.value == 1


@pytest.mark.parametrize(
    "kind", [EventKind.LOST, EventKind.RELEASED, EventKind.UNAVAILABLE, EventKind.UNKNOWN]
)
def test_only_finished_outcomes_are_remembered(kind: EventKind) -> None:
    kernel = made()
    assert kernel.settle(job(kernel), finished(1, kind=kind)) is None
    assert len(kernel.cache) == 0


def test_the_bodys_own_error_is_raised_again_and_not_remembered() -> None:
    kernel, own = made(), ValueError("no")
    with pytest.raises(ValueError) as caught:
        conclude(
            kernel, job(kernel), AttemptOutcome(EventKind.FINISHED, state=State.FAILED, error=own)
        )
    assert caught.value is own
    assert len(kernel.cache) == 0


def test_an_empty_stored_outcome_is_told_as_unreadable() -> None:
    kernel = made()
    verdict = AttemptOutcome(EventKind.REPLAYED, b"", State.SUCCEEDED, 1, 7, 10**12)
    with pytest.raises(NotReplayable, match="empty or cut short"):
        conclude(kernel, job(kernel), verdict)


# --- subscribers --------------------------------------------------------------------------------


def test_subscribers_are_told_until_they_leave() -> None:
    clock = FakeClock()
    kernel = made(clock=clock)
    told: list[Event] = []
    leave = kernel.subscribe(told.append)
    begun = job(kernel)
    clock.advance(250)
    conclude(kernel, begun, finished(1))
    kernel.replay("charge", "k", "acct", None, None)
    leave()
    leave()
    kernel.replay("charge", "k", "acct", None, None)
    tag = begun.identity.tag
    assert told == [
        Event(EventKind.FINISHED, "charge", "acct", tag, 7, 1, 250),
        Event(EventKind.REPLAYED, "charge", "acct", tag, 7, 1, 0, from_cache=True),
    ]


@pytest.mark.parametrize("taken_over", [True, False])
def test_subscribers_are_told_of_claims_and_takeovers(taken_over: bool) -> None:
    kernel = made()
    told: list[EventKind] = []
    kernel.subscribe(lambda notice: told.append(notice.kind))
    kernel.tell_claimed(job(kernel), Grant(b"", b"", 7, 1, 1, 1, (), taken_over))
    assert told == [EventKind.TAKEOVER if taken_over else EventKind.CLAIMED]


def test_a_broken_subscriber_is_logged_and_breaks_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kernel = made()
    told: list[Event] = []

    def broken(notice: Event) -> None:
        raise RuntimeError("no metrics today")

    kernel.subscribe(broken)
    kernel.subscribe(told.append)
    with caplog.at_level(logging.ERROR, logger="oncekey"):
        assert conclude(kernel, job(kernel), finished(5)).value == 5
    assert len(told) == 1, "the others are told all the same"
    assert "a subscriber failed on finished" in caplog.text
    assert "no metrics today" in caplog.text
    assert "acct" not in caplog.text
