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
INCIDENTS: Final = 0.15  # the share of worlds in which several faults make one story

_SILENCE: Final = (FaultKind.CRASH, FaultKind.PAUSE, FaultKind.PAUSE)
_NETWORK: Final = (
    FaultKind.LOSE_REQUESTS,
    FaultKind.LOSE_REPLIES,
    FaultKind.DELAY_REQUESTS,
    FaultKind.DELAY_REPLIES,
    FaultKind.REPEAT_REQUESTS,
    FaultKind.STORE_DOWN,
)
_DECISIONS: Final = (FaultKind.OPERATOR, FaultKind.COMPLETER)
_TIME: Final = (
    FaultKind.SWEEP,
    FaultKind.SWEEP,
    FaultKind.SWEEP,
    FaultKind.CLOCK_AHEAD,
    FaultKind.CLOCK_BACK,
    FaultKind.CLOCK_BACK,
)
# A world has one of these themes: what is likely to go wrong in it. The last one is everything.
THEMES: Final = (
    (*_NETWORK, *_SILENCE),
    (*_NETWORK, FaultKind.STORE_CRASH, FaultKind.DEPLOY),
    (*_SILENCE, *_SILENCE, *_DECISIONS, FaultKind.DEPLOY),
    (*_SILENCE, *_DECISIONS, *_DECISIONS, FaultKind.FREE_FAILED, FaultKind.LOSE_REPLIES),
    (*_TIME, *_SILENCE),
    tuple(FaultKind),
)
_ENDINGS: Final = (
    *(BodyEnding.RETURNED,) * 10,
    *(BodyEnding.RAISED,) * 3,
    BodyEnding.NOT_STARTED,
    BodyEnding.TERMINAL,
    BodyEnding.INTERRUPTED,
)


def draw(seed: int, durable: bool = True, scale: int = 1) -> Plan:
    """The plan of this seed. With a `scale` there is that much more of everything, for longer."""
    return _Draw(seed, scale).plan(durable)


class _Draw:
    """The random choices of one seed."""

    def __init__(self, seed: int, scale: int) -> None:
        self._seed = seed
        self._scale = scale
        self._random = Random(seed).random

    def plan(self, durable: bool) -> Plan:
        first = self._settings()
        settings = (first, self._settings() if self._chance(0.4) else first)
        lease = first.times.lease
        scale = self._scale
        processes = tuple(self._process() for _ in range(scale + self._below(4)))
        herd = self._chance(0.1)
        most = 5 + self._below(HERD_MAX - 4) if herd else 1 + self._below(CALLS_MAX)
        count = scale * most
        keys = 1 if herd or self._chance(0.7) else len(IDS)
        calls = tuple(
            self._call(number, herd, keys, len(processes), lease) for number in range(count)
        )
        theme = THEMES[self._below(len(THEMES))]
        faults = tuple(
            self._fault(number, theme, calls, first.times, len(processes), keys)
            for number in range(scale * self._below(FAULTS_MAX + 1))
        )
        if self._chance(INCIDENTS):
            call, incident = self._incident(calls[0], first.times, len(processes))
            calls = (call, *calls[1 : scale + self._below(2)])
            faults = (*faults[: scale - 1 + self._below(2)], *incident)
            settings = (first._replace(recoverable=True, registered=True), settings[1])
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
            soon, late = self._below(3 * lease), self._below(8 * lease * self._scale)
            at = self._one_of((at, at, soon, lease + at, late))
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
        short = (MILLISECOND, 10 * MILLISECOND, lease // 4)
        waits = (*short, *short, lease - 5 * MILLISECOND, 2 * lease)
        before, after = self._one_of(waits), self._one_of(waits)
        return BodyPlan(before, steps, acts, after, ending, self._chance(0.7))

    def _fault(
        self,
        number: int,
        theme: tuple[FaultKind, ...],
        calls: tuple[Call, ...],
        times: PolicyTimes,
        processes: int,
        keys: int,
    ) -> Fault:
        kind = theme[self._below(len(theme))]
        call = calls[self._below(len(calls))]
        lease = times.lease
        some = self._below(10 * MILLISECOND)
        since = self._one_of(self._moments(kind, call, times, some))
        lasts = self._one_of((2 * some, lease // 3, lease + 3 * some, lease + 3 * some, 3 * lease))
        amount = self._one_of((1 + some, lease + some, 3 * lease, times.keep + lease))
        if kind is FaultKind.STORE_CRASH:
            amount = 1 + self._below(4)
        process = call.tries[0].process if self._chance(0.7) else self._below(processes)
        return Fault(
            number, kind, max(0, call.at + since), lasts, process, self._below(keys), amount
        )

    def _moments(
        self, kind: FaultKind, call: Call, times: PolicyTimes, some: int
    ) -> tuple[int, ...]:
        """When a fault of this kind hurts, counted from the call: `some` is a little while."""
        lease, begins = times.lease, call.body.before
        any_time = self._below(4 * lease)
        if kind in _DECISIONS:
            return (lease + some, lease + some + self._below(lease), any_time)
        if kind in _TIME:
            expires = begins + call.body.after + times.keep
            return (begins + some, lease + some, expires + some, expires + times.audit + some)
        acts, ends = begins + some - 5 * MILLISECOND, begins + call.body.after + some
        return (some, acts, acts, ends, lease // 4 + some, begins + self._below(lease), any_time)

    def _incident(self, call: Call, times: PolicyTimes, processes: int) -> tuple[Call, list[Fault]]:
        """Some faults in the order that makes a story, and the call they happen to:

        1.  An owner is silent for longer than its lease, somebody looks at its key meanwhile, the
            owner comes back and acts, and dies.
        2.  An owner dies, its caller does not come back, and a completer finds the key.
        3.  The key is swept, the clock is set back, and the key is used again.
        """
        lease, key, at = times.lease, call.key, call.at
        some, where = self._below(lease // 4), call.tries[0].process
        other = (where + 1) % processes
        decision = _DECISIONS[self._below(len(_DECISIONS))]
        script = self._below(3)
        if script == 0:
            body = BodyPlan(2 * lease, 0, True, lease, BodyEnding.RETURNED, True)
            looks, dies = at + lease + lease // 2, at + 2 * lease + lease // 3 + some
            return call._replace(body=body), [
                Fault(10, FaultKind.PAUSE, at + lease // 4 + some, lease + 2 * some, where),
                Fault(11, decision, looks + some, 0, other, key),
                Fault(12, FaultKind.CRASH, dies, 0, where),
            ]
        if script == 1:
            body = call.body._replace(steps=self._below(3))
            return call._replace(body=body, tries=call.tries[:1]), [
                Fault(10, FaultKind.CRASH, at + body.before + some, 0, where),
                Fault(11, FaultKind.COMPLETER, at + lease + some, 0, other, key),
            ]
        gone = at + call.body.before + call.body.after + lease + times.keep + times.audit
        again = Try(gone - at + 3 * lease, where)
        back = times.keep + times.audit + 4 * lease
        return call._replace(tries=(*call.tries[:1], again)), [
            Fault(10, FaultKind.SWEEP, gone + lease, 0),
            Fault(11, FaultKind.CLOCK_BACK, gone + lease + some, amount=back),
        ]
