"""The probes of clients that leave: during a response, and during the handler.

Both send, leave by a reset, and come back later with the same request. What they cannot see is
what the server did meanwhile; only a counter of effects tells that.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import ClassVar

from oncekey.verify.probe import ProbeRun
from oncekey.verify.probes.known_outcome import is_busy, is_refusal
from oncekey.verify.probes.outcome_evidence import (
    HOW_TO_COUNT_LOST,
    HOW_TO_GIVE_SLOW,
    after_plain_retry,
    cannot_count,
    count_effects,
    last_answer,
    late_effect,
    violation,
)
from oncekey.verify.raw_connection import DropPoint
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

DROPS_PER_POINT = 3
# No further client leaves after this.
LEAVING_SECONDS = 12.0
# Nobody leaves a handler that takes longer, because coming back would take longer still.
LEFT_HANDLER_MAX_SECONDS = 20.0
# When a client leaves, as parts of the time that the handler takes.
LEAVE_AFTER = (0.0, 0.25, 0.5, 0.75)
SLOW_LEAVES = 2
# The client comes back when the handler should have ended long ago, so that what it meets is not
# an operation that still runs.
COMES_BACK_AFTER = 1.5
COMES_BACK_MARGIN_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Return:
    """A client that left and came back.

    effects_before   effects when it came back
    effects          effects after its retry was answered
    """

    operation: Operation
    left: Exchange
    effects_before: int
    retry: Exchange
    effects: int

    @property
    def was_left(self) -> bool:
        """False if the server was not reached, refused the request, or answered it first."""
        status = self.left.response.status if self.left.response is not None else None
        return self.left.failure.startswith("the client left") and (status or 0) < 400

    @property
    def is_blocked(self) -> bool:
        """True if the retry got no outcome from a server that had time for it."""
        return not self.retry.is_success and not is_busy(self.retry)

    def is_refused(self, run: ProbeRun) -> bool:
        """True if nothing was done, and the retry is told that the request itself is wrong."""
        is_waiting = self.retry.status in run.profile.in_flight
        return not self.effects and is_refusal(self.retry) and not is_waiting


class LostResponse:
    """Drops responses at four points, and retries."""

    guarantee: ClassVar = Guarantee.LOST_RESPONSE
    sends: ClassVar = (
        f"{DROPS_PER_POINT * len(DropPoint)} requests whose response is dropped (before and after "
        "the headers, in the middle of the body, before the last byte), and a retry of each"
    )

    async def run(self, run: ProbeRun) -> Verdict:
        return await after_plain_retry(run, self.guarantee, lambda _: self._check(run))

    async def _check(self, run: ProbeRun) -> Verdict:
        if not _sees_lost_responses(run):
            return _only_responses_are_counted(self.guarantee)
        good: dict[DropPoint, int] = dict.fromkeys(DropPoint, 0)
        returns: list[Return] = []
        ends_at = time.monotonic() + LEAVING_SECONDS
        plan = [(Variant.MAIN, point) for _ in range(DROPS_PER_POINT) for point in DropPoint]
        if run.has(Variant.LARGE) and await _is_remembered(run, Variant.LARGE):
            # A small response has left the server as a whole when its client leaves.
            plan.insert(len(DropPoint), (Variant.LARGE, DropPoint.MID_BODY))
        for variant, point in plan:
            if time.monotonic() >= ends_at:
                break
            done = await _drop(run, variant, point)
            if done is None:
                return cannot_count(run, self.guarantee)
            returns.append(done)
            found = _lost_response_fault(run, point, done)
            if found is not None:
                return violated(self.guarantee, [found], n=sum(good.values()) + 1)
            good[point] += done.was_left and done.retry.is_success and done.effects == 1
        found = await _late_fault(run, returns, Fault.RERUN_AFTER_LOST_RESPONSE)
        if found is not None:
            return violated(self.guarantee, [found], n=sum(good.values()))
        return self._conclusion(good)

    def _conclusion(self, good: dict[DropPoint, int]) -> Verdict:
        reached = [point.value for point, count in good.items() if count]
        if not reached:
            return not_observable(
                self.guarantee,
                "no response could be dropped: the server was busy or refused the requests",
                "Run again when the server has nothing else to do.",
            )
        return holds(
            self.guarantee,
            "each retry after a lost response was answered without a second effect",
            n=sum(good.values()),
            window=f"dropped {', '.join(reached)}",
            unseen=tuple(
                f"a response dropped {point.value}" for point, count in good.items() if not count
            ),
        )


class Disconnect:
    """Leaves during the handler, comes back when it should have ended, and retries."""

    guarantee: ClassVar = Guarantee.DISCONNECT
    sends: ClassVar = (
        f"{len(LEAVE_AFTER)} main and {SLOW_LEAVES} slow requests whose client leaves before the "
        "response, and a retry of each when the handler should have ended"
    )

    async def run(self, run: ProbeRun) -> Verdict:
        return await after_plain_retry(
            run, self.guarantee, lambda plain: self._check(run, plain.seconds)
        )

    async def _check(self, run: ProbeRun, main: float) -> Verdict:
        if not _sees_lost_responses(run):
            return _only_responses_are_counted(self.guarantee)
        plans = [(Variant.MAIN, main, part) for part in LEAVE_AFTER]
        slow = await _slow_seconds(run)
        if slow is not None:
            plans = [(Variant.SLOW, slow, 0.5)] * SLOW_LEAVES + plans
        returns: list[Return] = []
        ends_at = time.monotonic() + LEAVING_SECONDS
        for variant, seconds, part in plans:
            if returns and time.monotonic() >= ends_at:
                break
            done = await _leave(run, variant, seconds, part)
            if done is None:
                return cannot_count(run, self.guarantee)
            found = _disconnect_fault(run, done)
            if found is not None:
                return violated(self.guarantee, [found], n=len(returns) + 1, window=_where([done]))
            if done.was_left and done.is_refused(run):
                return await self._refused(run, done)
            returns.append(done)
            if done.was_left and done.is_blocked:
                break
        found = await _late_fault(run, returns, Fault.LOST_ON_DISCONNECT)
        if found is not None:
            return violated(self.guarantee, [found], n=len(returns), window=_where(returns))
        return self._conclusion(returns, has_slow=slow is not None)

    async def _refused(self, run: ProbeRun, done: Return) -> Verdict:
        """Judge an operation without an effect whose retries are refused: is a new one too?"""
        control = await run.operation(done.operation.variant)
        alone = await last_answer(run, control.request(), "the same under a new key", failing=0.0)
        if not alone.is_success:
            return not_observable(
                self.guarantee,
                f"the request is refused under a new key too: {alone.outcome()}",
                "Give a request that succeeds; --dry-run shows what is sent.",
            )
        what = (
            f"the client left, nothing happened, and every retry gets {done.retry.outcome()}; "
            f"under a new key the same request gets {alone.outcome()}"
        )
        shown = (done.left, done.retry, alone)
        found = violation(Fault.LOST_ON_DISCONNECT, what, run, done.operation, shown)
        return violated(self.guarantee, [found], n=1, window=_where([done]))

    def _conclusion(self, returns: list[Return], *, has_slow: bool) -> Verdict:
        blocked = [done for done in returns if done.was_left and done.is_blocked]
        left = [done for done in returns if done.was_left and done.retry.is_success]
        began = [d for d in left if d.effects_before or d.operation.variant is Variant.SLOW]
        if blocked:
            return not_observable(
                self.guarantee,
                f"the client left, nothing happened, and its retry gets "
                f"{blocked[0].retry.outcome()}",
                "Raise --patience over the time after which the API gives a key to the next "
                "request, and run again.",
            )
        if not began:
            return not_observable(
                self.guarantee,
                "no client left an operation that had begun",
                HOW_TO_GIVE_SLOW,
            )
        return holds(
            self.guarantee,
            "each client that left got the outcome later, and there was one effect",
            n=len(left),
            window=_where(left),
            unseen=() if has_slow else ("a client that leaves long before the handler ends",),
        )


async def _late_fault(run: ProbeRun, returns: list[Return], fault: Fault) -> Violation | None:
    late = await late_effect(run, [(done.operation, done.effects) for done in returns])
    if late is None:
        return None
    what = "a client left and came back; there was one effect at first, and more a moment later"
    return violation(fault, what, run, late)


async def _is_remembered(run: ProbeRun, variant: Variant) -> bool:
    """True if a plain retry of such a request is no second run; else another probe says so."""
    operation = await run.operation(variant)
    for note in ("first request", "retry"):
        if not (await last_answer(run, operation.request(), note)).is_success:
            return False
    return await count_effects(run, operation) == 1


async def _drop(run: ProbeRun, variant: Variant, point: DropPoint) -> Return | None:
    operation = await run.operation(variant)
    left = await run.send_and_drop(operation.request(), point)
    return await _come_back(run, operation, left)


async def _leave(run: ProbeRun, variant: Variant, seconds: float, part: float) -> Return | None:
    operation = await run.operation(variant)
    left = await run.send_and_leave(operation.request(), part * seconds)
    back_at = left.sent_at + COMES_BACK_AFTER * seconds + COMES_BACK_MARGIN_SECONDS
    await asyncio.sleep(max(0.0, back_at - time.monotonic()))
    return await _come_back(run, operation, left)


async def _come_back(run: ProbeRun, operation: Operation, left: Exchange) -> Return | None:
    """Retry; None if effects cannot be told."""
    before = await run.effects(operation)
    retry = await last_answer(run, operation.request())
    effects = await count_effects(run, operation)
    if before is None or effects is None:
        return None
    return Return(operation, left, before, retry, effects)


async def _slow_seconds(run: ProbeRun) -> float | None:
    """Return how long the handler of the slow request takes: as was said, or measured.

    None if there is none, or if it takes longer than anybody waits here.
    """
    if not run.has(Variant.SLOW):
        return None
    seconds = run.target.slow_seconds
    if seconds is None:
        operation = await run.operation(Variant.SLOW)
        exchange = await run.send(operation.request(), "to measure the slow handler")
        seconds = exchange.answered_at - exchange.sent_at
    return seconds if seconds <= LEFT_HANDLER_MAX_SECONDS else None


def _lost_response_fault(run: ProbeRun, point: DropPoint, done: Return) -> Violation | None:
    fault = Fault.RERUN_AFTER_LOST_RESPONSE
    return _fault_of(run, done, fault, f"a response was dropped {point.value}")


def _disconnect_fault(run: ProbeRun, done: Return) -> Violation | None:
    return _fault_of(run, done, Fault.LOST_ON_DISCONNECT, "the client left during the handler")


def _fault_of(run: ProbeRun, done: Return, rerun: Fault, left: str) -> Violation | None:
    if not done.was_left:
        return None
    if done.effects > 1:
        what = f"{left}, and its retry ran again: {done.effects} effects"
        return violation(rerun, what, run, done.operation)
    if done.effects == 1 and done.is_blocked:
        what = f"{left}, there was one effect, and every retry gets {done.retry.outcome()}"
        return violation(Fault.LOST_ON_DISCONNECT, what, run, done.operation)
    return None


def _where(returns: list[Return]) -> str:
    """Say what the clients left behind."""
    slow = sum(done.operation.variant is Variant.SLOW for done in returns)
    ran = sum(done.effects_before > 0 for done in returns)
    parts = [f"{len(returns)} left before a response"]
    if slow:
        parts.append(f"{slow} of them in the middle of the slow handler")
    parts.append(f"{ran} had their effect before the client came back")
    return ", ".join(parts)


def _sees_lost_responses(run: ProbeRun) -> bool:
    return run.target.effects is not None and run.target.effects.sees_lost_responses


def _only_responses_are_counted(guarantee: Guarantee) -> Verdict:
    return not_observable(
        guarantee,
        "the counter knows only what responses tell, and these are lost",
        HOW_TO_COUNT_LOST,
    )


PROBES = (LostResponse(), Disconnect())
