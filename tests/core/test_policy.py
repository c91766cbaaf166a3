"""Policies: validated when they are made, changed only by copies."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from oncekey.core.duration import human
from oncekey.core.errors import ConfigurationError
from oncekey.core.guarantees import Level
from oncekey.core.policy import (
    KEEP_MAX_US,
    KEEP_MIN_US,
    LEASE_MAX_US,
    LEASE_MIN_US,
    MAX_BYTES_CAP,
    MAX_BYTES_DEFAULT,
    OPTION_NAMES,
    WAIT_MAX_US,
    Policy,
    PolicyTimes,
)

SECOND = 1_000_000


def us(count: int) -> timedelta:
    return timedelta(microseconds=count)


def test_the_defaults_are_the_safe_ones() -> None:
    policy = Policy()
    day = 86_400 * SECOND
    assert policy.times == PolicyTimes(
        30 * SECOND, day, 7 * day, 0, retry_safe=False, recover_grace=30 * SECOND
    )
    assert policy.require is Level.BEST_EFFORT
    assert policy.recover is None
    assert policy.max_bytes == MAX_BYTES_DEFAULT == 1024 * 1024


def test_times_are_the_durations_in_microseconds() -> None:
    policy = Policy(lease="2s", keep=timedelta(hours=1), audit="0s", wait="250ms", retry_safe=True)
    assert policy.times == PolicyTimes(
        2 * SECOND, 3_600 * SECOND, 0, 250_000, retry_safe=True, recover_grace=2 * SECOND
    )


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("lease", LEASE_MIN_US, LEASE_MAX_US),
        ("keep", KEEP_MIN_US, KEEP_MAX_US),
        ("audit", 0, KEEP_MAX_US),
        ("wait", 0, WAIT_MAX_US),
    ],
)
def test_a_duration_is_accepted_within_its_limits(name: str, low: int, high: int) -> None:
    for good in (low, high):
        options: dict[str, Any] = {name: us(good)}
        assert getattr(Policy(**options).times, name) == good
    for bad in {low - 1, high + 1} - {-1}:
        options = {name: us(bad)}
        with pytest.raises(ConfigurationError, match=rf"{name}=.* must be {human(low)} to"):
            Policy(**options)


@pytest.mark.parametrize("good", [1, MAX_BYTES_CAP])
def test_max_bytes_at_its_limits(good: int) -> None:
    assert Policy(max_bytes=good).max_bytes == good


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_bytes": 0}, "max_bytes=0 must be 1 to"),
        ({"max_bytes": MAX_BYTES_CAP + 1}, "max_bytes"),
        ({"max_bytes": "1"}, "max_bytes='1'"),
        ({"max_bytes": 1.0}, "max_bytes=1.0"),
        ({"retry_safe": 1}, "retry_safe=1 must be True or False"),
        ({"retry_safe": None}, "retry_safe=None"),
        ({"recover": "fn"}, "recover must be a function"),
        ({"require": "sometimes"}, "require='sometimes' is not a level"),
        ({"require": 2}, "require=2 is not a level"),
        ({"lease": 30}, "lease is a int, which leaves the unit open"),
        ({"keep": "soon"}, "keep='soon' is not a duration"),
    ],
)
def test_a_bad_option_is_refused_when_the_policy_is_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Policy(**options)


def test_a_level_may_be_given_by_name() -> None:
    policy = Policy(require="at_most_once")
    assert policy.require is Level.AT_MOST_ONCE
    assert policy.required_level is Level.AT_MOST_ONCE


def test_with_options_returns_a_changed_copy() -> None:
    policy = Policy(lease="2s", keep="1h")
    other = policy.with_options(lease="5s", retry_safe=True)
    assert (other.times.lease, other.times.keep) == (5 * SECOND, 3_600 * SECOND)
    assert other.times.retry_safe
    assert policy == Policy(lease="2s", keep="1h")


def test_options_are_validated_like_a_new_policy() -> None:
    with pytest.raises(ConfigurationError, match="lease"):
        Policy().with_options(lease="1us")


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="unknown option leese, tll; known: lease, keep"):
        Policy().with_options(tll="5s", leese="5s")


def test_times_are_no_option() -> None:
    assert "times" not in OPTION_NAMES
    with pytest.raises(ConfigurationError, match="unknown option times"):
        Policy().with_options(times=Policy().times)


def test_a_policy_cannot_be_changed_in_place() -> None:
    policy = Policy()
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.lease = "1s"  # type: ignore[misc]


def test_policies_are_compared_by_their_options() -> None:
    assert Policy(lease="30s") == Policy()
    assert hash(Policy(lease="30s")) == hash(Policy())
    assert Policy(lease="31s") != Policy()
