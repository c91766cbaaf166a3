"""The overview: how the store is doing, and the keys that need somebody."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from starlette.responses import Response

from oncekey.dashboard import charts
from oncekey.dashboard.page_request import PageRequest
from oncekey.engine.keys import administration
from oncekey.engine.keys.key_list import KeySummary
from oncekey.engine.keys.key_status import time_of

ATTENTION_ROWS_MAX: Final = 50
REFRESH_SECONDS: Final = 5


class Concern(NamedTuple):
    """A key that needs somebody, and why."""

    key: KeySummary
    why: str
    age: float


async def overview(request: PageRequest) -> Response:
    survey = await request.keys.run(administration.survey_store())
    stats, open_keys = survey
    request.curve.add(stats.at.timestamp(), stats.claims_per_second)
    pending = [key for key in open_keys.keys if key.state == "pending"]
    ages = [_age(key, stats.at) for key in pending]
    stuck_after = request.options.stuck_after
    unknown = [key for key in open_keys.keys if key.state == "unknown"]
    stuck = stuck_keys(pending, stats.at, stuck_after)
    concerns = [*unknown_keys(unknown, stats.at), *stuck]
    calls = request.calls.last_minute() if request.calls is not None else None
    return request.page(
        "overview.html",
        page="overview",
        done=request.done,
        stats=stats,
        # A count that did not get to the oldest open key is the least that it may be.
        more_behind="" if stats.complete else " or more",
        calls=calls,
        concerns=concerns[:ATTENTION_ROWS_MAX],
        more=max(len(concerns) - ATTENTION_ROWS_MAX, 0),
        stuck=len(stuck),
        stuck_after=stuck_after,
        next=open_keys.next,
        ages=charts.age_histogram(ages, stuck_after),
        bars=charts.size_bars(stats.rows, stats.projected_rows),
        curve=charts.rate_curve(request.curve.points),
        refresh=REFRESH_SECONDS,
        chart=charts,
        consumers=[] if request.options.read_only else [one.name for one in request.consumers],
    )


def unknown_keys(keys: Sequence[KeySummary], now: datetime) -> list[Concern]:
    """The undecided keys, the longest silent first."""
    found = [
        Concern(key, "nobody knows whether it happened", (now - key.lease_until).total_seconds())
        for key in keys
    ]
    return sorted(found, key=lambda concern: -concern.age)


def stuck_keys(keys: Sequence[KeySummary], now: datetime, after: float) -> list[Concern]:
    """The pending keys whose owner is silent, or has not come to an end for longer than `after`
    seconds; the oldest first."""
    found = []
    for key in keys:
        age = _age(key, now)
        if key.lease_until <= now:
            found.append(Concern(key, "its owner is silent; the next retry takes over", age))
        elif age >= after:
            found.append(Concern(key, "its owner is alive and has not ended", age))
    return sorted(found, key=lambda concern: -concern.age)


def _age(key: KeySummary, now: datetime) -> float:
    """For how many seconds the present attempt has had the key."""
    return max(now - time_of(key.fence), timedelta()).total_seconds()
