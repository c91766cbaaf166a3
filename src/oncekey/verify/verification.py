"""A verification: all probes one after the other against one target, and what came of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from oncekey.verify.probe import Budget, BudgetSpent, Limits, Probe, ProbeRun
from oncekey.verify.profile import Profile
from oncekey.verify.target import Target
from oncekey.verify.verdict import Status, Verdict, not_observable


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdicts of one run, in the order of its probes.

    requests   how many requests were sent
    """

    target: Target
    profile: Profile
    verdicts: tuple[Verdict, ...]
    began_at: datetime
    seconds: float
    requests: int

    @property
    def is_violated(self) -> bool:
        return any(verdict.status is Status.VIOLATED for verdict in self.verdicts)


async def verify(
    target: Target,
    profile: Profile,
    probes: Sequence[Probe],
    *,
    limits: Limits | None = None,
    on_probe: Callable[[Probe, Verdict | None], None] = lambda probe, verdict: None,
) -> Verification:
    """Run the probes one after the other.

    `on_probe` is called with each probe before it begins, and again with its verdict.
    """
    limits = limits or Limits()
    began_at, began = datetime.now(UTC), time.monotonic()
    budget = Budget(limits.requests, began + limits.total_seconds)
    verdicts = []
    for probe in probes:
        if probe.guarantee in profile.leaves_out:
            continue
        on_probe(probe, None)
        try:
            verdict = await probe.run(ProbeRun(target, profile, limits, budget))
        except BudgetSpent as spent:
            verdict = not_observable(
                probe.guarantee, f"it was not finished: {spent}", "Raise the limit, and run again."
            )
        verdicts.append(verdict)
        on_probe(probe, verdict)
    sent = limits.requests - budget.requests_left
    took = time.monotonic() - began
    return Verification(target, profile, tuple(verdicts), began_at, took, sent)
