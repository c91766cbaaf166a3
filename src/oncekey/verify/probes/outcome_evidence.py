"""What a probe can know of an operation: its last answer, and how often it had its effect.

Everything here gives the API the benefit of the doubt: a server that is busy or restarts is asked
again, a counter that lags is asked again, a total that others change counts for nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oncekey.verify.probe import ProbeRun
from oncekey.verify.recorded_exchange import Exchange, WireRequest
from oncekey.verify.target import Operation, Variant
from oncekey.verify.verdict import (
    Fault,
    Guarantee,
    Verdict,
    Violation,
    not_observable,
    violated,
)

# So long a plain request and its plain retry may be in flight, or the server busy.
PLAIN_SECONDS = 10.0
# A failure other than "in flight" is repeated for so long before it counts as the answer.
FAILURE_SECONDS = 5.0
# A counter may lag behind the API by this much.
COUNTER_LAG_SECONDS = 3.0
# A total that changes within this time, while nothing is sent, is changed by others.
QUIET_SECONDS = 0.5
# A violation shows at most so many exchanges.
SHOWN_EXCHANGES = 8
PAUSE_MIN_SECONDS = 0.05
PAUSE_MAX_SECONDS = 2.0

SEQUENCE = "one request after the other"

HOW_TO_COUNT = (
    "Say how effects are counted: --count-url, --count-command, --count-sql or --count-id, or the "
    "table [effects]."
)
HOW_TO_COUNT_ONE = (
    "Count the effects of one operation, by {{unique}} or {{key}} in the URL or :unique in the "
    "query, or verify while nobody else uses the API."
)
HOW_TO_COUNT_LOST = (
    "Count effects by --count-url, --count-command or --count-sql: ids in responses say nothing "
    "about an operation whose response was lost."
)
HOW_TO_GIVE_SLOW = "Give one: --variant slow=BODY and --slow DURATION, or [variants.slow] and slow."


@dataclass(frozen=True, slots=True)
class PlainRetry:
    """A request and its retry, one after the other, with one effect.

    seconds   how long the first request took
    """

    first: Exchange
    retry: Exchange

    @property
    def seconds(self) -> float:
        return self.first.answered_at - self.first.sent_at


async def plain_retry(
    run: ProbeRun, guarantee: Guarantee, variant: Variant = Variant.MAIN
) -> PlainRetry | Verdict:
    """Make sure that a retry in sequence is answered without a second effect.

    A probe that finds something wrong afterwards has found more than a key that is ignored. If
    this much does not work, or cannot be seen, the probe's verdict is returned.
    """
    operation = await run.operation(variant)
    request = operation.request()
    patience = min(run.limits.patience, PLAIN_SECONDS)
    first = await last_answer(run, request, "first request", patience=patience, failing=0.0)
    if not first.is_success:
        return not_observable(
            guarantee,
            f"the {variant} request was not successful: {first.outcome()}",
            f"Give a {variant} request that succeeds; a dry run shows what is sent.",
        )
    counted = await count_effects(run, operation)
    if counted is None:
        return cannot_count(run, guarantee)
    retry = await last_answer(run, request, "retry", patience=patience)
    effects = await count_effects(run, operation)
    if effects is None:
        return cannot_count(run, guarantee)
    if counted != 1:
        return not_observable(
            guarantee,
            f"after one request that succeeded the counter says {counted} effects, not 1",
            "Count something that is made exactly once per operation.",
        )
    if effects > 1:
        found = f"a retry in sequence was run again: {effects} effects for one key"
        return violated(
            guarantee, [violation(Fault.KEY_IGNORED, found, run, operation)], n=1, window=SEQUENCE
        )
    if not retry.is_success:
        found = f"the first request succeeded, and its retry never does: {retry.outcome()}"
        return violated(
            guarantee,
            [violation(Fault.NEVER_ANSWERED, found, run, operation)],
            n=1,
            window=SEQUENCE,
        )
    return PlainRetry(first, retry)


async def last_answer(
    run: ProbeRun,
    request: WireRequest,
    note: str = "retry",
    *,
    patience: float | None = None,
    failing: float | None = None,
) -> Exchange:
    """Send a request until it succeeds, as a patient client does; return the last exchange.

    Without success it ends when the key was in flight for `patience` (by default the limit of that
    name), or when another failure has lasted for `failing` (by default FAILURE_SECONDS). Statuses
    that a server uses while an operation runs differ, and what passes by itself is no fault.
    """
    patience = run.limits.patience if patience is None else patience
    failing = min(patience, FAILURE_SECONDS) if failing is None else failing
    began = time.monotonic()
    pause = PAUSE_MIN_SECONDS
    while True:
        exchange = await run.send(request, note)
        lasted = time.monotonic() - began
        is_waiting = exchange.status in run.profile.in_flight or is_busy(exchange)
        if exchange.is_success or lasted >= (patience if is_waiting else failing):
            return exchange
        await asyncio.sleep(_pause(exchange, pause))
        pause = min(2 * pause, PAUSE_MAX_SECONDS)


def is_busy(exchange: Exchange) -> bool:
    """True if the server had no time for the request, or could not be reached."""
    return exchange.response is None or exchange.response.status in (429, 503)


async def count_effects(run: ProbeRun, operation: Operation, *, at_least: int = 1) -> int | None:
    """Return how often the operation had its effect; None if that cannot be told.

    It asks until there are `at_least` so many, because a counter may lag. More than one are
    believed only if the counter says so twice.
    """
    ends_at = time.monotonic() + COUNTER_LAG_SECONDS
    while True:
        effects = await run.effects(operation)
        if effects is None or effects >= at_least or time.monotonic() >= ends_at:
            break
        await asyncio.sleep(PAUSE_MIN_SECONDS)
    if effects is None or effects <= 1:
        return effects
    if not _counts_all(run):
        return await run.effects(operation)
    await asyncio.sleep(QUIET_SECONDS)
    return effects if await run.effects(operation) == effects else None


def cannot_count(run: ProbeRun, guarantee: Guarantee) -> Verdict:
    """The verdict of a probe whose effects nobody can count."""
    if run.target.effects is None:
        return not_observable(guarantee, "nothing counts the effects", HOW_TO_COUNT)
    return not_observable(
        guarantee,
        "the number of effects changes while nothing is sent: others use the API",
        HOW_TO_COUNT_ONE,
    )


def violation(
    fault: Fault,
    found: str,
    run: ProbeRun,
    operation: Operation,
    exchanges: Sequence[Exchange] | None = None,
) -> Violation:
    """Return a violation with the exchanges of this operation, or with those that are given."""
    shown = shown_exchanges(run.exchanges_of(operation) if exchanges is None else exchanges)
    return Violation(fault, found, shown)


def shown_exchanges(exchanges: Iterable[Exchange]) -> tuple[Exchange, ...]:
    """Return the exchanges that show most, in the order they were sent: the first one, the last
    one and successes before refusals."""
    ordered = sorted(exchanges, key=lambda exchange: exchange.sent_at)
    if len(ordered) <= SHOWN_EXCHANGES:
        return tuple(ordered)
    between = sorted(ordered[1:-1], key=lambda exchange: not exchange.is_success)
    chosen = [ordered[0], *between[: SHOWN_EXCHANGES - 2], ordered[-1]]
    return tuple(sorted(chosen, key=lambda exchange: exchange.sent_at))


def answers(exchanges: Iterable[Exchange]) -> str:
    """Say how often each answer came, such as "19 x 409, 1 x 201"."""
    counts: dict[str, int] = {}
    for exchange in exchanges:
        counts[exchange.outcome()] = counts.get(exchange.outcome(), 0) + 1
    most_first = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} x {outcome}" for outcome, count in most_first)


def _counts_all(run: ProbeRun) -> bool:
    return run.target.effects is not None and run.target.effects.is_total


def _pause(exchange: Exchange, pause: float) -> float:
    """Return how long to wait before a retry; a server cannot make it long."""
    text = exchange.response.header("retry-after") if exchange.response is not None else None
    wanted = float(text) if text is not None and text.isascii() and text.isdigit() else pause
    return min(max(wanted, pause), PAUSE_MAX_SECONDS)
