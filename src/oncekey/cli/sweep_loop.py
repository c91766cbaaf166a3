"""The loop of `oncekey sweep`: sweeps once until nothing is left, or periodically.

Of all processes that sweep a store periodically one is elected, so that several hosts may run the
same command; when it ends it resigns, and another one goes on at once. Prints nothing.
"""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from oncekey.cli.open_store import UsageProblem
from oncekey.cli.signals import StopRequest, stop_on_signal
from oncekey.core.errors import StoreUnavailable
from oncekey.core.store import Store
from oncekey.engine.background.sweeper import pause_after

TIERS = ("all", "keys", "audit")
# A process that was not elected asks again after this time, or after a shorter period.
CANDIDATE_SECONDS = 30.0
_PERIODS_ELECTED = 2

SweepBatch = Callable[[], int]
OnProgress = Callable[[int], None]
Elect = Callable[[bytes, int], bool]
# Shows that a sweep is running, and gives the function to call with the number of records removed.
ShowProgress = Callable[[], AbstractContextManager[OnProgress]]


class SweepResult(NamedTuple):
    """What one sweep came to. If it was not elected, another process sweeps the store."""

    removed: int = 0
    batches: int = 0
    elected: bool = True
    error: StoreUnavailable | None = None


def batch_function(store: Store, limit: int, tier: str) -> SweepBatch:
    """A function that removes one batch. Raises UsageProblem if the store cannot sweep this tier
    alone."""
    if tier == "all":
        return lambda: store.sweep(limit)
    sweep: Any = store.sweep
    if "tier" not in inspect.signature(sweep).parameters:
        raise UsageProblem(f"--tier {tier}: this store sweeps its tiers together; leave it out")
    return lambda: int(sweep(limit, tier=tier))


def sweep_until_done(
    batch: SweepBatch,
    on_progress: OnProgress,
    *,
    one_batch: bool = False,
    may_go_on: Callable[[], bool] = lambda: True,
    rest: Callable[[float], None] = time.sleep,
) -> SweepResult:
    """Sweeps batch after batch until nothing is left or `may_go_on()` is false. It sleeps after
    each batch for as long as the batch took, by `rest(seconds)`, so that callers get the store."""
    removed = batches = 0
    while may_go_on():
        began = time.monotonic_ns()
        count = batch()
        took = (time.monotonic_ns() - began) // 1_000
        if not count:
            break
        removed += count
        batches += 1
        on_progress(removed)
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


def sweep_periodically(
    store: Store,
    batch: SweepBatch,
    every: int,
    *,
    shares: bool,
    show_progress: ShowProgress,
    report: Callable[[SweepResult], None],
) -> None:
    """Sweeps every `every` microseconds until SIGINT or SIGTERM. A sweep that fails because the
    store is down is reported, and tried again after the next period."""
    candidate = Candidate(store, every, shares=shares)
    seconds = every / 1_000_000
    with stop_on_signal() as stop:
        try:
            while not stop.requested:
                result = _sweep_if_elected(candidate, batch, show_progress, stop)
                report(result)
                stop.wait(seconds if result.elected else min(seconds, CANDIDATE_SECONDS))
        finally:
            candidate.resign()


def _sweep_if_elected(
    candidate: Candidate, batch: SweepBatch, show_progress: ShowProgress, stop: StopRequest
) -> SweepResult:
    try:
        if not candidate.ask():
            return SweepResult(elected=False)
        with show_progress() as on_progress:
            # Asking again before every batch renews the lease, however long the sweep takes.
            done = sweep_until_done(
                batch,
                on_progress,
                may_go_on=lambda: not stop.requested and candidate.ask(),
                rest=stop.wait,
            )
        candidate.sweep_ended()
        return done
    except StoreUnavailable as error:
        return SweepResult(error=error)
