"""Probes of operations that end in an error: what becomes of their key, and of their effect."""

from __future__ import annotations

from typing import ClassVar

from oncekey.verify.probe import ProbeRun
from oncekey.verify.probes.known_outcome import (
    BESIDE_THE_POINT,
    HOW_TO_SEE_RUNS,
    SEQUENCE,
    KnownOutcome,
    answer,
    confirmed,
    effects_of,
    failed_server,
    is_busy,
    is_marked,
    is_refusal,
    is_server_failure,
    known_outcome,
    same_body,
)
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

HOW_TO_GIVE_A_REJECTED_REQUEST = (
    "Give a request that the API answers with a 4xx of its own, such as 402 for a declined card: "
    "--variant rejected=BODY, or [variants.rejected]."
)
HOW_TO_GIVE_A_FAILING_REQUEST = (
    "Give a request that the API answers with a 5xx, best after it had its effect: --variant "
    "failing=BODY, or [variants.failing]."
)
HOW_TO_COUNT_FAILED = (
    "Count effects by --count-url, --count-command or --count-sql, or [effects]: the response to a "
    "failure does not tell what was done."
)


class ClientErrors:
    """Retries a request that was refused, and then sends a valid one under the same key."""

    guarantee: ClassVar = Guarantee.CLIENT_ERRORS
    sends: ClassVar = (
        "a request and its retry, a request that is refused and its retry, and a valid request "
        "under the same key: 5 requests"
    )

    async def run(self, run: ProbeRun) -> Verdict:
        """The key stays bound to the refused request, or is free again; never something between."""
        if not run.has(Variant.REJECTED):
            return not_observable(
                self.guarantee,
                "no request is known that is refused",
                HOW_TO_GIVE_A_REJECTED_REQUEST,
            )
        return await confirmed(lambda: self._trial(run))

    async def _trial(self, run: ProbeRun) -> Verdict:
        known = await known_outcome(run, self.guarantee)
        if isinstance(known, Verdict):
            return known
        operation = await run.operation(Variant.REJECTED)
        first = await answer(run, operation.request(), "a request that is refused")
        if not is_refusal(first) or first.status in run.profile.in_flight:
            return not_observable(
                self.guarantee,
                f"the rejected request is answered with {first.outcome()}, which is no refusal of "
                f"its own",
                HOW_TO_GIVE_A_REJECTED_REQUEST,
            )
        before = await effects_of(run, operation)
        retry = await answer(run, operation.request(), "its retry")
        effects = await effects_of(run, operation)
        violation = _judged_retry(run, first, retry, before, effects)
        if violation is not None:
            return violated(self.guarantee, [violation], n=1, window=SEQUENCE)
        if retry.is_success or is_busy(retry) or retry.status in BESIDE_THE_POINT:
            return not_observable(
                self.guarantee,
                f"the same request is answered with {first.outcome()}, and then with "
                f"{retry.outcome()}",
                HOW_TO_GIVE_A_REJECTED_REQUEST,
            )
        return await self._corrected(run, known, operation, first, retry)

    async def _corrected(
        self,
        run: ProbeRun,
        known: KnownOutcome,
        operation: Operation,
        first: Exchange,
        retry: Exchange,
    ) -> Verdict:
        """Send a valid request under the key of the refused one."""
        request = operation.request(variant=Variant.MAIN)
        valid = await answer(run, request, "a valid request, same key")
        shown = (first, retry, valid)
        if is_server_failure(valid):
            return violated(self.guarantee, [failed_server(valid, (first, retry))], n=2)
        if valid.status in run.profile.in_flight:
            what = f"the key of a refused request stays blocked: {valid.outcome()}"
            violation = Violation(Fault.NEVER_ANSWERED, what, shown)
            return violated(self.guarantee, [violation], n=2, window=SEQUENCE)
        if is_marked(run, valid) or (valid.status == first.status and same_body(first, valid)):
            what = (
                f"a valid request got the stored response of the refused one ({valid.outcome()}), "
                f"although it asks for something else"
            )
            violation = Violation(Fault.BODY_NOT_COMPARED, what, (*known.shown, *shown))
            return violated(self.guarantee, [violation], n=2, window=SEQUENCE)
        if valid.is_success:
            how = f"the refusal freed its key, and a valid request was run ({valid.outcome()})"
        elif is_refusal(valid):
            how = f"the key stays bound to the refused request ({valid.outcome()} for another)"
        else:
            return not_observable(
                self.guarantee,
                f"a valid request under the key of a refused one is answered with "
                f"{valid.outcome()}",
                HOW_TO_GIVE_A_REJECTED_REQUEST,
            )
        return holds(
            self.guarantee,
            f"a retry is refused like the first request ({retry.outcome()}); {how}",
            n=2,
            window=SEQUENCE,
        )


