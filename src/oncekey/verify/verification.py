"""A verification: all probes one after the other against one target, and what came of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from oncekey.verify.probe import Budget, BudgetSpent, Limits, Probe, ProbeRun
from oncekey.verify.profile import Profile
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import CountFailed, Target
from oncekey.verify.verdict import Status, Verdict, not_observable


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """What one probe found, everything it sent for that, and how long it took."""

    verdict: Verdict
    exchanges: tuple[Exchange, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Verification:
    """What the probes of one run found, in their order.

    requests         how many requests were sent
    is_interrupted   True if it was cancelled, and what is not there was not looked at
    """

    target: Target
    profile: Profile
    records: tuple[ProbeRecord, ...]
    began_at: datetime
    seconds: float
    requests: int
    is_interrupted: bool = False

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(record.verdict for record in self.records)

    def count(self, status: Status) -> int:
        """How many guarantees stand like this."""
        return sum(verdict.status is status for verdict in self.verdicts)

    @property
    def is_violated(self) -> bool:
        return any(verdict.status is Status.VIOLATED for verdict in self.verdicts)


async def verify(
    target: Target,
    profile: Profile,
    probes: Sequence[Probe],
    *,
    limits: Limits | None = None,
    budget: Budget | None = None,
    on_probe: Callable[[Probe, Verdict | None], None] = lambda probe, verdict: None,
    keep_if_cancelled: bool = False,
) -> Verification:
    """Run the probes one after the other.

    `on_probe` is called with each probe before it begins, and again with its verdict. Who shows
    progress gives the `budget`, and reads from it how much was sent. With `keep_if_cancelled` a
    cancellation ends the probes, and what was found until then is returned.
    """
    limits = limits or Limits()
    began_at, began = datetime.now(UTC), time.monotonic()
    budget = budget or limits.budget()
    records: list[ProbeRecord] = []
    chosen = [probe for probe in probes if probe.guarantee not in profile.leaves_out]
    is_interrupted = False
    try:
        for probe in chosen:
            on_probe(probe, None)
            record = await _record(probe, ProbeRun(target, profile, limits, budget))
            records.append(record)
            on_probe(probe, record.verdict)
    except asyncio.CancelledError:
        if not keep_if_cancelled:
            raise
        is_interrupted = True
        records += [_not_run(probe) for probe in chosen[len(records) :]]
    sent = limits.requests - budget.requests_left
    took = time.monotonic() - began
    return Verification(target, profile, tuple(records), began_at, took, sent, is_interrupted)


def _not_run(probe: Probe) -> ProbeRecord:
    verdict = not_observable(probe.guarantee, "it was interrupted", "Run it again, to the end.")
    return ProbeRecord(verdict, (), 0.0)


async def _record(probe: Probe, run: ProbeRun) -> ProbeRecord:
    began = time.monotonic()
    try:
        verdict = await probe.run(run)
    except BudgetSpent as spent:
        verdict = not_observable(
            probe.guarantee, f"it was not finished: {spent}", "Raise the limit, and run again."
        )
    except CountFailed as failed:
        verdict = not_observable(
            probe.guarantee,
            f"the effects could not be counted: {failed}",
            "Check the table [effects] or the options --count-..., and run again.",
        )
    return ProbeRecord(verdict, tuple(run.exchanges), time.monotonic() - began)
