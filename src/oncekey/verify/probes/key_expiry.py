"""The probe of expiry: a key is remembered for as long as it is said to be."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar

from oncekey.verify.probe import ProbeRun
from oncekey.verify.probes.known_outcome import is_busy
from oncekey.verify.probes.outcome_evidence import (
    cannot_count,
    count_effects,
    last_answer,
    plain_retry,
    violation,
)
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import Operation
from oncekey.verify.verdict import (
    Fault,
    Guarantee,
    Verdict,
    holds,
    not_observable,
    violated,
)

# When a retry within the published time is sent, as parts of it.
WITHIN = (0.5, 0.8)
# An API may count in whole seconds, and remove what has expired a little later.
AFTERWARDS_MARGIN_SECONDS = 1.5
# What the probe needs besides waiting.
ELSE_SECONDS = 5.0

HOW_TO_GIVE = "Let a test server keep keys for a few seconds, and say so: --keep 5s, or keep."


class Expiry:
    """Retries within the published time, and after it."""

    guarantee: ClassVar = Guarantee.EXPIRY
    sends: ClassVar = (
        f"a request, {len(WITHIN)} retries within the time that keys are kept, and one after it"
    )

    async def run(self, run: ProbeRun) -> Verdict:
        keep = run.target.keep_seconds
        if keep is None:
            return not_observable(self.guarantee, "nobody said how long a key is kept", HOW_TO_GIVE)
        if time.monotonic() + keep + ELSE_SECONDS > run.budget.ends_at:
            return not_observable(
                self.guarantee,
                f"a key is kept for {keep:g} s, and there is not so much time left",
                f"{HOW_TO_GIVE} Or raise --max-seconds.",
            )
        plain = await plain_retry(run, self.guarantee)
        if isinstance(plain, Verdict):
            return plain
        operation = await run.operation()
        first = await last_answer(run, operation.request(), "first request")
        within = await self._retry_within(run, operation, first, keep)
        if isinstance(within, Verdict):
            return within
        await _sleep_until(first.answered_at + keep + AFTERWARDS_MARGIN_SECONDS)
        last = await run.send(operation.request(), "retry after the key has expired")
        effects = await count_effects(run, operation)
        return holds(
            self.guarantee,
            f"a key is remembered for {keep:g} s; a retry after that {_afterwards(last, effects)}",
            n=len(within),
            window=f"retries after {', '.join(f'{age:.1f}' for age in within)} of {keep:g} s",
        )

    async def _retry_within(
        self, run: ProbeRun, operation: Operation, first: Exchange, keep: float
    ) -> list[float] | Verdict:
        """Return the ages at which the key was still remembered, or the verdict if it was not."""
        ages: list[float] = []
        for part in WITHIN:
            await _sleep_until(first.sent_at + part * keep)
            age = time.monotonic() - first.sent_at
            retry = await run.send(operation.request(), f"retry after {age:.1f} of {keep:g} s")
            effects = await count_effects(run, operation)
            if effects is None:
                return cannot_count(run, self.guarantee)
            # Only what was over before the earliest end that the API can mean is held against it.
            if retry.answered_at >= first.sent_at + keep or is_busy(retry):
                continue
            if effects > 1:
                what = f"a key is kept for {keep:g} s, and a retry after {age:.1f} s ran again"
                found = violation(Fault.EXPIRED_EARLY, what, run, operation)
                return violated(self.guarantee, [found], n=len(ages) + 1)
            if retry.is_success:
                ages.append(age)
        return ages or not_observable(
            self.guarantee,
            "no retry was answered within the time that a key is kept",
            "Let the server keep keys for longer than a request takes.",
        )


def _afterwards(last: Exchange, effects: int | None) -> str:
    """Say what an API does with a key that it has forgotten, or should have."""
    if effects is not None and effects > 1:
        return "runs again, as a new operation"
    if last.is_success:
        return "still gets the outcome"
    return f"gets {last.outcome()}"


async def _sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.monotonic()))


PROBES = (Expiry(),)
