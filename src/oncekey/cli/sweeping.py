"""Sweeping a store from the command line: once until nothing is left, or again and again.

Again and again, one sweeper per store is elected, so that several hosts may run the same command;
when it ends it resigns, and the next one goes on at once. Owns the rounds and the election.
Prints nothing.
"""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from oncekey.cli.opening import UsageProblem
from oncekey.cli.stopping import Stop, until_told
from oncekey.core.errors import StoreUnavailable
from oncekey.core.store import Store
from oncekey.engine.sweeper_base import rest_after

TIERS = ("all", "keys", "audit")
# Who was not elected asks again after this time, or after the period if that is shorter.
CANDIDATE_SECONDS = 30.0
_PERIODS_ELECTED = 2

Batch = Callable[[], int]
Tell = Callable[[int], None]
Elect = Callable[[bytes, int], bool]
# Shows that a round is under way, and gives what is told how many records it has removed.
Watch = Callable[[], AbstractContextManager[Tell]]


class Round(NamedTuple):
    """What one pass over the store came to. Not elected: another process sweeps it."""

    removed: int = 0
    batches: int = 0
    elected: bool = True
    error: StoreUnavailable | None = None


def batch_of(store: Store, limit: int, tier: str) -> Batch:
    """Removes at most one batch; UsageProblem where the store cannot sweep this tier alone."""
    if tier == "all":
        return lambda: store.sweep(limit)
    sweep: Any = store.sweep
    if "tier" not in inspect.signature(sweep).parameters:
        raise UsageProblem(f"--tier {tier}: this store sweeps its tiers together; leave it out")
    return lambda: int(sweep(limit, tier=tier))


def sweep_round(
    batch: Batch,
    tell: Tell,
    *,
    one_batch: bool = False,
    may_go_on: Callable[[], bool] = lambda: True,
    rest: Callable[[float], None] = time.sleep,
) -> Round:
    """Batch after batch until nothing is left; `may_go_on` is asked before each of them. After
    each the store is left to its callers for a while, by `rest(seconds)`."""
    removed = batches = 0
    while may_go_on():
        began = time.monotonic_ns()
        count = batch()
        took = (time.monotonic_ns() - began) // 1_000
        if not count:
            break
        removed += count
        batches += 1
        tell(removed)
        if one_batch:
            break
        rest(rest_after(took) / 1_000_000)
    return Round(removed, batches)


class Candidate:
    """One process that would sweep a store, elected or not."""

    def __init__(self, store: Store, every: int, *, shares: bool) -> None:
        """`every` in microseconds. `shares`: it stands down after each round, since those that
        sweep another tier are elected to the same office."""
        self._elect: Elect = getattr(store, "elect", lambda token, lease: True)
        self._token = secrets.token_bytes(16)
        self._lease = every * _PERIODS_ELECTED
        self._shares = shares
        self._is_elected = False

    def ask(self) -> bool:
        """Whether this one may sweep now; it is elected for the next two periods then."""
        self._is_elected = self._elect(self._token, self._lease)
        return self._is_elected

    def round_over(self) -> None:
        if self._shares:
            self.resign()

    def resign(self) -> None:
        """Let another one go on at once. Where the store is down, the lease does it later."""
        if self._is_elected:
            self._is_elected = False
            try:
                self._elect(self._token, 0)
            except StoreUnavailable:
                pass


def sweep_for_ever(
    store: Store,
    batch: Batch,
    every: int,
    *,
    shares: bool,
    watch: Watch,
    report: Callable[[Round], None],
) -> None:
    """A round every `every` microseconds until SIGINT or SIGTERM. A round that fails because the
    store is down is reported, and the next one is another try."""
    candidate = Candidate(store, every, shares=shares)
    seconds = every / 1_000_000
    with until_told() as stop:
        try:
            while not stop.told:
                done = _round(candidate, batch, watch, stop)
                report(done)
                stop.wait(seconds if done.elected else min(seconds, CANDIDATE_SECONDS))
        finally:
            candidate.resign()


def _round(candidate: Candidate, batch: Batch, watch: Watch, stop: Stop) -> Round:
    try:
        if not candidate.ask():
            return Round(elected=False)
        with watch() as tell:
            # Asking again before every batch renews the lease, however long the round is.
            done = sweep_round(
                batch,
                tell,
                may_go_on=lambda: not stop.told and candidate.ask(),
                rest=stop.wait,
            )
        candidate.round_over()
        return done
    except StoreUnavailable as error:
        return Round(error=error)
