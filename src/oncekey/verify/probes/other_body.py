"""Probes that send another body under a key: after its operation has ended, and while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from oncekey.verify.probe import ProbeRun
from oncekey.verify.probes.known_outcome import (
    HOW_TO_BE_ANSWERED,
    KnownOutcome,
    answer,
    confirmed,
    effects_of,
    failed_server,
    had_effect,
    is_busy,
    is_marked,
    is_refusal,
    is_server_failure,
    known_outcome,
    lost_outcome,
    same_content,
)
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import Operation, Variant, new_values
from oncekey.verify.verdict import (
    Fault,
    Guarantee,
    Verdict,
    Violation,
    holds,
    not_observable,
    violated,
)

# How long a slow request may have a lead, so that its key is claimed before the other one comes.
LEAD_SECONDS = 0.5
SLOW_SECONDS_DEFAULT = 2.0

HOW_TO_GIVE_ANOTHER_BODY = (
    "Give a valid request that asks for something else: --variant other-body=BODY, or "
    "[variants.other-body]; or a body with {{unique}} or {{number}} in it."
)
HOW_TO_GIVE_A_SLOW_REQUEST = (
    "Give a request that works for two seconds or more, and say for how long: --variant slow=BODY "
    "and --slow 3s, or [variants.slow] and slow."
)


class OtherBodyAfter:
    """Sends another body under a key whose operation has ended."""

    guarantee: ClassVar = Guarantee.OTHER_BODY_AFTER
    sends: ClassVar = (
        "a request and its retry, another body under the same key, the retry again, and the other "
        "body under a key of its own: 5 requests"
    )

    async def run(self, run: ProbeRun) -> Verdict:
        """Compare what the other body gets with what the profile says; then retry the first."""
        return await confirmed(lambda: self._trial(run))

    async def _trial(self, run: ProbeRun) -> Verdict:
        known = await known_outcome(run, self.guarantee)
        if isinstance(known, Verdict):
            return known
        values = new_values(known.operation.key)
        other = run.other_request(known.operation, values)
        if other is None:
            return _no_other_body(self.guarantee)
        other_answer = await answer(run, other, "another body, same key")
        was_run = await _had_effect(run, known.operation, values)
        judged = await _judged(run, self.guarantee, known.first, known.shown, other_answer)
        if judged is not None:
            return judged
        if was_run:
            return _refused_but_run(self.guarantee, other_answer, *known.shown, other_answer)
        later = await lost_outcome(run, known, "the first request again")
        if later is not None:
            what = (
                f"after another body was refused with {other_answer.outcome()}, a retry of the "
                f"first request does not get its outcome any more, but {later.outcome()}"
            )
            shown = (*known.shown, other_answer, later)
            return _violated(self.guarantee, Fault.MISMATCH_DESTROYS_RECORD, what, *shown)
        return holds(
            self.guarantee,
            f"another body got {other_answer.outcome()}, and the first outcome is still replayed",
            n=2,
            window="after the first request was answered and replayed",
        )


class OtherBodyDuring:
    """Sends another body under a key whose operation is still running."""

    guarantee: ClassVar = Guarantee.OTHER_BODY_DURING
    sends: ClassVar = (
        "a request and its retry, a slow request, another body under its key meanwhile and "
        "afterwards, and a retry: up to 8 requests"
    )

    async def run(self, run: ProbeRun) -> Verdict:
        """Let a slow request run, send another body meanwhile, and see how both end."""
        if not run.has(Variant.SLOW):
            return not_observable(
                self.guarantee, "no request is known that runs for long", HOW_TO_GIVE_A_SLOW_REQUEST
            )
        return await confirmed(lambda: self._trial(run))

    async def _trial(self, run: ProbeRun) -> Verdict:
        plain = await known_outcome(run, self.guarantee)
        if isinstance(plain, Verdict):
            return plain
        operation = await run.operation(Variant.SLOW)
        values = new_values(operation.key)
        met = await _meet(run, operation, values)
        if met is None:
            return _no_other_body(self.guarantee)
        first, during = met
        if first.answered_at <= during.sent_at:
            return not_observable(
                self.guarantee,
                "the slow request ended before another one could be sent",
                HOW_TO_GIVE_A_SLOW_REQUEST,
            )
        if not first.is_success:
            return await self._first_failed(run, first, during)
        was_run = is_refusal(during) and await _had_effect(run, operation, values)
        judged = await self._judged_during(run, plain, first, during)
        if judged is not None:
            return judged
        if was_run:
            return _refused_but_run(self.guarantee, during, first, during)
        known = KnownOutcome(operation, first, during)
        later = await lost_outcome(run, known, "retry of the first request")
        if later is not None:
            what = (
                f"the running operation succeeded, but another body was sent meanwhile, and a "
                f"retry does not get its outcome, but {later.outcome()}"
            )
            shown = (first, during, later)
            return _violated(self.guarantee, Fault.MISMATCH_DESTROYS_RECORD, what, *shown)
        return holds(
            self.guarantee,
            f"another body got {during.outcome()}, and the running operation ended well",
            n=1,
            window=_window(first, during),
        )

    async def _judged_during(
        self, run: ProbeRun, plain: KnownOutcome, first: Exchange, during: Exchange
    ) -> Verdict | None:
        """Judge what another body got while the first request was running."""
        # Before the first has ended there is nothing to replay: who succeeds then was run.
        is_early = during.is_success and during.answered_at < first.answered_at
        if is_early or _is_own_run(run, first, during):
            after = run.other_request(plain.operation)
            assert after is not None
            late = await answer(run, after, "another body, after another request had ended")
            then = ""
            if is_refusal(late) and late.status not in run.profile.in_flight:
                then = f"is refused with {late.outcome()}"
            elif late.is_success and same_content(plain.first, late):
                then = "gets that operation's response"
            if then:
                what = (
                    f"another body was run while the first request ran ({during.outcome()}); after "
                    f"an operation has ended it {then}"
                )
                return _violated(self.guarantee, Fault.RACE, what, first, during, late)
        last = during
        if during.status in run.profile.in_flight:
            last = await answer(run, during.request, "another body, after the first had ended")
        judged = await _judged(run, self.guarantee, first, (first, during), last)
        if judged is not None or last is during or not run.profile.mismatch_first:
            return judged
        what = (
            f"another body was told {during.outcome()}, as if it were a duplicate, while the "
            f"first request ran; afterwards it was refused with {last.outcome()}"
        )
        fault = Fault.IN_FLIGHT_BEFORE_MISMATCH
        return _violated(self.guarantee, fault, what, first, during, last)

    async def _first_failed(self, run: ProbeRun, first: Exchange, during: Exchange) -> Verdict:
        """Judge a slow request that did not succeed: does it succeed alone?"""
        alone = await answer(
            run, (await run.operation(Variant.SLOW)).request(), "a slow request, alone"
        )
        if during.is_success or is_busy(first) or not alone.is_success:
            return not_observable(
                self.guarantee,
                f"the slow request did not succeed: {first.outcome()}",
                HOW_TO_GIVE_A_SLOW_REQUEST,
            )
        what = (
            f"a request that succeeds alone ended with {first.outcome()}, because another body "
            f"came under its key while it ran"
        )
        fault = Fault.MISMATCH_DESTROYS_RECORD
        return _violated(self.guarantee, fault, what, first, during, alone)


async def _meet(
    run: ProbeRun, operation: Operation, values: Mapping[str, str]
) -> tuple[Exchange, Exchange] | None:
    """Send a request, and another body under its key a moment later; None if there is none."""
    other = run.other_request(operation, values)
    if other is None:
        return None
    slow_seconds = run.target.slow_seconds or SLOW_SECONDS_DEFAULT
    # Not a task group: a budget that is spent must come out as it is.
    first = asyncio.create_task(run.send(operation.request(), "slow request"))
    try:
        await asyncio.sleep(min(LEAD_SECONDS, slow_seconds / 4))
        during = await run.send(other, "another body, same key, meanwhile")
        return await first, during
    finally:
        first.cancel()


async def _judged(
    run: ProbeRun,
    guarantee: Guarantee,
    first: Exchange,
    shown: tuple[Exchange, ...],
    other: Exchange,
) -> Verdict | None:
    """Judge the answer to another body; None if it was refused as the profile says."""
    if is_server_failure(other):
        return violated(guarantee, [failed_server(other, shown)], n=1)
    if other.is_success:
        if _is_own_run(run, first, other):
            fault = Fault.OTHER_BODY_RUN
            what = f"another body under the same key was run as well ({other.outcome()})"
        else:
            fault = Fault.BODY_NOT_COMPARED
            what = f"another body got the first request's response ({other.outcome()})"
        return _violated(guarantee, fault, what, *shown, other)
    if not is_refusal(other):
        return not_observable(
            guarantee,
            f"another body was answered with {other.outcome()}",
            HOW_TO_BE_ANSWERED,
        )
    control = await _alone(run)
    if not control.is_success:
        return not_observable(
            guarantee,
            f"the other body is refused under a key of its own too ({control.outcome()})",
            HOW_TO_GIVE_ANOTHER_BODY,
        )
    if other.status in run.profile.mismatch:
        return None
    wanted = " or ".join(map(str, sorted(run.profile.mismatch)))
    what = f"another body is refused with {other.outcome()}, where the profile says {wanted}"
    return _violated(guarantee, Fault.WRONG_STATUS, what, *shown, other, control)


async def _had_effect(run: ProbeRun, operation: Operation, values: Mapping[str, str]) -> bool:
    """True if another body had its effect, after an operation that had its own.

    Another body counts for the operation itself if it has its values, and else for the new ones.
    """
    effects = await effects_of(run, operation)
    if effects is not None and effects > 1:
        return True
    counter = run.target.effects
    if counter is None or counter.is_total or not counter.sees_lost_responses:
        return False
    # A count by the key, which both have, would be the operation's own.
    renewed = replace(operation, values={**values, "key": new_values("")["unique"]})
    return await had_effect(run, renewed)


def _refused_but_run(guarantee: Guarantee, other: Exchange, *shown: Exchange) -> Verdict:
    what = f"another body is refused with {other.outcome()}, and had its effect all the same"
    return _violated(guarantee, Fault.REFUSED_BUT_RUN, what, *shown)


def _is_own_run(run: ProbeRun, first: Exchange, other: Exchange) -> bool:
    """True if another body succeeded with a response of its own."""
    return other.is_success and not is_marked(run, other) and not same_content(first, other)


async def _alone(run: ProbeRun) -> Exchange:
    """Send the other body under a key of its own: is it valid at all?"""
    request = run.other_request(await run.operation())
    assert request is not None
    return await answer(run, request, "the other body, under a key of its own")


def _violated(guarantee: Guarantee, fault: Fault, what: str, *shown: Exchange) -> Verdict:
    in_order = tuple(sorted(set(shown), key=lambda exchange: exchange.sent_at))
    return violated(guarantee, [Violation(fault, what, in_order)], n=1)


def _no_other_body(guarantee: Guarantee) -> Verdict:
    return not_observable(
        guarantee, "no other valid body could be made of the request", HOW_TO_GIVE_ANOTHER_BODY
    )


def _window(first: Exchange, during: Exchange) -> str:
    sent = during.sent_at - first.sent_at
    if during.answered_at < first.answered_at:
        left = first.answered_at - during.answered_at
        return f"sent {sent:.2f} s after the first, answered {left:.2f} s before its end"
    return f"sent {sent:.2f} s after the first; the API let it wait until the first had ended"


PROBES = (OtherBodyAfter(), OtherBodyDuring())
