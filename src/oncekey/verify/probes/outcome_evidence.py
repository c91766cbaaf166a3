"""What a probe can know of an operation: its last answer, and how often it had its effect.

Everything here gives the API the benefit of the doubt: a server that is busy or restarts is asked
again, a counter that lags is asked again, a total that others change counts for nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from oncekey.verify.probe import ProbeRun
from oncekey.verify.probes.known_outcome import QUIET_SECONDS, SEQUENCE, is_busy
from oncekey.verify.recorded_exchange import Exchange, WireRequest
from oncekey.verify.target import Operation
from oncekey.verify.verdict import (
    Fault,
    Guarantee,
    Status,
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
# A second effect may come later than the first one, from a queue or a job; it is waited for.
LATE_EFFECT_SECONDS = 1.5
# A violation shows at most so many exchanges.
SHOWN_EXCHANGES = 8
PAUSE_MIN_SECONDS = 0.05
PAUSE_MAX_SECONDS = 2.0

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
UNSEEN_REFUSED = (
    "effects of requests that were refused or failed: the ids in responses do not tell of them"
)
HOW_TO_GIVE_SLOW = "Give one: --variant slow=BODY and --slow DURATION, or [variants.slow] and slow."


@dataclass(frozen=True, slots=True)
class PlainRetry:
    """An operation whose request and retry, one after the other, had one effect."""

    operation: Operation
    first: Exchange

    @property
    def seconds(self) -> float:
        """How long the first request took."""
        return self.first.answered_at - self.first.sent_at


async def after_plain_retry(
    run: ProbeRun, guarantee: Guarantee, check: Callable[[PlainRetry], Awaitable[Verdict]]
) -> Verdict:
    """Return the verdict of a check that begins after a plain retry.

    A fault counts only if the plain operation is still known afterwards. A server that was
    restarted without its records, or keeps keys for a moment only, has forgotten that one too.
    """
    plain = await plain_retry(run, guarantee)
    if isinstance(plain, Verdict):
        return plain
    verdict = await check(plain)
    if verdict.status is not Status.VIOLATED or await _is_still_known(run, plain):
        return verdict
    return not_observable(
        guarantee,
        f"the server forgets keys that it knew before, so this may be no fault of its own: "
        f"{verdict.summary}",
        "Make sure that it is not restarted meanwhile and keeps keys for minutes, and run again.",
    )


async def _is_still_known(run: ProbeRun, plain: PlainRetry) -> bool:
    before = await run.effects(plain.operation)
    request = plain.operation.request()
    again = await last_answer(run, request, "the plain operation once more")
    return again.is_success and await run.effects(plain.operation) == before


async def plain_retry(run: ProbeRun, guarantee: Guarantee) -> PlainRetry | Verdict:
    """Make sure that a retry in sequence is answered without a second effect.

    A probe that finds something wrong afterwards has found more than a key that is ignored. If
    this much does not work, or cannot be seen, the probe's verdict is returned. A fault is seen
    twice before it counts: the server may have been restarted in between.
    """
    seen = await _plain_retry(run, guarantee)
    if isinstance(seen, PlainRetry) or seen.status is not Status.VIOLATED:
        return seen
    return await _plain_retry(run, guarantee)


async def _plain_retry(run: ProbeRun, guarantee: Guarantee) -> PlainRetry | Verdict:
    operation = await run.operation()
    request = operation.request()
    patience = min(run.limits.patience, PLAIN_SECONDS)
    first = await last_answer(run, request, "first request", patience=patience, failing=0.0)
    if not first.is_success:
        return not_observable(
            guarantee,
            f"the main request did not succeed: {first.outcome()}",
            "Give a request that succeeds; --dry-run shows what is sent.",
        )
    counted = await count_effects(run, operation)
    retry = await last_answer(run, request, "retry", patience=patience)
    effects = await count_effects(run, operation)
    if counted is None or effects is None:
        return cannot_count(run, guarantee)
    if counted != 1:
        return not_observable(
            guarantee,
            f"after one request that succeeded the counter says {counted} effects, not 1",
            "Count something that is made exactly once per operation.",
        )
    if is_busy(retry):
        return not_observable(
            guarantee,
            f"the server was too busy for a retry: {retry.outcome()}",
            "Run again when it has nothing else to do.",
        )
    if effects == 1 and retry.is_success:
        return PlainRetry(operation, first)
    if effects > 1:
        what = f"a retry in sequence was run again: {effects} effects for one key"
        found = violation(Fault.KEY_IGNORED, what, run, operation)
    else:
        what = f"the first request succeeded, and its retry never does: {retry.outcome()}"
        found = violation(Fault.NEVER_ANSWERED, what, run, operation)
    return violated(guarantee, [found], n=1, window=SEQUENCE)


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


async def late_effect(run: ProbeRun, counted: Sequence[tuple[Operation, int]]) -> Operation | None:
    """Return an operation that had a second effect some time after it was counted, if one had.

    `counted` are all operations since the first of them, with their effects until now.
    """
    counter = run.target.effects
    once = [operation for operation, effects in counted if effects == 1]
    if counter is None or not counter.sees_lost_responses or not once:
        return None
    await asyncio.sleep(LATE_EFFECT_SECONDS)
    if counter.is_total:
        if len(once) < len(counted):
            return None  # what the others did is not known
        total = await count_effects(run, once[0], at_least=len(once))
        return once[-1] if total is not None and total > len(once) else None
    for operation in once:
        effects = await count_effects(run, operation)
        if effects is not None and effects > 1:
            return operation
    return None


def unseen_of_ids(run: ProbeRun) -> tuple[str, ...]:
    """What a counter of ids cannot see, for a verdict that stands on one."""
    counter = run.target.effects
    return () if counter is None or counter.sees_lost_responses else (UNSEEN_REFUSED,)


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
