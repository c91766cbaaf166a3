"""One logical request, from its key to its verdict, as a generator that asks for what it wants.

It yields asks (see asks.py) and is sent facts. Failures come back as values: nothing is thrown in,
so an abandoned flow is exactly a crash, and the journal has its key. The key is durable before the
first try, and let go of only by an answer that tells what became of the operation.

Pure: the clock's readings and the random numbers arrive in the facts. Between two yields nothing
waits. Must not know any HTTP library, and never sees the key.
"""

from __future__ import annotations

from collections.abc import Generator

from oncekey.client import retry_rules
from oncekey.client.delivery import ProgressKind
from oncekey.client.retry import Terms
from oncekey.client.retry_effects import (
    SECOND_US,
    Answer,
    Answered,
    Ask,
    Begin,
    Begun,
    Broke,
    Ending,
    Leave,
    Send,
    Tell,
    Verdict,
    Wait,
)

Flow = Generator[Ask, Answer, Verdict]


def deliver(terms: Terms | None) -> Flow:
    """Send until an answer to go by has come, or until no try is left. Without terms: once."""
    begun = yield Begin()
    assert isinstance(begun, Begun)
    started = at = begun.at
    attempt = waited = 0
    unsure = begun.used  # whether anything sent so far may have had an effect
    lost = False  # ... and whether that was one of our own tries
    while True:
        attempt += 1
        yield Tell(ProgressKind.SENDING, attempt)
        left = None if terms is None else started + terms.deadline - at
        fact = yield Send(attempt, left)
        assert isinstance(fact, (Answered, Broke))
        at = fact.moment.at
        judged = retry_rules.judge(fact)
        yield _told(fact, attempt, judged.why)
        if terms is None or not judged.again:
            return (yield from _end(fact, attempt, waited, at - started, unsure, lost))
        unsure = unsure or not judged.harmless
        lost = lost or not judged.harmless
        left = started + terms.deadline - at
        pause = _pause(terms, attempt, fact, left)
        why = _why_not(terms, attempt, pause, left)
        if not why:
            yield Tell(ProgressKind.WAITING, attempt, us=pause, why=judged.why)
            woken = yield Wait(pause)
            assert isinstance(woken, int)
            waited += woken - at
            at = woken
            # A host that slept, or a timer that came late.
            why = "" if at < started + terms.deadline else "the deadline passed while waiting"
        if why:
            yield Tell(ProgressKind.GAVE_UP, attempt, why=why)
            yield Leave(settled=False)
            return Verdict(
                Ending.EXHAUSTED,
                attempt,
                waited,
                at - started,
                safe_new_key=not unsure,
                why=why,
                last=judged.why,
            )


def _end(
    fact: Answered | Broke, attempt: int, waited: int, elapsed: int, unsure: bool, lost: bool
) -> Flow:
    """A try after which there is no other."""
    if isinstance(fact, Answered) and fact.broke is None:
        settled = retry_rules.settles(fact, unsure=unsure)
        yield Leave(settled)
        return Verdict(Ending.ANSWERED, attempt, waited, elapsed, settled)
    yield Leave(settled=False)
    if not lost:
        return Verdict(Ending.FAILED, attempt, waited, elapsed)
    # An error of this kind would be raised as it is, but an earlier try may have had an effect,
    # and only RetriesExhausted says so and has the key.
    why = "the last error is not one that passes by itself"
    yield Tell(ProgressKind.GAVE_UP, attempt, why=why)
    last = retry_rules.judge(fact).why
    return Verdict(Ending.EXHAUSTED, attempt, waited, elapsed, why=why, last=last)


def _told(fact: Answered | Broke, attempt: int, why: str) -> Tell:
    if isinstance(fact, Broke):
        return Tell(ProgressKind.BROKE, attempt, why=why)
    if fact.broke is not None:
        return Tell(ProgressKind.BROKE, attempt, status=fact.status, why=why)
    return Tell(ProgressKind.ANSWERED, attempt, status=fact.status)


def _pause(terms: Terms, attempt: int, fact: Answered | Broke, left: int) -> int:
    asked = retry_rules.retry_after_us(fact) if isinstance(fact, Answered) else None
    return retry_rules.pause_us(terms, attempt, asked, fact.moment.chance, left)


def _why_not(terms: Terms, attempt: int, pause: int, left: int) -> str:
    """Why there is no other try; "" where there is one."""
    if attempt >= terms.attempts:
        one = terms.attempts == 1
        return "1 try was all there was" if one else f"{terms.attempts} tries were all there were"
    if pause >= left:
        return (
            f"the next try would begin in {pause / SECOND_US:.1f} s, after the deadline: "
            f"{max(0, left) / SECOND_US:.1f} s are left of {terms.deadline / SECOND_US:.1f} s"
        )
    return ""
