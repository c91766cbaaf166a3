"""`oncekey sweep`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click

from oncekey.cli.command_options import duration, json_option, url_argument
from oncekey.cli.open_store import has_records, has_records_in_time, open_store
from oncekey.cli.output import Output, error_line
from oncekey.cli.redact import redact_url
from oncekey.cli.sweep_loop import (
    TIERS,
    OnProgress,
    SweepResult,
    batch_function,
    sweep_periodically,
    sweep_until_done,
)
from oncekey.core.duration import human
from oncekey.core.store import SWEEP_LIMIT_DEFAULT

LIMIT_MAX = 100_000
EVERY_MIN_US = 1_000_000
EVERY_MAX_US = 24 * 3_600_000_000


@click.command()
@url_argument
@click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=SWEEP_LIMIT_DEFAULT,
    show_default=True,
    help="Records to remove per batch: one batch is one short transaction.",
)
@click.option("--once", is_flag=True, help="Remove one batch and stop.")
@click.option(
    "--tier",
    type=click.Choice(TIERS),
    default=TIERS[0],
    show_default=True,
    help="keys: records whose keep and audit time are over; audit: past generations kept for the "
    "audit trail. PostgreSQL and Redis only; other stores sweep both together.",
)
@click.option(
    "--every",
    callback=duration(EVERY_MIN_US, EVERY_MAX_US),
    metavar="DURATION",
    help="Sweep again after this time (10m, 1h) until interrupted.",
)
@json_option
def sweep(url: str, limit: int, once: bool, tier: str, every: int | None, as_json: bool) -> None:
    """Remove records nothing needs any more.

    A record is removed when its keep time and its audit time are over; never while it is in
    flight or still answers retries. It may run beside the application, and stops when nothing is
    left. With retention=ring in the URL a batch is a whole slot, emptied at once.

    For cron use the plain form, every ten minutes or so. With --every it stays and sweeps again
    and again: of all processes that do so on one store, the application's own included, one is
    elected to, and another takes its place when it ends. Ctrl-C and SIGTERM end it after the
    batch under way, with exit code 0; --json then prints one document per sweep, a line each. A
    sweep that fails because the store is down is reported on stderr and tried again.

    \b
    Examples:
      oncekey sweep sqlite:///payments.db
      oncekey sweep postgresql://sweeper@db/shop --every 10m
      oncekey sweep postgresql://sweeper@db/shop --tier audit --limit 500 --json
    """
    if once and every is not None:
        raise click.UsageError("--once ends after one batch, --every never does; choose one")
    out = Output(as_json=as_json)
    found = has_records(url) if every is None else has_records_in_time(url, every / 1_000_000)
    if found is None:  # a signal came while the store was away
        return
    if not found and every is None and tier == TIERS[0]:
        _report(out, url, SweepResult())
        return
    # The store itself, not Once: sweeping needs no secret, and must not bind one.
    with closing(open_store(url)) as store:
        batch = batch_function(store, limit, tier)
        show_progress = partial(_show_progress, out)
        if every is not None:
            report = _reporter(out, url, tier, every)
            shares = tier != TIERS[0]
            sweep_periodically(
                store, batch, every, shares=shares, show_progress=show_progress, report=report
            )
            return
        with show_progress() as on_progress:
            done = sweep_until_done(batch, on_progress, one_batch=once)
    _report(out, url, done)


@contextmanager
def _show_progress(out: Output) -> Iterator[OnProgress]:
    with out.progress("sweeping") as show:
        yield lambda removed: show(f"sweeping: {removed:,} removed")


def _report(out: Output, url: str, done: SweepResult) -> None:
    if out.as_json:
        out.data({"store": redact_url(url), "removed": done.removed, "batches": done.batches})
    else:
        out.line(f"{_records(done.removed)} removed from {redact_url(url)}")


def _reporter(out: Output, url: str, tier: str, every: int) -> Callable[[SweepResult], None]:
    """A function that reports each sweep; of those that another process does, only the first."""
    was_elected = True

    def report(done: SweepResult) -> None:
        nonlocal was_elected
        if done.error is not None:
            error_line(f"{done.error}; it is tried again in {human(every)}")
            return
        if done.elected or was_elected:
            _report_sweep(out, url, tier, done)
        was_elected = done.elected

    return report


def _report_sweep(out: Output, url: str, tier: str, done: SweepResult) -> None:
    at = datetime.now(UTC)
    if out.as_json:
        event: dict[str, Any] = {"at": at, "store": redact_url(url), "tier": tier}
        counts = {"elected": done.elected, "removed": done.removed, "batches": done.batches}
        out.event({**event, **counts})
    elif done.elected:
        out.line(f"{at:%Y-%m-%d %H:%M:%S} UTC  {_records(done.removed)} removed")
    else:
        out.line(f"{at:%Y-%m-%d %H:%M:%S} UTC  another process sweeps this store; standing by")


def _records(count: int) -> str:
    return f"{count:,} {'record' if count == 1 else 'records'}"
