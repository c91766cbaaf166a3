"""The probe of concurrent duplicates: 2, 20 and 100 equal requests that are complete at once.

A round is one operation: its duplicates, then a retry. It is good if there is one effect and the
retry brings the success. A storm of refusals with no success afterwards is not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from oncekey.verify.probe import ProbeRun, Together
from oncekey.verify.probes.known_outcome import is_busy
from oncekey.verify.probes.outcome_evidence import (
    after_plain_retry,
    answers,
    cannot_count,
    count_effects,
    last_answer,
    violation,
)
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import Operation
from oncekey.verify.verdict import (
    Fault,
    Guarantee,
    Verdict,
    Violation,
    holds,
    not_observable,
    violated,
)

SIZES = (2, 20, 100)
ROUNDS = 3
# No round begins after this; every size has had one before any has a second.
ROUNDS_SECONDS = 12.0


@dataclass(frozen=True, slots=True)
class Round:
    """What came of one operation.

    effects_together   effects when all duplicates were answered
    effects            effects after the retry
    """

    operation: Operation
    together: Together
    retry: Exchange
    effects_together: int
    effects: int

    @property
    def successes(self) -> list[Exchange]:
        return [exchange for exchange in self.together.exchanges if exchange.is_success]

    @property
    def was_served(self) -> bool:
        """False if the server had no time for even two duplicates, so that nothing was shown."""
        return sum(not is_busy(exchange) for exchange in self.together.exchanges) > 1


class ConcurrentDuplicates:
    """Sends duplicates whose last bytes are released together, in several rounds."""

    guarantee: ClassVar = Guarantee.CONCURRENT_DUPLICATES
    sends: ClassVar = (
        f"{ROUNDS} rounds of {', '.join(map(str, SIZES[:-1]))} and {SIZES[-1]} equal requests with "
        "one key, released together; a retry after each round"
    )

    async def run(self, run: ProbeRun) -> Verdict:
        return await after_plain_retry(run, self.guarantee, lambda _: self._check(run))

    async def _check(self, run: ProbeRun) -> Verdict:
        rounds: list[Round] = []
        ends_at = time.monotonic() + ROUNDS_SECONDS
        for size in [min(size, run.limits.concurrency) for _ in range(ROUNDS) for size in SIZES]:
            if time.monotonic() >= ends_at:
                break
            done = await _round(run, size)
            if done is None:
                return cannot_count(run, self.guarantee)
            rounds.append(done)
            found = _fault_of(run, done)
            if found is not None:
                return violated(
                    self.guarantee, [found], n=_sent(rounds), window=_window(rounds[-1:])
                )
            if is_busy(done.retry):
                break  # it did not recover from this round, and would not from the next
        return self._conclusion(rounds)

    def _conclusion(self, rounds: Sequence[Round]) -> Verdict:
        """Judge rounds without a fault: they count if duplicates met and the retry succeeded."""
        good = [r for r in rounds if r.was_served and r.retry.is_success and r.effects == 1]
        met = [r for r in good if r.together.met > 1]
        if not good:
            last = rounds[-1]
            return not_observable(
                self.guarantee,
                f"no two duplicates were served: {answers([*last.together.exchanges, last.retry])}",
                "Lower --concurrency, or verify a server with nothing else to do and without a "
                "limit of requests.",
            )
        if not met:
            return not_observable(
                self.guarantee,
                "each request was answered before the next one was complete",
                "Give a main request whose handler takes longer, such as one that calls another "
                "service.",
            )
        unseen = tuple(
            f"{size} together: {answers(r.together.exchanges)}"
            for size, r in {len(r.together.exchanges): r for r in rounds if r not in good}.items()
            if not any(len(g.together.exchanges) == size for g in good)
        )
        sizes = sorted({len(r.together.exchanges) for r in met})
        return holds(
            self.guarantee,
            f"one effect and one outcome in each of {len(good)} rounds of "
            f"{_listed(sizes)} duplicates",
            n=_sent(good),
            window=_window(met),
            unseen=unseen,
        )


async def _round(run: ProbeRun, size: int) -> Round | None:
    """Send one operation `size` times at once, and once more; None if effects cannot be told."""
    operation = await run.operation()
    request = operation.request()
    together = await run.send_together([request] * size, "duplicate")
    effects_together = await count_effects(run, operation)
    retry = await last_answer(run, request)
    effects = await count_effects(run, operation)
    if effects_together is None or effects is None:
        return None
    return Round(operation, together, retry, effects_together, effects)


def _fault_of(run: ProbeRun, done: Round) -> Violation | None:
    size = len(done.together.exchanges)
    came = answers(done.together.exchanges)

    def found(fault: Fault, what: str) -> Violation:
        return violation(fault, what, run, done.operation)

    if done.effects_together > 1:
        what = f"{size} duplicates together had {done.effects_together} effects ({came})"
        return found(Fault.RACE, what)
    if done.effects > 1:
        if done.successes:
            what = f"{size} duplicates together had a success, and a retry ran again ({came})"
            return found(Fault.FAILURE_CLOBBERS_SUCCESS, what)
        what = f"{size} duplicates together had an effect and no success, and a retry ran again"
        return found(Fault.RERUN_AFTER_FAILURE, f"{what} ({came})")
    if done.retry.is_success or is_busy(done.retry) or not done.was_served:
        return None
    if done.successes and done.retry.status not in run.profile.in_flight:
        what = f"one of {size} duplicates succeeded, and later retries get {done.retry.outcome()}"
        return found(Fault.FAILURE_CLOBBERS_SUCCESS, what)
    what = f"after {size} duplicates together ({came}) every retry gets {done.retry.outcome()}"
    return found(Fault.NEVER_ANSWERED, what)


def _sent(rounds: Sequence[Round]) -> int:
    return sum(len(r.together.exchanges) for r in rounds)


def _window(rounds: Sequence[Round]) -> str:
    met = sum(r.together.met for r in rounds)
    spread = max(r.together.spread for r in rounds)
    came = answers(exchange for r in rounds for exchange in r.together.exchanges)
    return (
        f"{met} of {_sent(rounds)} were sent before any answer of their round; last bytes within "
        f"{1000 * spread:.1f} ms; answers: {came}"
    )


def _listed(sizes: Sequence[int]) -> str:
    words = [str(size) for size in sizes]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


PROBES = (ConcurrentDuplicates(),)
