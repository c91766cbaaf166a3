"""The probe of slow operations: duplicates come while the first request is still at work.

An API that gives up on a request by its age runs the operation a second time; one that writes
whatever it learns last forgets a success. Both need a handler that outlives what the API expects.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from oncekey.verify.probe import ProbeRun
from oncekey.verify.probes.known_outcome import is_busy
from oncekey.verify.probes.outcome_evidence import (
    HOW_TO_GIVE_SLOW,
    after_plain_retry,
    answers,
    cannot_count,
    count_effects,
    last_answer,
    late_effect,
    unseen_of_ids,
    violation,
)
from oncekey.verify.profile import Profile
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import Operation, Variant
from oncekey.verify.verdict import (
    Fault,
    Guarantee,
    Verdict,
    Violation,
    holds,
    not_observable,
    violated,
)

DUPLICATES_MAX = 20
# Duplicates come this often while the handler works, if nobody says how long it takes.
INTERVAL_SECONDS = 0.25
INTERVALS_PER_HANDLER = 8


@dataclass(frozen=True, slots=True)
class Overlap:
    """A slow request, its duplicates, and a retry when all of them were answered.

    retry            the first request itself if none succeeded of a kind that is to fail
    effects_before   effects before the retry
    effects          effects after it
    """

    operation: Operation
    first: Exchange
    duplicates: tuple[Exchange, ...]
    effects_before: int
    retry: Exchange
    effects: int

    @property
    def during(self) -> list[Exchange]:
        """The duplicates that were sent before the first request was answered."""
        return [d for d in self.duplicates if d.sent_at < self.first.answered_at]

    @property
    def success(self) -> Exchange | None:
        """The success that was answered first, before the retry."""
        successes = [e for e in (self.first, *self.duplicates) if e.is_success]
        return min(successes, key=lambda exchange: exchange.answered_at, default=None)

    def is_lost(self, profile: Profile) -> bool:
        """True if the retry failed, for good."""
        retry = self.retry
        return not (retry.is_success or is_busy(retry) or retry.status in profile.in_flight)

    def is_blocked(self, profile: Profile) -> bool:
        """True if the first request was answered, and the key is still in flight."""
        was_answered = self.first.response is not None and not is_busy(self.first)
        return was_answered and self.retry.status in profile.in_flight


class SlowHandler:
    """Sends duplicates during a slow request, and during one that is slow and fails."""

    guarantee: ClassVar = Guarantee.SLOW_HANDLER
    sends: ClassVar = (
        f"a slow request and up to {DUPLICATES_MAX} duplicates while it runs; the same with a "
        "request that is slow and fails"
    )

    async def run(self, run: ProbeRun) -> Verdict:
        if not run.has(Variant.SLOW) and not run.has(Variant.SLOW_FAILING):
            return not_observable(self.guarantee, "there is no slow request", HOW_TO_GIVE_SLOW)
        if (run.target.slow_seconds or 0.0) >= run.limits.timeout:
            return not_observable(
                self.guarantee,
                f"the slow request takes longer than a response may: {run.limits.timeout:g} s",
                "Raise --timeout, or give a slow request that takes less.",
            )
        return await after_plain_retry(run, self.guarantee, lambda _: self._check(run))

    async def _check(self, run: ProbeRun) -> Verdict:
        seen: dict[Variant, Overlap] = {}
        for variant in (Variant.SLOW, Variant.SLOW_FAILING):
            if not run.has(variant):
                continue
            done = await _overlap(run, variant)
            if done is None:
                return cannot_count(run, self.guarantee)
            found = await _fault_of(run, done)
            if found is not None:
                n = len(done.during) + 1
                return violated(self.guarantee, [found], n=n, window=_window(done))
            seen[variant] = done
        late = await late_effect(run, [(done.operation, done.effects) for done in seen.values()])
        if late is not None:
            what = "a slow request and its duplicates had one effect at first, and more afterwards"
            found = violation(Fault.STALE_RESET, what, run, late)
            done = seen[late.variant]
            return violated(self.guarantee, [found], n=len(done.during) + 1, window=_window(done))
        return self._conclusion(run, seen)

    def _conclusion(self, run: ProbeRun, seen: dict[Variant, Overlap]) -> Verdict:
        slow, failing = seen.get(Variant.SLOW), seen.get(Variant.SLOW_FAILING)
        unseen = []
        if failing is None or failing.success is None:
            unseen.append("a slow attempt that fails after another attempt has succeeded")
        if slow is None or not slow.during or not slow.retry.is_success or slow.effects != 1:
            return not_observable(
                self.guarantee,
                "there is no slow request that succeeds"
                if slow is None or not slow.retry.is_success
                else f"nothing met the slow request: {answers([slow.first])}",
                HOW_TO_GIVE_SLOW,
            )
        worked = slow.first.answered_at - slow.first.sent_at
        unseen.append(f"a time after which the API gives up that is longer than {worked:.1f} s")
        return holds(
            self.guarantee,
            "the duplicates of a slow request did not run",
            n=len(slow.during) + 1,
            window=_window(slow),
            unseen=(*unseen, *unseen_of_ids(run)),
        )


async def _overlap(run: ProbeRun, variant: Variant) -> Overlap | None:
    """Send a slow request and its duplicates; None if effects cannot be told."""
    operation = await run.operation(variant)
    request = operation.request()
    first = asyncio.create_task(run.send(request, "first request"))
    tasks = [first]
    try:
        for number in range(1, DUPLICATES_MAX + 1):
            await asyncio.wait([first], timeout=_interval(run, number))
            if first.done():
                break
            tasks.append(asyncio.create_task(run.send(request, f"duplicate {number}")))
        sent, *duplicates = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    expected = 1 if sent.is_success else 0
    before = await count_effects(run, operation, at_least=expected)
    if variant is Variant.SLOW or any(e.is_success for e in (sent, *duplicates)):
        retry = await last_answer(run, request)
    else:
        retry = sent  # there is no success that could be lost
    effects = await count_effects(run, operation, at_least=expected)
    if before is None or effects is None:
        return None
    return Overlap(operation, sent, tuple(duplicates), before, retry, effects)


def _interval(run: ProbeRun, number: int) -> float:
    """Return how long to wait before a duplicate; the unknown is covered by growing intervals."""
    slow = run.target.slow_seconds
    if slow is not None:
        return slow / INTERVALS_PER_HANDLER
    return INTERVAL_SECONDS * (1 + number // 5)


async def _fault_of(run: ProbeRun, done: Overlap) -> Violation | None:
    came = answers([done.first, *done.duplicates])
    if done.operation.variant is Variant.SLOW and done.effects_before > 1:
        what = f"a slow request and its duplicates had {done.effects_before} effects ({came})"
        return violation(await _second_run_fault(run, done), what, run, done.operation)
    if done.success is not None and done.effects > done.effects_before:
        what = f"a success was answered, and a later retry ran again ({came})"
        return violation(Fault.FAILURE_CLOBBERS_SUCCESS, what, run, done.operation)
    if done.success is not None and done.is_lost(run.profile):
        what = f"a success was answered, and later retries get {done.retry.outcome()} ({came})"
        return violation(Fault.FAILURE_CLOBBERS_SUCCESS, what, run, done.operation)
    if done.effects and done.is_blocked(run.profile):
        what = f"a slow request had its effect, and every retry gets {done.retry.outcome()}"
        return violation(Fault.NEVER_ANSWERED, f"{what} ({came})", run, done.operation)
    return None


async def _second_run_fault(run: ProbeRun, done: Overlap) -> Fault:
    """Tell a key that was taken over from one that was never claimed.

    Where a duplicate was refused before another one ran, the key had an owner. Else two requests
    that come together tell: they run both only if nobody claims.
    """
    if any(d.status in run.profile.in_flight for d in done.duplicates):
        return Fault.STALE_RESET
    operation = await run.operation(Variant.SLOW)
    await run.send_together([operation.request()] * 2, "duplicate")
    effects = await count_effects(run, operation)
    return Fault.RACE if effects is not None and effects > 1 else Fault.STALE_RESET


def _window(done: Overlap) -> str:
    worked = done.first.answered_at - done.first.sent_at
    ages = [duplicate.sent_at - done.first.sent_at for duplicate in done.during]
    if not ages:
        return f"the first request took {worked:.1f} s, and no duplicate met it"
    return (
        f"{len(ages)} duplicates were sent {min(ages):.1f} to {max(ages):.1f} s after the first "
        f"request, which took {worked:.1f} s; answers: {answers(done.during)}"
    )


PROBES = (SlowHandler(),)
