"""Draws the plan of a world from its seed.

Faults are drawn where they hurt: not anywhere in time, but shortly after a call began, or around
the end of its body, its lease or its `keep`, for all interesting orders are decided there.
"""

from __future__ import annotations

from random import Random
from typing import Final

from tests.support.explorer.scenario import BodyEnding
from tests.support.simulation.plan import (
    IDS,
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
from oncekey.core.record import FOREVER_US

# The promise about an owner's deadline needs clocks that run alike: over the longest lease the
# drift must be less than the time of the fastest message.
LEASES: Final = (60 * MILLISECOND, 200 * MILLISECOND, SECOND)
DRIFT_MAX_PPM: Final = 300
CALLS_MAX: Final = 5
HERD_MAX: Final = 9
FAULTS_MAX: Final = 5

_WEIGHTS: Final = {
    FaultKind.CRASH: 4,
    FaultKind.PAUSE: 5,
    FaultKind.LOSE_REQUESTS: 2,
    FaultKind.LOSE_REPLIES: 3,
    FaultKind.DELAY_REQUESTS: 2,
    FaultKind.DELAY_REPLIES: 2,
    FaultKind.REPEAT_REQUESTS: 1,
    FaultKind.DEPLOY: 2,
    FaultKind.COMPLETER: 3,
    FaultKind.STORE_DOWN: 1,
    FaultKind.STORE_CRASH: 1,
    FaultKind.CLOCK_AHEAD: 1,
    FaultKind.CLOCK_BACK: 1,
    FaultKind.SWEEP: 4,
    FaultKind.OPERATOR: 3,
    FaultKind.FREE_FAILED: 1,
}
_KINDS: Final = tuple(kind for kind, weight in _WEIGHTS.items() for _ in range(weight))
_ENDINGS: Final = (
    *(BodyEnding.RETURNED,) * 10,
    *(BodyEnding.RAISED,) * 3,
    BodyEnding.NOT_STARTED,
    BodyEnding.TERMINAL,
    BodyEnding.INTERRUPTED,
)


def draw(seed: int, durable: bool = True) -> Plan:
    """The plan of this seed."""
    return _Draw(seed).plan(durable)


class _Draw:
    """The random choices of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = Random(seed).random

    def plan(self, durable: bool) -> Plan:
        first = self._settings()
        settings = (first, self._settings() if self._chance(0.4) else first)
        lease = first.times.lease
        processes = tuple(self._process() for _ in range(1 + self._below(4)))
        herd = self._chance(0.1)
        count = 5 + self._below(HERD_MAX - 4) if herd else 1 + self._below(CALLS_MAX)
        keys = 1 if herd or self._chance(0.7) else len(IDS)
        calls = tuple(
            self._call(number, herd, keys, len(processes), lease) for number in range(count)
        )
        faults = tuple(
            self._fault(number, calls, first.times, len(processes), keys)
            for number in range(self._below(FAULTS_MAX + 1))
        )
        spread = self._one_of((MILLISECOND, 8 * MILLISECOND, 30 * MILLISECOND))
        patience = 2 * spread + self._one_of((5 * MILLISECOND, lease // 2, 2 * lease))
        return Plan(self._seed, settings, processes, calls, faults, patience, spread, durable)

    # --- choices ------------------------------------------------------------------------------

    def _below(self, end: int) -> int:
        return int(self._random() * end)

    def _chance(self, share: float) -> bool:
        return self._random() < share

    def _one_of(self, values: tuple[int, ...]) -> int:
        return values[int(self._random() * len(values))]

    # --- parts --------------------------------------------------------------------------------

    def _settings(self) -> Settings:
        lease = self._one_of(LEASES)
        times = PolicyTimes(
            lease=lease,
            keep=self._one_of((lease // 2, 2 * lease, 10 * lease, 60 * SECOND)),
            audit=self._one_of((0, lease, 10 * SECOND)),
            wait=self._one_of((0, 0, lease // 2, 3 * lease)),
            retry_safe=self._chance(0.5),
            keep_unknown=FOREVER_US if self._chance(0.8) else 3 * lease,
            store_timeout=self._one_of((0, lease // 2, 2 * SECOND)),
            recover_grace=self._one_of((0, lease)),
        )
        return Settings(times, self._chance(0.4), self._chance(0.2))

    def _process(self) -> ProcessPlan:
        drift = self._below(2 * DRIFT_MAX_PPM + 1) - DRIFT_MAX_PPM
        return ProcessPlan(self._below(10**12), drift, self._chance(0.5))

    def _call(self, number: int, herd: bool, keys: int, processes: int, lease: int) -> Call:
        at = self._below(5 * MILLISECOND)
        if not herd:
            at = self._one_of((at, at, self._below(3 * lease), lease + at, self._below(8 * lease)))
        tries = 1 + self._below(2) + self._below(2)
        return Call(
            number,
            at,
            self._below(keys),
            int(self._chance(0.1)),
            self._body(lease),
            tuple(self._try(processes, lease) for _ in range(tries)),
        )

    def _try(self, processes: int, lease: int) -> Try:
        some = self._below(20 * MILLISECOND)
        after = self._one_of((some, lease // 2 + some, lease + some, 3 * lease + some, 11 * lease))
        return Try(after, self._below(processes))

    def _body(self, lease: int) -> BodyPlan:
        ending = _ENDINGS[self._below(len(_ENDINGS))]
        acts = ending is BodyEnding.RETURNED
        if ending is not BodyEnding.RETURNED and ending is not BodyEnding.NOT_STARTED:
            acts = self._chance(0.5)
        steps = 1 + self._below(2) if self._chance(0.15) else 0
        waits = (MILLISECOND, 10 * MILLISECOND, lease // 4, lease - 5 * MILLISECOND, 2 * lease)
        before, after = self._one_of(waits), self._one_of(waits)
        return BodyPlan(before, steps, acts, after, ending, self._chance(0.7))

    def _fault(
        self, number: int, calls: tuple[Call, ...], times: PolicyTimes, processes: int, keys: int
    ) -> Fault:
        kind = _KINDS[self._below(len(_KINDS))]
        call = calls[self._below(len(calls))]
        lease = times.lease
        some = self._below(10 * MILLISECOND)
        since = self._one_of(
            (
                some,
                3 * some,
                call.body.before + call.body.after + some,
                lease + some - 5 * MILLISECOND,
                self._below(3 * lease),
                lease + times.keep + some - 5 * MILLISECOND,
            )
        )
        lasts = self._one_of((2 * some, lease // 3, lease + 3 * some, 3 * lease))
        amount = self._one_of((1 + some, lease + some, 3 * lease, times.keep + lease))
        if kind is FaultKind.STORE_CRASH:
            amount = 1 + self._below(4)
        process = call.tries[0].process if self._chance(0.7) else self._below(processes)
        return Fault(
            number, kind, max(0, call.at + since), lasts, process, self._below(keys), amount
        )
