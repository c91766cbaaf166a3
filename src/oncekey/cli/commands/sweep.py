"""`oncekey sweep`: it sweeps once until nothing is left, or periodically.

Of all processes that sweep a store periodically one is elected, so that several hosts may run the
same command; when it ends it resigns, and another one goes on at once.
"""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click

from oncekey.cli.command_input import duration, json_option, url_argument
from oncekey.cli.output import Output, UsageProblem, counted, error_line, utc
from oncekey.cli.password_redaction import redact_url
from oncekey.cli.signals import StopRequest, stop_on_signal
from oncekey.cli.store_access import has_records, has_records_in_time, open_store
from oncekey.core.duration import human
from oncekey.core.errors import StoreUnavailable
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, Store
from oncekey.engine.background.sweeper import pause_after

TIERS = ("all", "keys", "audit")
# A process that was not elected asks again after this time, or after a shorter period.
CANDIDATE_SECONDS = 30.0
_PERIODS_ELECTED = 2
SweepBatch = Callable[[], int]
Elect = Callable[[bytes, int], bool]
LIMIT_MAX = 100_000
EVERY_MIN_US = 1_000_000
EVERY_MAX_US = 24 * 3_600_000_000


class SweepResult(NamedTuple):
    """What one sweep came to. If it was not elected, another process sweeps the store."""

    removed: int = 0
    batches: int = 0
    elected: bool = True


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
        batch = _batch_function(store, limit, tier)
        if every is not None:
            _sweep_periodically(out, url, store, batch, every, tier)
            return
        done = _sweep_until_done(out, batch, one_batch=once)
    _report(out, url, done)


def _report(out: Output, url: str, done: SweepResult) -> None:
    if out.as_json:
        out.data({"store": redact_url(url), "removed": done.removed, "batches": done.batches})
    else:
        out.line(f"{counted(done.removed, 'record')} removed from {redact_url(url)}")


def _report_sweep(out: Output, url: str, tier: str, done: SweepResult) -> None:
    at = datetime.now(UTC)
    if out.as_json:
        event: dict[str, Any] = {"at": at, "store": redact_url(url), "tier": tier}
        counts = {"elected": done.elected, "removed": done.removed, "batches": done.batches}
        out.event({**event, **counts})
    elif done.elected:
        out.line(f"{utc(at)}  {counted(done.removed, 'record')} removed")
    else:
        out.line(f"{utc(at)}  another process sweeps this store; standing by")


# --- the loop -------------------------------------------------------------------------------------


def _batch_function(store: Store, limit: int, tier: str) -> SweepBatch:
    """A function that removes one batch. Raises UsageProblem if the store cannot sweep this tier
    alone."""
    if tier == "all":
        return lambda: store.sweep(limit)
    sweep: Any = store.sweep
    if "tier" not in inspect.signature(sweep).parameters:
        raise UsageProblem(f"--tier {tier}: this store sweeps its tiers together; leave it out")
    return lambda: int(sweep(limit, tier=tier))


def _sweep_until_done(
    out: Output,
    batch: SweepBatch,
    *,
    one_batch: bool = False,
    may_go_on: Callable[[], bool] = lambda: True,
    rest: Callable[[float], None] = time.sleep,
) -> SweepResult:
    """Sweeps batch after batch until nothing is left or `may_go_on()` is false. It sleeps after
    each batch for as long as the batch took, by `rest(seconds)`, so that callers get the store."""
    removed = batches = 0
    with out.progress("sweeping") as show:
        while may_go_on():
            began = time.monotonic_ns()
            count = batch()
            took = (time.monotonic_ns() - began) // 1_000
            if not count:
                break
            removed += count
            batches += 1
            show(f"sweeping: {removed:,} removed")
            if one_batch:
                break
            rest(pause_after(took) / 1_000_000)
    return SweepResult(removed, batches)


class Candidate:
    """One process that wants to sweep a store."""

    def __init__(self, store: Store, every: int, *, shares: bool) -> None:
        """`every` is in microseconds. With `shares` it resigns after each sweep, because processes
        that sweep another tier stand for the same election."""
        self._elect: Elect = getattr(store, "elect", lambda token, lease: True)
        self._token = secrets.token_bytes(16)
        self._lease = every * _PERIODS_ELECTED
        self._shares = shares
        self._is_elected = False

    def ask(self) -> bool:
        """Whether this process may sweep now; if so it is elected for the next two periods."""
        self._is_elected = self._elect(self._token, self._lease)
        return self._is_elected

    def sweep_ended(self) -> None:
        if self._shares:
            self.resign()

    def resign(self) -> None:
        """Lets another process go on at once. If the store is down, its lease ends later."""
        if self._is_elected:
            self._is_elected = False
            try:
                self._elect(self._token, 0)
            except StoreUnavailable:
                pass


def _sweep_periodically(
    out: Output, url: str, store: Store, batch: SweepBatch, every: int, tier: str
) -> None:
    """Sweeps every `every` microseconds until SIGINT or SIGTERM, and reports each sweep; of those
    that another process does, only the first. A sweep that fails because the store is down is
    reported, and tried again after the next period."""
    candidate = Candidate(store, every, shares=tier != TIERS[0])
    seconds = every / 1_000_000
    was_elected = True
    with stop_on_signal() as stop:
        try:
            while not stop.requested:
                pause = seconds
                try:
                    done = _sweep_if_elected(out, candidate, batch, stop)
                except StoreUnavailable as error:
                    error_line(f"{error}; it is tried again in {human(every)}")
                else:
                    if done.elected or was_elected:
                        _report_sweep(out, url, tier, done)
                    was_elected = done.elected
                    if not done.elected:
                        pause = min(seconds, CANDIDATE_SECONDS)
                stop.wait(pause)
        finally:
            candidate.resign()


def _sweep_if_elected(
    out: Output, candidate: Candidate, batch: SweepBatch, stop: StopRequest
) -> SweepResult:
    if not candidate.ask():
        return SweepResult(elected=False)
    # Asking again before every batch renews the lease, however long the sweep takes.
    done = _sweep_until_done(
        out,
        batch,
        may_go_on=lambda: not stop.requested and candidate.ask(),
        rest=stop.wait,
    )
    candidate.sweep_ended()
    return done
