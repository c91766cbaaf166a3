"""The probes of responses that are hard to store: without a body, and with a large one.

An API that cannot store a response may say so on a retry; it may not run the operation again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from oncekey.verify.probe import ProbeRun
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
# A smaller response is stored by everybody, and shows nothing.
LARGE_MIN_BYTES = 64 * 1024
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
    wanted: ClassVar = "is answered by 204"

    async def run(self, run: ProbeRun) -> Verdict:
        if not run.has(Variant.NO_CONTENT):
            return _no_such_request(self.guarantee, Variant.NO_CONTENT, self.wanted)
        return await after_plain_retry(run, self.guarantee, lambda _: self._check(run))

    async def _check(self, run: ProbeRun) -> Verdict:
        done = await _retried(run, self.guarantee, Variant.NO_CONTENT, self.wanted)
        if isinstance(done, Verdict):
            return done
        if done.size:
            return not_observable(
                self.guarantee,
                f"the response of the no-content request has a body of {done.size} bytes",
                _how_to_give(Variant.NO_CONTENT, self.wanted),
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
    wanted: ClassVar = f"is answered with {LARGE_MIN_BYTES} bytes or more"

    async def run(self, run: ProbeRun) -> Verdict:
        if not run.has(Variant.LARGE):
            return _no_such_request(self.guarantee, Variant.LARGE, self.wanted)
        return await after_plain_retry(run, self.guarantee, lambda _: self._check(run))

    async def _check(self, run: ProbeRun) -> Verdict:
        done = await _retried(run, self.guarantee, Variant.LARGE, self.wanted)
        if isinstance(done, Verdict):
            return done
        if done.size < LARGE_MIN_BYTES:
            return not_observable(
                self.guarantee,
                f"the response of the large request has only {done.size} bytes",
                _how_to_give(Variant.LARGE, self.wanted),
            )
        if done.effects > 1:
            what = f"a request with a response of {done.size} bytes ran again"
            found = violation(Fault.RERUN_ON_LARGE, what, run, done.operation)
            return violated(self.guarantee, [found], n=RETRIES, window=done.window)
        last = done.retries[-1]
        if last.status is not None and last.status >= 500:
            what = f"a response of {done.size} bytes, and every retry fails: {last.outcome()}"
            found = violation(Fault.SERVER_FAILED, what, run, done.operation)
            return violated(self.guarantee, [found], n=RETRIES, window=done.window)
        summary = f"a response of {done.size} bytes did not lead to a second effect"
        if not last.is_success:
            summary += f"; it is not kept, and a retry is told so by {last.outcome()}"
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
    """Send a request of this variant and its retries, if its effect is seen."""
    operation = await run.operation(variant)
    request = operation.request()
    first = await last_answer(run, request, "first request")
    counted = await count_effects(run, operation)
    if not first.is_success or counted == 0:
        return not_observable(
            guarantee,
            f"the {variant} request had no success or no effect: {first.outcome()}",
            _how_to_give(variant, what),
        )
    retries = [await last_answer(run, request, "retry", patience=STORE_SECONDS)]
    while len(retries) < RETRIES:
        retries.append(await run.send(request, "further retry"))
    effects = await count_effects(run, operation)
    if counted is None or effects is None:
        return cannot_count(run, guarantee)
    if counted > 1 or is_busy(retries[-1]):
        return not_observable(
            guarantee,
            f"{counted} effects after one request, then {answers(retries)}",
            "Run again when the server has nothing else to do.",
        )
    return Retried(operation, first, tuple(retries), effects)


def _no_such_request(guarantee: Guarantee, variant: Variant, what: str) -> Verdict:
    why = f"there is no {variant} request"
    return not_observable(guarantee, why, _how_to_give(variant, what))


def _how_to_give(variant: Variant, what: str) -> str:
    return f"Give one that succeeds and {what}: --variant {variant}=BODY, or [variants.{variant}]."


PROBES = (NoContent(), LargeResponse())
