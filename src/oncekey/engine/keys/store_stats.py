"""The figures of a store, as `stats` gives them: from its measures and a sample of its claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from oncekey.core.record import Record, State
from oncekey.core.search import MEASURE_MAX, RATE_WINDOW_US, Measures, Page
from oncekey.core.state_machine import state_now
from oncekey.engine.keys.key_status import time_of


@dataclass(frozen=True, slots=True)
class Stats:
    """What a store holds, and how it is doing. Ages and times are in seconds.

    rows, bytes        how much is stored, as the store estimates it
    claims_per_second  how fast keys were claimed in the last minute; with `claims_capped` it was
                       more than that
    projected_rows     how many rows that rate leads to, if each stays as long as the newest one
    due, oldest_due    how many records could be swept and were not yet (10,000 at most), and for
                       how long the oldest of them has waited
    pending, unknown   keys in flight and undecided, among the claims that were looked at
    pending_*          how long those in flight have been so
    looked_at, since   how many claims that were, and from when on; `complete` if it was all of them
    lock_waits         sessions that wait for a lock
    """

    at: datetime
    rows: int
    bytes: int
    claims_per_second: float
    claims_capped: bool
    projected_rows: int
    due: int
    oldest_due: float
    pending: int
    pending_oldest: float
    pending_p50: float
    pending_p95: float
    pending_p99: float
    unknown: int
    looked_at: int
    since: datetime | None
    complete: bool
    lock_waits: int


def stats_of(measures: Measures, newest: Page, open_keys: Page) -> Stats:
    """The figures, from a store's measures, its newest record, and the page of those that are
    pending or unknown."""
    now = open_keys.now
    ages = pending_ages(open_keys.records, now)
    rate = measures.claims * 1_000_000 / RATE_WINDOW_US
    stays = newest.records[0].keep + newest.records[0].audit if newest.records else 0
    return Stats(
        at=time_of(now),
        rows=measures.rows,
        bytes=measures.bytes,
        claims_per_second=rate,
        claims_capped=measures.claims >= MEASURE_MAX,
        projected_rows=int(rate * stays / 1_000_000),
        due=measures.due,
        oldest_due=_seconds(now - measures.oldest_due) if measures.oldest_due else 0.0,
        pending=len(ages),
        pending_oldest=ages[-1] if ages else 0.0,
        pending_p50=quantile(ages, 0.5),
        pending_p95=quantile(ages, 0.95),
        pending_p99=quantile(ages, 0.99),
        unknown=sum(state_now(record, now) is State.UNKNOWN for record in open_keys.records),
        looked_at=open_keys.looked_at,
        since=time_of(open_keys.next.fence) if open_keys.next is not None else None,
        complete=open_keys.next is None,
        lock_waits=measures.lock_waits,
    )


def pending_ages(records: Sequence[Record], now: int) -> list[float]:
    """For how many seconds the pending ones among these have been claimed, shortest first."""
    pending = [record for record in records if state_now(record, now) is State.PENDING]
    return sorted(_seconds(now - record.fence) for record in pending)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of the ordered values does not exceed; 0 if there are none."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _seconds(us: int) -> float:
    return max(us, 0) / 1_000_000
