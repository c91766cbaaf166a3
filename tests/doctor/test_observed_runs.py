"""What the newest records tell of lease and keep."""

from __future__ import annotations

import pytest
from tests.doctor.findings import by_check, problems

from oncekey.core.guarantees import Guarantee, Level
from oncekey.doctor.observed_checks import RUNS_MIN, guarantee, observed, percentile_99
from oncekey.stores.inspection import ObservedRun, Severity

SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR


def runs(
    count: int, took: int, left: int | None, keep: int = DAY, name: str = "http"
) -> list[ObservedRun]:
    return [ObservedRun(name, took, left, keep)] * count


QUICK = runs(500, SECOND, 29 * SECOND)


def test_quick_runs_and_a_long_keep_are_no_fault() -> None:
    found = list(observed(QUICK, DAY))
    assert {finding.severity for finding in found} == {Severity.OK}


def test_nothing_is_called_good_without_records() -> None:
    found = list(observed([], DAY))
    assert {finding.check for finding in found} == {"store.lease", "store.keep"}
    assert {finding.severity for finding in found} == {Severity.INFO}


def test_runs_longer_than_their_lease_are_named() -> None:
    """Heartbeats have renewed them, so about a lease is left at their end."""
    slow = runs(10, 45 * SECOND, 25 * SECOND)
    found = list(observed([*QUICK, *slow], DAY))
    assert problems(found) == {"store.lease": "warning"}
    said = by_check(found)["store.lease"].what
    assert said == "one run in 100 of 'http' takes 45.0 s or longer, its lease is about 29.0 s"


def test_a_few_runs_say_nothing_about_one_in_a_hundred() -> None:
    assert problems(observed(runs(RUNS_MIN - 1, 45 * SECOND, 25 * SECOND), DAY)) == {}
    assert problems(observed(runs(RUNS_MIN, 45 * SECOND, 25 * SECOND), DAY)) != {}


def test_one_slow_run_in_hundreds_is_no_fault() -> None:
    assert problems(observed([*QUICK, *runs(1, 45 * SECOND, 25 * SECOND)], DAY)) == {}


def test_a_single_owner_that_was_late_is_named() -> None:
    """Its heartbeats did not come through: it was paused, or its loop was blocked."""
    found = list(observed([*QUICK, *runs(1, 40 * SECOND, -10 * SECOND)], DAY))
    assert by_check(found)["store.lease"].what == "1 of 501 runs of 'http' ended after their lease"


def test_runs_in_callers_transactions_have_no_lease_to_outlive() -> None:
    assert problems(observed(runs(500, 45 * SECOND, None), DAY)) == {}
    late = runs(1, 40 * SECOND, -10 * SECOND)
    found = list(observed([*runs(500, SECOND, None), *late], DAY))
    assert by_check(found)["store.lease"].what == "1 of 1 runs of 'http' ended after their lease"


def test_operations_are_judged_one_by_one() -> None:
    slow = runs(RUNS_MIN, 9 * SECOND, 3 * SECOND, name="export")
    found = list(observed([*QUICK, *slow], DAY))
    assert "'export'" in by_check(found)["store.lease"].what
    assert "'http'" not in by_check(found)["store.lease"].what


def test_a_keep_below_the_retry_horizon_is_named() -> None:
    short = runs(1, SECOND, SECOND, keep=HOUR, name="export")
    found = list(observed([*QUICK, *short], DAY))
    assert problems(found) == {"store.keep": "warning"}
    said = by_check(found)["store.keep"].what
    assert said == "shorter than the retry horizon of 1d: 'export' keeps 1h"
    assert problems(observed([*QUICK, *short], HOUR)) == {}


@pytest.mark.parametrize(
    ("count", "rank"), [(1, 1), (2, 2), (99, 99), (100, 99), (101, 100), (1_000, 990)]
)
def test_percentile_by_nearest_rank(count: int, rank: int) -> None:
    assert percentile_99(range(1, count + 1)) == rank


def test_a_guarantee_of_best_effort_is_broken() -> None:
    assert guarantee(Guarantee(Level.BEST_EFFORT, "fsync is off")).severity is Severity.BROKEN
    assert guarantee(Guarantee(Level.TRANSACTIONAL, "on disk")).severity is Severity.OK
