"""One delivery of a message, from its key to its disposition, driven by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.sample_records import NOW, record

from oncekey import (
    InFlight,
    KeyChanged,
    Once,
    OperationFailed,
    StoreUnavailable,
    Terminal,
)
from oncekey.core.codec import pack_error
from oncekey.core.commands import Seen
from oncekey.core.record import State
from oncekey.queues import BrokerFacts, Disposition, Kind, Message, TooManyTries
from oncekey.queues.consumer_settings import ConsumerPlan, ConsumerSettings, plan_of
from oncekey.queues.delivery_flow import (
    FreeKey,
    LookAtKey,
    RunHandler,
    check_tries,
    delivery,
    raised,
)
from oncekey.queues.redrive import FENCE_HEADER, REDRIVE_HEADER, TRIES_HEADER

DOWN = StoreUnavailable("down")
FAILED = record(State.FAILED, fence=77, attempt=3, body=pack_error(Terminal("no such order")))
RETURNED = {FENCE_HEADER: "77", TRIES_HEADER: "3"}


def plan(**changes: Any) -> ConsumerPlan:
    given: dict[str, Any] = {"name": "ship", "key": "json:$.id", "options": {}}
    settings = ConsumerSettings(**{**given, **changes})
    with Once("memory://") as once:
        return plan_of(settings, BrokerFacts("orders"), once, "shipping/orders")


def drive(
    results: list[object], headers: dict[str, str] | None = None, **more: Any
) -> tuple[list[object], Disposition]:
    """Sends these results to the flow of one message; its effects and what it came to."""
    found = Message(b'{"id": "o1"}', "orders", headers or {}, "m1", **more)
    flow = delivery(found, plan())
    effects: list[object] = []
    result: object = None
    try:
        while True:
            effects.append(flow.send(result))
            result = results.pop(0)
    except StopIteration as stop:
        assert results == []
        return effects, stop.value


RUN = RunHandler("o1", b'{"id": "o1"}', 0)


def test_i13_a_message_is_removed_only_after_its_run_came_back() -> None:
    assert drive([None]) == ([RUN], Disposition(Kind.REMOVE))


def test_a_clear_error_needs_no_look_at_the_record() -> None:
    effects, end = drive([InFlight("busy", retry_after=5.0)])
    assert (effects, end.kind) == ([RUN], Kind.HIDE)


@pytest.mark.parametrize(
    ("error", "state", "kind"),
    [
        (ValueError("full"), State.ABSENT, Kind.RETRY),
        (OperationFailed("stored"), State.FAILED, Kind.DEAD_LETTER),
        (ValueError("late"), State.SUCCEEDED, Kind.REMOVE),
        (ValueError("late"), State.UNKNOWN, Kind.PARK),
        (ValueError("late"), State.PENDING, Kind.HIDE),
    ],
)
def test_otherwise_the_record_decides(error: Exception, state: State, kind: Kind) -> None:
    effects, end = drive([error, Seen(record(state), NOW)])
    assert (effects, end.kind) == ([RUN, LookAtKey("o1")], kind)


def test_a_store_that_is_down_at_the_look_gives_the_message_back() -> None:
    assert drive([ValueError("full"), DOWN])[1].kind is Kind.GIVE_BACK
    assert drive([DOWN], RETURNED)[1].kind is Kind.GIVE_BACK


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 1.0), (2, 2.0), (4, 8.0)])
def test_the_backoff_follows_the_number_of_the_try(attempt: int, seconds: float) -> None:
    seen = Seen(record(State.ABSENT, attempt=attempt), NOW)
    assert drive([ValueError("full"), seen])[1].seconds == seconds


def test_without_a_record_the_broker_s_count_sets_the_backoff() -> None:
    assert drive([ValueError("full"), Seen(None, NOW)], receive_count=3)[1].seconds == 4.0


def test_a_message_without_a_key_is_a_dead_letter_and_nothing_runs() -> None:
    flow = delivery(Message(b"no JSON", "orders"), plan())
    with pytest.raises(StopIteration) as stop:
        next(flow)
    assert stop.value.value.kind is Kind.DEAD_LETTER


def test_a_key_function_that_raises_makes_a_dead_letter_with_its_error() -> None:
    flow = delivery(Message(b"", "orders"), plan(key=lambda message: 1 / 0))
    with pytest.raises(StopIteration) as stop:
        next(flow)
    end = stop.value.value
    assert end.reason == "its key cannot be read: ZeroDivisionError: division by zero"


# --- redrive --------------------------------------------------------------------------------------


def test_a_redriven_message_frees_the_key_it_failed_under_and_runs_with_new_tries() -> None:
    seen = Seen(FAILED, NOW)
    effects, end = drive([seen, None, None], RETURNED)
    assert effects == [
        LookAtKey("o1"),
        FreeKey(seen, "redrive 77 after 3 tries"),
        RUN._replace(tries_before=3),
    ]
    assert end.kind is Kind.REMOVE


def test_i1_a_redrive_that_another_delivery_was_faster_with_still_asks_the_claim() -> None:
    effects, end = drive([Seen(FAILED, NOW), KeyChanged("gone"), InFlight("busy")], RETURNED)
    assert isinstance(effects[-1], RunHandler)
    assert end.kind is Kind.HIDE


@pytest.mark.parametrize(
    "found",
    [
        None,
        FAILED._replace(fence=78),
        record(State.SUCCEEDED, fence=77),
        record(State.PENDING, fence=77),
        record(State.UNKNOWN, fence=77),
    ],
)
def test_i1_a_returned_message_opens_no_other_record(found: Any) -> None:
    effects, _ = drive([Seen(found, NOW), None], RETURNED)
    assert not any(isinstance(effect, FreeKey) for effect in effects)


def test_i1_an_ordinary_duplicate_of_a_failed_key_opens_nothing() -> None:
    effects, end = drive([OperationFailed("stored"), Seen(FAILED, NOW)])
    assert effects == [RUN, LookAtKey("o1")]
    assert end.dead_letter is not None
    assert (end.dead_letter.fence, end.dead_letter.tries) == (77, 3)


def test_an_explicit_redrive_opens_a_failed_key_once() -> None:
    first, _ = drive([Seen(FAILED, NOW), None, None], {REDRIVE_HEADER: "INC-7"})
    assert first[1:] == [
        FreeKey(Seen(FAILED, NOW), "redrive INC-7 after 3 tries"),
        RUN._replace(tries_before=3),
    ]
    again = Seen(FAILED._replace(note="by x: redrive INC-7 after 3 tries\n", fence=80), NOW)
    effects, _ = drive([again, None], {REDRIVE_HEADER: "INC-7"})
    assert effects == [LookAtKey("o1"), RUN._replace(tries_before=3)]


# --- tries ----------------------------------------------------------------------------------------


def test_the_last_try_stores_its_error_for_good() -> None:
    error = ValueError("full")
    assert raised(error, 4, plan(max_tries=5)) is error
    last = raised(error, 5, plan(max_tries=5))
    assert isinstance(last, TooManyTries)
    assert last.__cause__ is error
    assert str(last) == "failed 5 times, last with ValueError: full"
    own = Terminal("no such order")
    assert raised(own, 5, plan(max_tries=5)) is own


def test_a_message_that_ends_its_consumers_is_not_tried_for_ever() -> None:
    check_tries(5, plan(max_tries=5))
    with pytest.raises(TooManyTries, match="5 tries ended without an outcome"):
        check_tries(6, plan(max_tries=5))
