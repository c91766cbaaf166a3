"""The life of one logical request once its key is known, as a generator of effects.

The flow yields effects (see retry_effects.py) and is sent their results. Failures come back as
results, never as exceptions. It judges each try once, by the rules of retry_rules.py.

The flow is pure: clock readings and random numbers arrive in the results. It knows no HTTP library
and no journal, and never sees the key.
"""

from __future__ import annotations

from collections.abc import Generator

from oncekey.client.delivery import ProgressKind
from oncekey.client.retry_effects import (
    SECOND_US,
    Effect,
    EffectResult,
    EntryState,
    NoResponse,
    Notify,
    OutcomeKind,
    RequestOutcome,
    ResponseReceived,
    SendRequest,
    Sleep,
    TryResult,
)
from oncekey.client.retry_options import RetryLimits
from oncekey.client.retry_rules import (
    Judgement,
    entry_state,
    is_conclusive,
    judge,
    pause_us,
    retry_after_us,
)

Flow = Generator[Effect, EffectResult, RequestOutcome]


def send_with_retries(limits: RetryLimits | None, started: int, *, used: bool) -> Flow:
    """Send a request until a try decides it or the limits are reached; without limits, once.

    `started` is the monotonic time from which the deadline counts. `used` is True if the key may
    have been sent before this request. After each try there are three cases:

    1. Another try would not help, or there are no limits: the request ends with this try.
    2. The limits leave no room for another try: the request is given up.
    3. Otherwise the flow waits, and tries again unless the deadline passed meanwhile.
    """
    now, deadline = started, None if limits is None else started + limits.deadline
    attempt = waited = 0
    maybe_carried_out = used
    lost = False  # like maybe_carried_out, but for the tries of this request only
    while True:
        attempt += 1
        yield Notify(ProgressKind.SENDING, attempt)
        result = yield SendRequest(attempt, deadline)
        assert isinstance(result, (ResponseReceived, NoResponse))
        now = result.reading.now
        judgement = judge(result)
        yield _notification(result, attempt, judgement.why)
        if limits is None or deadline is None or not judgement.retry:  # case 1
            ended = _end(result, judgement, attempt, maybe_carried_out, lost)
            if ended.kind is OutcomeKind.EXHAUSTED:
                yield Notify(ProgressKind.GAVE_UP, attempt, why=ended.why)
            return ended._replace(waited=waited, elapsed=now - started)
        maybe_carried_out = maybe_carried_out or not judgement.harmless
        lost = lost or not judgement.harmless
        pause = _pause(limits, attempt, result, deadline - now)
        why = _why_not(limits, attempt, pause, deadline - now)
        if not why:  # case 3
            yield Notify(ProgressKind.WAITING, attempt, us=pause, why=judgement.why)
            woken = yield Sleep(pause)
            assert isinstance(woken, int)
            waited += woken - now
            now = woken
            # The host may have slept, or a timer may have fired late.
            why = "" if now < deadline else "the deadline passed while waiting"
        if why:  # case 2
            yield Notify(ProgressKind.GAVE_UP, attempt, why=why)
            return RequestOutcome(
                OutcomeKind.EXHAUSTED,
                attempt,
                waited,
                now - started,
                EntryState.OPEN if maybe_carried_out else EntryState.UNSENT,
                maybe_carried_out,
                why=why,
                last=judgement.why,
            )


def _end(
    result: TryResult, judgement: Judgement, attempt: int, maybe_carried_out: bool, lost: bool
) -> RequestOutcome:
    """The outcome after the last try, without its times.

    1. A whole response came: the caller gets it.
    2. The try failed, and no earlier one can have had an effect: the caller gets the error.
    3. The try failed, and an earlier one was lost. Only RetriesExhausted can say so, and has the
       key.
    """
    unsent = judgement.harmless and not maybe_carried_out
    entry = EntryState.UNSENT if unsent else EntryState.OPEN
    if isinstance(result, ResponseReceived) and result.failure is None:
        conclusive = is_conclusive(result, maybe_carried_out=maybe_carried_out)
        if conclusive:
            entry = entry_state(result.head.status)
        return RequestOutcome(
            OutcomeKind.RESPONSE, attempt, 0, 0, entry, maybe_carried_out, conclusive
        )
    if not lost:
        return RequestOutcome(OutcomeKind.ERROR, attempt, 0, 0, entry, maybe_carried_out)
    why = "the last error is not one that passes by itself"
    return RequestOutcome(
        OutcomeKind.EXHAUSTED, attempt, 0, 0, entry, True, why=why, last=judgement.why
    )


def _notification(result: TryResult, attempt: int, why: str) -> Notify:
    if isinstance(result, NoResponse):
        return Notify(ProgressKind.FAILED, attempt, why=why)
    if result.failure is not None:
        return Notify(ProgressKind.FAILED, attempt, status=result.head.status, why=why)
    return Notify(ProgressKind.ANSWERED, attempt, status=result.head.status)


def _pause(limits: RetryLimits, attempt: int, result: TryResult, left: int) -> int:
    at_least = None
    if isinstance(result, ResponseReceived):
        at_least = retry_after_us(result.head, result.reading.wall)
    return pause_us(limits, attempt, at_least, result.reading.chance, left)


def _why_not(limits: RetryLimits, attempt: int, pause: int, left: int) -> str:
    """Why there is no other try; "" if there is one."""
    if attempt >= limits.attempts:
        one = limits.attempts == 1
        return "1 try was all there was" if one else f"{limits.attempts} tries were all there were"
    if pause >= left:
        return (
            f"the next try would begin in {pause / SECOND_US:.1f} s, after the deadline: "
            f"{max(0, left) / SECOND_US:.1f} s are left of {limits.deadline / SECOND_US:.1f} s"
        )
    return ""