def _judged_retry(
    run: ProbeRun, first: Exchange, retry: Exchange, before: int | None, after: int | None
) -> Violation | None:
    """Judge the retry of a refused request."""
    if is_server_failure(retry):
        return failed_server(retry, (first,))
    if before is not None and after is not None and after > before > 0:
        what = (
            f"a request that was refused with {first.outcome()} had its effect, and its retry had "
            f"it again: {after} effects"
        )
        return Violation(Fault.RERUN_AFTER_FAILURE, what, (first, retry))
    if retry.status in run.profile.in_flight:
        what = f"a retry of a refused request stays in flight: {retry.outcome()}"
        return Violation(Fault.NEVER_ANSWERED, what, (first, retry))
    if retry.status != first.status and (is_marked(run, retry) or same_body(first, retry)):
        what = f"the refusal was {first.outcome()}, and its replay is {retry.outcome()}"
        return Violation(Fault.STATUS_LOST, what, (first, retry))
    return None


class ServerErrors:
    """Retries an operation that failed, and counts its effects."""

    guarantee: ClassVar = Guarantee.SERVER_ERRORS
    sends: ClassVar = "a request and its retry, a request that fails and two retries: 5 requests"

    async def run(self, run: ProbeRun) -> Verdict:
        """An effect that happened must not happen again, whatever the retries are told."""
        counter = run.target.effects
        if not run.has(Variant.FAILING):
            return not_observable(
                self.guarantee, "no request is known that fails", HOW_TO_GIVE_A_FAILING_REQUEST
            )
        can_count = counter is not None and counter.sees_lost_responses
        if not can_count and not run.profile.keeps_server_errors:
            why = "nothing counts the effects of an operation that failed"
            return not_observable(self.guarantee, why, HOW_TO_COUNT_FAILED)
        return await confirmed(lambda: self._trial(run))

    async def _trial(self, run: ProbeRun) -> Verdict:
        known = await known_outcome(run, self.guarantee)
        if isinstance(known, Verdict):
            return known
        operation = await run.operation(Variant.FAILING)
        # Not by `answer`, which would be a retry already.
        first = await run.send(operation.request(), "a request that fails")
        has_failed = first.status is not None and first.status >= 500
        if not has_failed and not first.is_success:
            return self._not_failing(first)
        retries = [await run.send(operation.request(), f"retry {n} of 2") for n in (1, 2)]
        effects = await self._settled_effects(run, operation)
        window = f"after {first.outcome()}"
        if effects == 0 and (retries[-1].is_success or first.is_success):
            told = ", ".join(each.outcome() for each in (first, *retries))
            what = f"the operation has no effect, and its client is told {told}"
            violation = Violation(Fault.SUCCESS_WITHOUT_EFFECT, what, (first, *retries))
            return violated(self.guarantee, [violation], n=2, window=window)
        if not has_failed:
            return self._not_failing(first)
        if effects is not None and effects > 1:
            what = f"a failed operation had its effect, and a retry had it again: {effects} effects"
            violation = Violation(Fault.RERUN_AFTER_FAILURE, what, (first, *retries))
            return violated(self.guarantee, [violation], n=2, window=window)
        return self._judged_answers(run, first, retries, effects, window)

    def _not_failing(self, first: Exchange) -> Verdict:
        return not_observable(
            self.guarantee,
            f"the failing request is answered with {first.outcome()}",
            HOW_TO_GIVE_A_FAILING_REQUEST,
        )

    def _judged_answers(
        self,
        run: ProbeRun,
        first: Exchange,
        retries: list[Exchange],
        effects: int | None,
        window: str,
    ) -> Verdict:
        """Judge what the retries were told, once there is no second effect."""
        told = ", ".join(retry.outcome() for retry in retries)
        last = retries[-1]
        if run.profile.keeps_server_errors and not is_busy(first):
            if last.is_success:
                what = f"the failure was not kept: {first.outcome()}, then {last.outcome()}"
                violation = Violation(Fault.FAILURE_NOT_KEPT, what, (first, *retries))
                return violated(self.guarantee, [violation], n=2, window=window)
            if last.status != first.status or not same_body(first, last):
                return not_observable(
                    self.guarantee,
                    f"a retry of a failure ({first.outcome()}) is answered with {told}",
                    HOW_TO_SEE_RUNS,
                )
        if effects is None and not run.profile.keeps_server_errors:
            return not_observable(
                self.guarantee, "others change the number of effects", HOW_TO_COUNT_FAILED
            )
        if effects == 0:
            return not_observable(
                self.guarantee,
                f"the failing request has no effect, so a second run would do no harm ({told})",
                HOW_TO_GIVE_A_FAILING_REQUEST,
            )
        count = "the same failure" if effects is None else f"{effects} effect"
        return holds(
            self.guarantee,
            f"two retries of a failed operation got {told}, and there is {count}",
            n=2,
            window=window,
        )

    async def _settled_effects(self, run: ProbeRun, operation: Operation) -> int | None:
        counter = run.target.effects
        if counter is None or not counter.sees_lost_responses:
            return None
        return await effects_of(run, operation)


PROBES = (ClientErrors(), ServerErrors())
