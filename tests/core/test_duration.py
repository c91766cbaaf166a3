"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey.core.duration import human, microseconds
from oncekey.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("written", "us"),
    [
        ("0s", 0),
        ("1us", 1),
        ("250ms", 250_000),
        ("30s", 30_000_000),
        ("5m", 300_000_000),
        ("24h", 86_400_000_000),
        ("7d", 604_800_000_000),
        ("1h30m", 5_400_000_000),
        ("1m1ms", 60_001_000),
        (" 30s ", 30_000_000),
        (timedelta(seconds=30), 30_000_000),
        (timedelta(microseconds=1), 1),
        (timedelta(0), 0),
        (timedelta(days=7), 604_800_000_000),
    ],
)
def test_durations_are_read_as_microseconds(written: Any, us: int) -> None:
    assert microseconds(written, name="lease") == us


@pytest.mark.parametrize(
    "written",
    ["", " ", "30", "s", "30 s", "30x", "1.5s", "-5s", "+5s", "30s!", "1h 30m", "30S", "1e3s"],
)
def test_other_texts_are_refused_by_the_name_of_the_option(written: str) -> None:
    with pytest.raises(ConfigurationError, match=r"lease=.* is not a duration; give"):
        microseconds(written, name="lease")


@pytest.mark.parametrize("written", [30, 1.5, None, True, b"30s", ["30s"]])
def test_a_bare_number_is_refused_because_it_has_no_unit(written: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"lease is a {type(written).__name__}, which"):
        microseconds(written, name="lease")


def test_a_negative_timedelta_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is negative"):
        microseconds(timedelta(microseconds=-1), name="wait")


@given(us=st.integers(0, 10**15))
def test_human_text_is_read_back_exactly(us: int) -> None:
    assert microseconds(human(us), name="x") == us


@pytest.mark.parametrize(
    ("us", "text"),
    [(0, "0s"), (1, "1us"), (10_000, "10ms"), (90_000_000, "1m30s"), (86_400_000_000, "1d")],
)
def test_human_text_is_short(us: int, text: str) -> None:
    assert human(us) == text


def test_a_duration_of_too_many_digits_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a duration"):
        microseconds("9" * 5000 + "s", name="lease")
