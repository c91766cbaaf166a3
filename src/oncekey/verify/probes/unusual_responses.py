"""The probes of responses that are hard to store: without a body, and with a large one.

An API that cannot store a response may say so on a retry; it may not run the operation again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from oncekey.verify.probe import ProbeRun
from oncekey.verify.probes.outcome_evidence import (
    answers,
    cannot_count,
    count_effects,
    is_busy,
    last_answer,
    plain_retry,
    violation,
)
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import Operation, Variant
from oncekey.verify.verdict import (
    Fault,
    Guarantee,
    Verdict,
    holds,
    not_observable,
    violated,
)

RETRIES = 2
# A retry that fails is repeated for so long: an API may store a response after it has sent it.
STORE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Retried:
    """A request that succeeded with one effect, and its retries."""

    operation: Operation
    first: Exchange
    retries: tuple[Exchange, ...]
    effects: int

    @property
    def size(self) -> int:
        return len(self.first.response.body) if self.first.response is not None else 0

    @property
    def window(self) -> str:
        status = self.first.outcome()
        return f"first {status} with {self.size} bytes, then {answers(self.retries)}"


class NoContent:
    """Retries a request that is answered without a body."""

    guarantee: ClassVar = Guarantee.NO_CONTENT
    sends: ClassVar = f"a request that is answered by 204, and {RETRIES} retries"

    async def run(self, run: ProbeRun) -> Verdict:
        done = await _retried(run, self.guarantee, Variant.NO_CONTENT, "is answered by 204")
        if isinstance(done, Verdict):
            return done
        if done.size:
            return not_observable(
                self.guarantee,
                f"the response of the no-content request has a body of {done.size} bytes",
                "Give a no-content request that is answered by 204.",
            )
        if done.effects > 1:
            what = f"a request answered by {done.first.outcome()} without a body ran again"
            found = violation(Fault.RERUN_ON_NO_CONTENT, what, run, done.operation)
            return violated(self.guarantee, [found], n=RETRIES, window=done.window)
        if not done.retries[-1].is_success:
            what = f"the first request got {done.first.outcome()}, its retries "
            what += answers(done.retries)
            found = violation(Fault.NEVER_ANSWERED, what, run, done.operation)
            return violated(self.guarantee, [found], n=RETRIES, window=done.window)
        return holds(
            self.guarantee,
            "a response without a body is replayed, with one effect",
            n=RETRIES,
            window=done.window,
        )


class LargeResponse:
    """Retries a request that is answered with a large body."""

    guarantee: ClassVar = Guarantee.LARGE_RESPONSE
    sends: ClassVar = f"a request with a large response, and {RETRIES} retries"

    async def run(self, run: ProbeRun) -> Verdict:
        done = await _retried(run, self.guarantee, Variant.LARGE, "has a large response")
        if isinstance(done, Verdict):
            return done
        if done.effects > 1:
            what = f"a request with a response of {done.size} bytes ran again"
            found = violation(Fault.RERUN_ON_LARGE, what, run, done.operation)
            return violated(self.guarantee, [found], n=RETRIES, window=done.window)
        if done.retries[-1].is_success:
            summary = f"a response of {done.size} bytes did not lead to a second effect"
        else:
            summary = (
                f"a response of {done.size} bytes is not kept; a retry is told so by "
                f"{done.retries[-1].outcome()}, and does not run"
            )
        return holds(
            self.guarantee,
            summary,
            n=RETRIES,
            window=done.window,
            unseen=(f"responses over {done.size} bytes",),
        )


async def _retried(
    run: ProbeRun, guarantee: Guarantee, variant: Variant, what: str
) -> Retried | Verdict:
    """Send a request of this variant and its retries, if there is one and its effect is seen."""
    if not run.has(variant):
        return not_observable(
            guarantee,
            f"there is no {variant} request",
            f"Give a {variant} request, one that {what}.",
        )
    plain = await plain_retry(run, guarantee)
    if isinstance(plain, Verdict):
        return plain
    operation = await run.operation(variant)
    request = operation.request()
    first = await last_answer(run, request, "first request")
    counted = await count_effects(run, operation)
    if not first.is_success or counted == 0:
        return not_observable(
            guarantee,
            f"the {variant} request had no success or no effect: {first.outcome()}",
            f"Give a {variant} request that succeeds and {what}.",
        )
    retries = [await last_answer(run, request, "retry", patience=STORE_SECONDS)]
    while len(retries) < RETRIES:
        retries.append(await run.send(request, "further retry"))
    effects = await count_effects(run, operation)
    if counted is None or effects is None:
        return cannot_count(run, guarantee)
    if counted > 1 or all(is_busy(retry) for retry in retries):
        return not_observable(
            guarantee,
            f"{counted} effects after one request, then {answers(retries)}",
            "Run again when the server has nothing else to do.",
        )
    return Retried(operation, first, tuple(retries), effects)


PROBES = (NoContent(), LargeResponse())
