"""`assert_idempotent` names the guarantee that an app breaks, and only that one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.testing.guarded_apps import CHARGE, EVERYTHING
from tests.testing.handmade_guards import HandmadeGuard, LostOnDisconnect, handmade_app

from oncekey.testing import (
    AsyncEffects,
    Effects,
    NotIdempotent,
    assert_idempotent,
    assert_idempotent_async,
)

WITHOUT_CRASHES = {**EVERYTHING, "require": ()}
ALL_BUT_CRASH = {
    "completed",
    "concurrent",
    "lost_response",
    "other_body",
    "other_caller",
    "rejected_caller",
}

# Fault -> the cases that it breaks, and a part of the message.
FAULTS: dict[str, tuple[set[str], str]] = {
    "unguarded": (
        ALL_BUT_CRASH - {"other_caller"},
        "5 requests with one key at the same time had 5 effects instead of 1",
    ),
    "check then act": (
        {"concurrent", "other_body"},
        "what to do: claim the key atomically before the operation runs",
    ),
    "never finished": (
        {"completed", "concurrent", "lost_response"},
        "when all had ended, a retry did not get the result",
    ),
    "outcome forgotten": (
        {"completed", "concurrent", "lost_response", "other_body"},
        "a request and two retries of it had 3 effects instead of 1",
    ),
    "status lost": (
        {"completed", "concurrent"},
        "a retry got another answer than the first request did",
    ),
    "duplicates fail": (
        {"concurrent"},
        "a duplicate got an error, while the first request was carried out",
    ),
    "requests not compared": (
        {"other_body"},
        "another request under the same key got the answer to the first one",
    ),
    "mismatch destroys the record": (
        {"other_body"},
        "after another request was refused, the first one lost its answer",
    ),
    "mismatch crashes": (
        {"other_body"},
        "another request under the same key was not refused, but failed",
    ),
    "unscoped": ({"other_caller"}, "a caller got the answer of another caller's request"),
    "replay before authentication": (
        {"rejected_caller"},
        "a rejected caller got the stored answer",
    ),
}


def message_of(client: Any, effects: Any, **options: Any) -> tuple[NotIdempotent, str]:
    with pytest.raises(NotIdempotent) as raised:
        assert_idempotent(client, CHARGE, effects=effects, **{**WITHOUT_CRASHES, **options})
    return raised.value, str(raised.value)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(fault: str) -> None:
    broken, words = FAULTS[fault]
    effects = Effects()
    error, message = message_of(handmade_app(HandmadeGuard(fault, effects)), effects)
    assert set(error.report.violated) == broken
    assert words in message


def test_a_good_guard_of_somebody_elses_passes_and_crashes_are_not_checked() -> None:
    effects = Effects()
    client = handmade_app(HandmadeGuard("", effects))
    report = assert_idempotent(client, CHARGE, effects=effects, **WITHOUT_CRASHES)
    assert set(report.holds) == ALL_BUT_CRASH
    assert "failpoints=oncekey_failpoints" in report.not_checked["crash"]


def test_the_message_says_what_was_sent_what_came_back_and_what_to_do() -> None:
    effects = Effects()
    client = handmade_app(HandmadeGuard("unguarded", effects))
    _, message = message_of(client, effects, only="completed")
    lines = [line.strip() for line in message.splitlines()]
    assert lines[0] == "1 guarantee does not hold:"
    assert "completed: A retry of a finished request gets the first answer again" in message
    assert any(line.startswith('sent:       POST /charges {"cents": 5}, key ') for line in lines)
    assert any(line.startswith('came back:  201 {"body":') for line in lines)
    assert any(line.startswith("what to do: look up the key first") for line in lines)
    assert any(line.startswith("not checked  crash: left out by only=") for line in lines)


def test_the_race_of_a_guard_is_hit_only_where_one_request_can_be_held() -> None:
    """The report says so, because a plain count of effects gives no place to hold a request."""
    effects = Effects()
    client = handmade_app(HandmadeGuard("", effects))
    report = assert_idempotent(client, CHARGE, effects=lambda: len(effects), only="concurrent")
    assert "none could be held" in report.holds["concurrent"]
    report = assert_idempotent(client, CHARGE, effects=effects, only="concurrent")
    assert "one was held while the others came" in report.holds["concurrent"]


def test_a_guard_that_forgets_clients_that_leave_is_caught() -> None:
    async def check() -> None:
        effects = AsyncEffects()
        await assert_idempotent_async(
            LostOnDisconnect(effects), 500, effects=effects, only="lost_response"
        )

    with pytest.raises(NotIdempotent, match="whose response was lost, and its retries, had 2"):
        asyncio.run(check())
