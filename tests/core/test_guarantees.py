"""Levels of guarantee: their order, what a store can promise, and no operation below its own."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey.core.errors import ConfigurationError
from oncekey.core.guarantees import Guarantee, Level, check_level, parse_level

STRONG = Guarantee(Level.TRANSACTIONAL, "one file, synchronous=FULL")
WEAK = Guarantee(Level.BEST_EFFORT, "it forgets")


def test_levels_are_ordered_by_what_they_promise() -> None:
    assert Level.BEST_EFFORT < Level.AT_MOST_ONCE < Level.FENCED < Level.TRANSACTIONAL
    assert [level.label for level in Level] == [
        "best effort",
        "at most once",
        "fenced",
        "transactional",
    ]


@pytest.mark.parametrize(
    ("retry_safe", "transactional", "level"),
    [
        (False, False, Level.AT_MOST_ONCE),
        (True, False, Level.FENCED),
        (False, True, Level.TRANSACTIONAL),
        (True, True, Level.TRANSACTIONAL),
    ],
)
def test_the_effective_level_on_a_durable_store(
    retry_safe: bool, transactional: bool, level: Level
) -> None:
    assert STRONG.effective(retry_safe=retry_safe, transactional=transactional) is level


@pytest.mark.parametrize("retry_safe", [True, False])
@pytest.mark.parametrize("transactional", [True, False])
def test_the_effective_level_on_a_best_effort_store_is_best_effort(
    retry_safe: bool, transactional: bool
) -> None:
    effective = WEAK.effective(retry_safe=retry_safe, transactional=transactional)
    assert effective is Level.BEST_EFFORT


@pytest.mark.parametrize("required", list(Level))
@pytest.mark.parametrize("effective", list(Level))
def test_an_operation_below_its_required_level_is_refused(
    required: Level, effective: Level
) -> None:
    if effective >= required:
        check_level(required, effective, STRONG, "charge")
        return
    with pytest.raises(ConfigurationError) as caught:
        check_level(required, effective, WEAK, "charge")
    assert f"requires {required.label} but would run at {effective.label}" in str(caught.value)
    assert "it forgets" in str(caught.value)
    assert "'charge'" in str(caught.value)


@pytest.mark.parametrize(
    ("written", "level"),
    [
        ("fenced", Level.FENCED),
        ("FENCED", Level.FENCED),
        (" at_most_once ", Level.AT_MOST_ONCE),
        ("at most once", Level.AT_MOST_ONCE),
        (Level.TRANSACTIONAL, Level.TRANSACTIONAL),
    ],
)
def test_a_level_is_parsed_by_name(written: Any, level: Level) -> None:
    assert parse_level(written) is level


@pytest.mark.parametrize("written", ["", "best", 2, None, True])
def test_another_level_name_is_refused_with_the_choices(written: Any) -> None:
    with pytest.raises(ConfigurationError, match="choose best_effort, at_most_once, fenced, trans"):
        parse_level(written)
