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
from oncekey.verify.probes.known_outcome import is_busy, is_refusal, is_server_failure
from oncekey.verify.probes.outcome_evidence import (
    after_plain_retry,
    answers,
    cannot_count,
    count_effects,
    last_answer,
    late_effect,
    unseen_of_ids,
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
# So many different operations are sent together first, to see whether the server runs them so.
APART = 4
# They were run one by one if the last one took so many times as long as the first, which must
# itself take long enough to be measured.
ONE_BY_ONE_RATIO = 3.0
ONE_BY_ONE_MIN_SECONDS = 0.02
# An answer of these to a duplicate says that it is too early, whatever the profile calls it.
_TOO_EARLY = frozenset({409, 423, 425, 429})

UNSEEN_RACE = (
    "a race between two workers: the server handles requests one by one, so no two of them ran at "
    "the same time"
)


@dataclass(frozen=True, slots=True)
class Round:
    """What came of one operation.

    effects_together   effects when all duplicates were answered
    effects            effects after the retry
    is_free            True if so many different operations are known to be served at once: then
                       a duplicate that is told 429 is told so because of its key
    """

    operation: Operation
    together: Together
    retry: Exchange
    effects_together: int
    effects: int
    is_free: bool

    @property
    def size(self) -> int:
        return len(self.together.exchanges)

    @property
    def successes(self) -> list[Exchange]:
        return [exchange for exchange in self.together.exchanges if exchange.is_success]

    @property
    def was_served(self) -> bool:
        """False if the server had no time for even two duplicates, so that nothing was shown."""
        served = [
            exchange
            for exchange in self.together.exchanges
            if not is_busy(exchange) or (self.is_free and exchange.status == 429)
        ]
        return len(served) > 1


class ConcurrentDuplicates:
    """Sends duplicates whose last bytes are released together, in several rounds."""

    guarantee: ClassVar = Guarantee.CONCURRENT_DUPLICATES
    sends: ClassVar = (
        f"{APART} different requests together, then {ROUNDS} rounds of "
        f"{', '.join(map(str, SIZES[:-1]))} and {SIZES[-1]} equal requests with one key, released "
        "together; a retry after each round"
    )

    async def run(self, run: ProbeRun) -> Verdict:
        return await after_plain_retry(run, self.guarantee, lambda _: self._check(run))

    async def _check(self, run: ProbeRun) -> Verdict:
        rounds: list[Round] = []
        apart = await _apart(run)
        ends_at = time.monotonic() + ROUNDS_SECONDS
        for size in [min(size, run.limits.concurrency) for _ in range(ROUNDS) for size in SIZES]:
            if time.monotonic() >= ends_at:
                break
            done = await _round(run, size, is_free=size <= apart.served)
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
        found = await _late_fault(run, rounds) or _told_wrong(run, rounds)
        if found is not None:
            return violated(self.guarantee, [found], n=_sent(rounds), window=_window(rounds))
        return self._conclusion(run, rounds, apart)

    def _conclusion(self, run: ProbeRun, rounds: Sequence[Round], apart: Apart) -> Verdict:
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
        unseen = [
            f"{size} together: {answers(r.together.exchanges)}"
            for size, r in {r.size: r for r in rounds if r not in good}.items()
            if not any(g.size == size for g in good)
        ]
        if apart.is_one_by_one:
            unseen.append(UNSEEN_RACE)
        sizes = sorted({r.size for r in met})
        return holds(
            self.guarantee,
            f"one effect and one outcome in each of {len(good)} rounds of "
            f"{_listed(sizes)} duplicates",
            n=_sent(good),
            window=_window(met),
            unseen=(*unseen, *unseen_of_ids(run)),
        )


@dataclass(frozen=True, slots=True)
class Apart:
    """How different operations that were sent together went.

    served          how many were sent, if all of them succeeded; else 0
    is_one_by_one   True if the server seems to have run them one after the other
    """

    served: int
    is_one_by_one: bool


async def _apart(run: ProbeRun) -> Apart:
    operations = [await run.operation() for _ in range(min(APART, run.limits.concurrency))]
    requests = [operation.request() for operation in operations]
    sent = (await run.send_together(requests, "different operation")).exchanges
    successes = [exchange for exchange in sent if exchange.is_success]
    # The next operation begins with a count that has all of these.
    await count_effects(run, operations[0], at_least=_expected(run, len(successes)))
    if len(successes) < len(sent):
        return Apart(0, is_one_by_one=False)
    return Apart(len(sent), ran_one_by_one([e.answered_at - e.sent_at for e in sent]))


def ran_one_by_one(seconds: Sequence[float]) -> bool:
    """True if requests that came together took so differently long that they were in a queue."""
    shortest, longest = min(seconds), max(seconds)
    return shortest >= ONE_BY_ONE_MIN_SECONDS and longest >= ONE_BY_ONE_RATIO * shortest


def _expected(run: ProbeRun, successes: int) -> int:
    counter = run.target.effects
    return successes if counter is not None and counter.is_total else min(successes, 1)


async def _late_fault(run: ProbeRun, rounds: Sequence[Round]) -> Violation | None:
    late = await late_effect(run, [(r.operation, r.effects) for r in rounds])
    if late is None:
        return None
    what = "duplicates together had one effect at first, and more of them a moment later"
    return violation(Fault.RACE, what, run, late)


def _told_wrong(run: ProbeRun, rounds: Sequence[Round]) -> Violation | None:
    """Return the violation if duplicates are told that they failed, although there is a success.

    Only the smallest rounds count, and only if more than one shows it: a server may fail under
    load, and clients that come one by one do not bring it there.
    """
    smallest = min(r.size for r in rounds)
    seen: dict[Fault, list[tuple[Round, Exchange]]] = {}
    for r in (r for r in rounds if r.size == smallest and r.retry.is_success):
        for exchange in r.together.exchanges:
            if is_server_failure(exchange):
                seen.setdefault(Fault.SERVER_FAILED, []).append((r, exchange))
            elif is_refusal(exchange) and exchange.status not in _TOO_EARLY | run.profile.in_flight:
                seen.setdefault(Fault.WRONG_STATUS, []).append((r, exchange))
    for fault, shown in seen.items():
        if len({id(r) for r, _ in shown}) > 1:
            r, exchange = shown[0]
            what = (
                f"one of {smallest} duplicates together is told {exchange.outcome()}, as if the "
                f"operation had failed; the other one succeeds"
            )
            return violation(fault, what, run, r.operation)
    return None


async def _round(run: ProbeRun, size: int, *, is_free: bool) -> Round | None:
    """Send one operation `size` times at once, and once more; None if effects cannot be told."""
    operation = await run.operation()
    request = operation.request()
    together = await run.send_together([request] * size, "duplicate")
    effects_together = await count_effects(run, operation)
    retry = await last_answer(run, request)
    effects = await count_effects(run, operation)
    if effects_together is None or effects is None:
        return None
    return Round(operation, together, retry, effects_together, effects, is_free)


def _fault_of(run: ProbeRun, done: Round) -> Violation | None:
    size = done.size
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
    return sum(r.size for r in rounds)


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
