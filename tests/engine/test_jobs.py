"""Jobs: options are checked, policies are made once, identities and owners are fresh."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.engine_parts import WEAK, parts_with

from oncekey.core.errors import ConfigurationError, InvalidKey
from oncekey.core.guarantees import Level
from oncekey.core.policy import Policy
from oncekey.core.store import StoreLimits
from oncekey.engine import jobs as jobs_module
from oncekey.engine.jobs import Job
from oncekey.engine.once_base import EngineParts


def job(parts: EngineParts, request: Any = None, **options: Any) -> Job:
    return parts.jobs.make("charge", "k", "acct", request, None, options)


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
def test_wrong_engine_options_raise_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parts_with(**options)


def test_a_required_level_above_the_stores_raises_at_construction() -> None:
    with pytest.raises(ConfigurationError, match="it forgets"):
        parts_with(WEAK, policy=Policy(require="at_most_once"))


def test_a_job_without_options_has_the_engines_policy() -> None:
    parts = parts_with(policy=Policy(lease="5s"))
    assert job(parts).policy is parts.jobs.policy


def test_the_same_options_give_the_same_policy_object() -> None:
    parts = parts_with()
    first = job(parts, lease="5s", retry_safe=True).policy
    assert first == Policy(lease="5s", retry_safe=True)
    assert job(parts, retry_safe=True, lease="5s").policy is first
    assert job(parts, lease="6s", retry_safe=True).policy is not first


def test_i11_the_number_of_remembered_policies_is_bounded() -> None:
    parts = parts_with()
    for number in range(1, 3 * jobs_module._POLICIES_MAX):
        assert job(parts, max_bytes=number).policy.max_bytes == number
        assert len(parts.jobs._policies) <= jobs_module._POLICIES_MAX


def test_an_unknown_option_is_refused_every_time() -> None:
    parts = parts_with()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="unknown option ttl; known: lease"):
            job(parts, ttl="5s")


def test_an_option_that_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="an option has an unusable value"):
        job(parts_with(), recover=[])


def test_an_option_that_requires_more_than_the_store_guarantees_is_refused() -> None:
    parts = parts_with(WEAK)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="'charge' requires at most once"):
            job(parts, require="at_most_once")


def test_jobs_in_a_transaction_are_always_retry_safe() -> None:
    inside = parts_with(policy=Policy(lease="5s")).jobs.for_transaction()
    assert inside.policy == Policy(lease="5s", retry_safe=True)
    freeing = inside.make("charge", "k", "acct", None, None, {"retry_safe": False, "keep": "1h"})
    assert freeing.policy.retry_safe
    strict = inside.make("charge", "k", "acct", None, None, {"require": "transactional"})
    assert strict.policy.required_level is Level.TRANSACTIONAL


def test_a_job_with_a_wrong_key_request_or_codec_is_refused() -> None:
    with pytest.raises(InvalidKey):
        parts_with().jobs.make("charge", "", "acct", None, None, {})
    with pytest.raises(InvalidKey, match="cannot be fingerprinted"):
        parts_with().jobs.make("charge", "k", "acct", object(), None, {})
    with pytest.raises(ConfigurationError):
        parts_with().jobs.make("charge", "k", "acct", None, "json", {})


def test_raw_keys_reach_the_store_only_if_the_option_is_set() -> None:
    assert job(parts_with()).claim.key == ""
    assert job(parts_with(raw_keys=True)).claim.key == "k"


def test_each_job_has_an_owner_of_its_own() -> None:
    parts = parts_with()
    assert job(parts).claim.owner != job(parts).claim.owner


def test_what_a_store_cannot_hold_bounds_every_policy() -> None:
    limits = StoreLimits(outcome_max=1_000, lease_min=2_000_000)
    parts = parts_with(limits=limits, policy=Policy(lease="5s", max_bytes=2_000))
    assert job(parts).policy.max_bytes == 1_000
    assert job(parts, max_bytes=50_000).policy.max_bytes == 1_000
    assert job(parts, max_bytes=10).policy.max_bytes == 10
    with pytest.raises(ConfigurationError, match=r"'charge': lease='1s' is shorter"):
        job(parts, lease="1s")
    with pytest.raises(ConfigurationError, match="every operation"):
        parts_with(limits=limits, policy=Policy(lease="1s"))
