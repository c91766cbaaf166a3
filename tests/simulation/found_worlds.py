"""Worlds that broke an invariant when they were found. The code was mended, and they stay.

A seed is worth as much as the way in which worlds are drawn from it, and that may change; so a
world is also written out, made small.
"""

from __future__ import annotations

from tests.support.explorer.scenario import BodyEnding
from tests.support.simulation.plan import (
    MILLISECOND,
    SECOND,
    BodyPlan,
    Call,
    Fault,
    FaultKind,
    Plan,
    ProcessPlan,
    Settings,
    Try,
)

from oncekey.core.policy import PolicyTimes

FOUND_SEEDS = {
    "a completer decides after the silent owner came back": 17057,
    "the same, and the completer runs it again": 2703,
}


def _a_silent_owner_comes_back() -> Plan:
    """An owner is silent for longer than its lease. A completer asks what happened: nothing. The
    owner renews, acts and dies, and only then the completer's decision arrives."""
    lease = 200 * MILLISECOND
    times = PolicyTimes(lease, 10 * SECOND, audit=0, wait=0, retry_safe=False)
    settings = Settings(times, recoverable=True, registered=False)
    body = BodyPlan(2 * lease, 0, True, lease, BodyEnding.RETURNED, careful=True)
    faults = (
        Fault(0, FaultKind.PAUSE, 50 * MILLISECOND, lasts=320 * MILLISECOND, process=0),
        Fault(1, FaultKind.COMPLETER, 290 * MILLISECOND, process=1),
        Fault(2, FaultKind.CRASH, 430 * MILLISECOND, process=0),
    )
    return Plan(
        seed=1,
        settings=(settings, settings),
        processes=(ProcessPlan(0, 0, False), ProcessPlan(0, 0, False)),
        calls=(Call(0, 0, 0, 0, body, (Try(0, 0),)),),
        faults=faults,
        patience=100 * MILLISECOND,
        spread=MILLISECOND,
    )


FOUND_WORLDS = {"a silent owner comes back": _a_silent_owner_comes_back()}
