"""What `oncekey stats` says about the figures of a store: what each means, and what is off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oncekey import Stats
from oncekey.cli.key_report import span
from oncekey.core.search import MEASURE_MAX, PAGE_LIMIT_MAX

# A sweeper runs every few minutes; what has waited for longer was forgotten.
SWEEP_BEHIND_SECONDS: Final = 3_600.0
# Below this many rows a projection says little.
PROJECTION_MIN_ROWS: Final = 100_000
PROJECTION_FACTOR: Final = 5
# Longer than a lease is renewed by default: its owner is slow, or its clock is.
PENDING_LONG_SECONDS: Final = 600.0

COLUMNS: Final = ("figure", "value", "meaning")
_KIB: Final = 1_024


def stats_rows(stats: Stats) -> list[list[str]]:
    """A row for each figure: its name, its value, what it means."""
    more = "at least " if stats.claims_capped else ""
    looked = "all claims" if stats.complete else f"the newest {stats.looked_at:,} claims"
    rows = [
        ("rows", f"{stats.rows:,}", "records that are stored, past ones included"),
        ("bytes", _size(stats.bytes), "what they take"),
        ("claims", f"{more}{stats.claims_per_second:.2f}/s", "keys claimed, over the last minute"),
        ("projected rows", f"{stats.projected_rows:,}", "what this rate leads to in the end"),
        ("to be swept", _capped(stats.due, MEASURE_MAX), "records that nothing needs any more"),
        ("oldest of these", span(stats.oldest_due), "for how long it could have been swept"),
        ("pending", _capped(stats.pending, PAGE_LIMIT_MAX), f"keys in flight, among {looked}"),
        ("pending, oldest", span(stats.pending_oldest), "since its claim"),
        ("pending, p50", span(stats.pending_p50), "half of them are younger"),
        ("pending, p95", span(stats.pending_p95), "95 % of them are younger"),
        ("pending, p99", span(stats.pending_p99), "99 % of them are younger"),
        ("unknown", _capped(stats.unknown, PAGE_LIMIT_MAX), f"keys to be decided, among {looked}"),
        ("lock waits", f"{stats.lock_waits:,}", "sessions that wait for a lock"),
    ]
    return [list(row) for row in rows]


def warnings(stats: Stats) -> Iterator[str]:
    """What is off, and what to do about it."""
    if stats.unknown:
        count = _capped(stats.unknown, PAGE_LIMIT_MAX)
        yield f"{count} unknown: they wait for a decision; see oncekey list --state unknown"
    if stats.oldest_due > SWEEP_BEHIND_SECONDS:
        waited = span(stats.oldest_due)
        yield f"the sweeper is behind by {waited}: run oncekey sweep, or give Once sweep_every="
    if stats.projected_rows > max(PROJECTION_MIN_ROWS, stats.rows * PROJECTION_FACTOR):
        yield (
            f"at this rate the store grows from {stats.rows:,} to {stats.projected_rows:,} rows: "
            "is there room? A shorter keep or audit makes it smaller"
        )
    if stats.pending_oldest > PENDING_LONG_SECONDS:
        oldest = span(stats.pending_oldest)
        yield f"a key has been in flight for {oldest}: see oncekey list --state pending"
    if stats.lock_waits:
        yield f"{stats.lock_waits:,} sessions wait for a lock: somebody holds rows for long"
    if not stats.complete:
        yield (
            f"pending and unknown were counted among the newest {stats.looked_at:,} claims only; "
            "oncekey list --state unknown --all looks at every one"
        )


def _capped(count: int, most: int) -> str:
    return f"{count:,} or more" if count >= most else f"{count:,}"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < _KIB:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= _KIB
    return f"{size:.1f} TiB"
