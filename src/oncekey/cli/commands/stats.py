"""`oncekey stats`: the figures of a store, what each means, and what is off."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import click

from oncekey import Stats
from oncekey.cli.command_input import json_option, url_argument
from oncekey.cli.key_report import span
from oncekey.cli.output import Output
from oncekey.cli.password_redaction import redact_url
from oncekey.cli.store_access import has_records, open_store
from oncekey.core.search import MEASURE_MAX, PAGE_LIMIT_MAX
from oncekey.engine.keys.administration import measure_store, note_of_move, run_plan

# A sweeper runs every few minutes; what has waited for longer was forgotten.
SWEEP_BEHIND_SECONDS: Final = 3_600.0
# Below this many rows a projection says little.
PROJECTION_MIN_ROWS: Final = 100_000
PROJECTION_FACTOR: Final = 5
# Longer than a lease is renewed by default: its owner is slow, or its clock is.
PENDING_LONG_SECONDS: Final = 600.0
COLUMNS: Final = ("figure", "value", "meaning")
_KIB: Final = 1_024


@click.command()
@url_argument
@json_option
def stats(url: str, as_json: bool) -> None:
    """Say how a store is doing.

    How much it holds and where that leads to, how much there is to sweep, how long keys have been
    in flight, how many wait for a decision; and a warning for what is off. The cost is bounded: it
    counts to 10,000 at most, and looks at the newest 20,000 claims. Nothing is changed, and no
    secret is needed. URL may be left out if ONCEKEY_STORE is set.

    \b
    Examples:
      oncekey stats sqlite:///payments.db
      oncekey stats postgresql://support@db/shop --json
    """
    out = Output(as_json=as_json)
    has_records(url)  # refuses what is no store, or is of an older release
    with closing(open_store(url)) as store:
        found = run_plan(store, measure_store())
        move = run_plan(store, note_of_move())
    off = [*_warnings(found), *([move] if move else [])]
    if as_json:
        out.data({"store": redact_url(url), **dataclasses.asdict(found), "warnings": off})
        return
    out.table(COLUMNS, _rows(found), {})
    for warning in off:
        out.line(f"WARNING: {warning}")


def _rows(stats: Stats) -> list[list[str]]:
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


def _warnings(stats: Stats) -> Iterator[str]:
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
