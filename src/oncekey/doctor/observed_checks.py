"""Checks of any store: what it guarantees, and what its newest records tell of lease and keep.

Pure functions of what was read; the stores' own checks are in their packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from oncekey.core.duration import human
from oncekey.core.guarantees import Guarantee, Level
from oncekey.stores.inspection import Check, Finding, ObservedRun

RETRY_HORIZON_DEFAULT: Final = "24h"
# Fewer runs of an operation than this say nothing about one in a hundred.
RUNS_MIN: Final = 20

CHECKUP: Final = Check(
    "store.checkup",
    "whether the store brings checks of its own",
    "what can silently break a store, only the store knows",
    "ask whoever wrote the store for a checkup(url)",
)
GUARANTEE: Final = Check(
    "store.guarantee",
    "the level that the store supports at this URL",
    "below at most once an acknowledged claim can be lost, and its operation runs a second time",
    "mend what the reason says; Policy(require='at_most_once') lets nothing run until then",
)
LEASE: Final = Check(
    "store.lease",
    "the lease against how long the newest operations really took",
    "an operation that takes longer than its lease lives by heartbeats alone: a process that is "
    "paused, or an event loop that is blocked, loses its key while it works",
    "set lease= above the longest usual run, or split the operation into steps; look for what "
    "blocks the process",
)
KEEP: Final = Check(
    "store.keep",
    "the keep of the newest records against the retry horizon",
    "a key that expires while its client still retries is a second execution",
    "set keep= to the longest time after which a client, queue or batch job may still retry; say "
    "that time with --retry-horizon",
)
OBSERVED_CHECKS: Final = (CHECKUP, GUARANTEE, LEASE, KEEP)


def guarantee(found: Guarantee) -> Finding:
    what = f"{found.level.label}: {found.reason} (clock: {found.clock.value})"
    return GUARANTEE.broken(what) if found.level is Level.BEST_EFFORT else GUARANTEE.ok(what)


def observed(runs: Sequence[ObservedRun], horizon: int) -> Iterator[Finding]:
    """What the newest records tell; `horizon` is in microseconds."""
    if not runs:
        yield LEASE.info("not checked: no operation has ended yet", "ask again under load")
        yield KEEP.info("not checked: no operation has ended yet", "ask again under load")
        return
    by_operation: dict[str, list[ObservedRun]] = {}
    for run in runs:
        by_operation.setdefault(run.operation, []).append(run)
    yield _lease(by_operation)
    yield _keep(by_operation, horizon)


def _lease(by_operation: dict[str, list[ObservedRun]]) -> Finding:
    bad = [text for name, runs in by_operation.items() if (text := _lease_fault(name, runs))]
    if bad:
        return LEASE.warning("; ".join(bad))
    longest = max(run.took for runs in by_operation.values() for run in runs)
    count = sum(map(len, by_operation.values()))
    return LEASE.ok(f"the longest of the {count} newest took {longest / 1_000_000:,.3f} s")


def _lease_fault(operation: str, runs: list[ObservedRun]) -> str:
    """What is wrong with the lease of an operation; empty if nothing is."""
    leased = [(run.took, run.left) for run in runs if run.left is not None]
    late = sum(left < 0 for _, left in leased)
    if late:
        return f"{late} of {len(leased)} runs of {operation!r} ended after their lease"
    if len(leased) < RUNS_MIN:
        return ""
    took = percentile_99([took for took, _ in leased])
    lease = max(left for _, left in leased)
    if took <= lease:
        return ""
    return (
        f"one run in 100 of {operation!r} takes {took / 1_000_000:,.1f} s or longer, its lease is "
        f"about {lease / 1_000_000:,.1f} s"
    )


def percentile_99(values: Sequence[int]) -> int:
    """The value that 99 in 100 do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[-(-99 * len(ordered) // 100) - 1]


def _keep(by_operation: dict[str, list[ObservedRun]], horizon: int) -> Finding:
    shortest = {name: min(run.keep for run in runs) for name, runs in by_operation.items()}
    short = [f"{name!r} keeps {human(keep)}" for name, keep in shortest.items() if keep < horizon]
    if short:
        return KEEP.warning(
            f"shorter than the retry horizon of {human(horizon)}: {', '.join(short)}"
        )
    return KEEP.ok(
        f"{human(min(shortest.values()))} or longer, the retry horizon is {human(horizon)}"
    )
