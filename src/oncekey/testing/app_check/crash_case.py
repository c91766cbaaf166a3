"""The case of crashes: the process of a request dies before and after each of its store calls.

It needs failpoints in the app's store and a clock that a test can move, because a dead owner keeps
its key until its lease ends. Afterwards a retry must end in one of two ways, and stay there: the
operation has run once and its result is replayed; or, if it is not retry-safe, nobody can tell and
the answer says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any, Final, NamedTuple

from oncekey.testing.app_check.check_actions import Action, Send, Story
from oncekey.testing.app_check.check_report import CaseResult
from oncekey.testing.app_check.sample_request import AnswerKind
from oncekey.testing.failpoints import Failpoints
from oncekey.testing.fake_clock import FakeClock

CRASH_POINTS_MAX: Final = 60
LEASES_WAITED: Final = 2  # a lease, and the time in which a silent owner may still act
CRASH_RETRIES: Final = 5
_SECOND_US: Final = 1_000_000

NO_FAILPOINTS: Final = (
    "no failpoints were given; build the app on `oncekey_once` or `oncekey_async_once`, and add "
    "failpoints=oncekey_failpoints"
)
NO_CLOCK: Final = (
    "the clock of the store cannot be moved, so that the lease of a dead owner does not end; use "
    "the store memory or sqlite of the test kit, or Failpoints(clock)"
)
NO_CALLS: Final = (
    "the app made no call to a store with these failpoints: it uses another store, or works in "
    "your transaction, where the database rolls back what a crash leaves"
)
NOT_RETRY_SAFE: Final = (
    "the operation ran again after its owner had died. With retry_safe=True every effect must be "
    "harmless to repeat: send attempt.child_key(...) to what it calls, use attempt.step(...), or "
    "leave retry_safe out"
)
ALWAYS_DECIDE: Final = (
    "a dead owner's key must become free, be taken over or be reported as unknown when its lease "
    "is over"
)


class CrashPoint(NamedTuple):
    """A place between two calls of the store: before or after the `number`th call."""

    number: int
    is_before: bool
    verb: str

    def __str__(self) -> str:
        side = "before" if self.is_before else "after"
        return f"{side} {self.verb} (call {self.number})"

    def set(self, failpoints: Failpoints) -> None:
        if self.is_before:
            failpoints.crash(before="any", nth=self.number)
        else:
            failpoints.crash(after="any", nth=self.number)


def crash(story: Story) -> Generator[Action, Any, CaseResult]:
    failpoints = story.settings.failpoints
    if failpoints is None:
        return story.not_checked(NO_FAILPOINTS)
    if failpoints.clock is None:
        return story.not_checked(NO_CLOCK)
    failpoints.clear()
    yield from story.begin()
    yield from story.send(story.submission())
    verbs, lease = failpoints.verbs(), failpoints.longest_lease()
    if not verbs:
        return story.not_checked(NO_CALLS)
    points = [
        CrashPoint(number, is_before, verb)
        for number, verb in enumerate(verbs, 1)
        for is_before in (True, False)
    ]
    ends: Counter[str] = Counter()
    for point in points[:CRASH_POINTS_MAX]:
        wait_us = LEASES_WAITED * lease + _SECOND_US
        end = yield from _crash_at(point, story, failpoints, failpoints.clock, wait_us)
        failpoints.clear()
        if isinstance(end, CaseResult):
            return end
        ends[end.value] += 1
    left_out = len(points) - CRASH_POINTS_MAX
    more = f"; {left_out} more places were left out" if left_out > 0 else ""
    counted = ", ".join(f"{count} x {end}" for end, count in ends.items())
    calls = ", ".join(verbs)
    return story.holds(f"before and after each of {calls}; the retries ended in {counted}{more}")


def _crash_at(
    point: CrashPoint, story: Story, failpoints: Failpoints, clock: FakeClock, wait_us: int
) -> Generator[Action, Any, CaseResult | AnswerKind]:
    """How the retries of a request end whose process died at this point."""
    yield from story.begin()
    request = story.submission()
    failpoints.clear()
    point.set(failpoints)
    lost = yield Send(request)
    failpoints.clear()
    story.note(f"{request}, and a crash {point}", lost)
    answer = lost
    for _ in range(CRASH_RETRIES):
        clock.advance(wait_us)
        answer = yield from story.send(request)
        if answer.kind is not AnswerKind.IN_FLIGHT:
            break
    again = yield from story.send(request)
    ran = yield from story.effects()
    unit = story.settings.unit
    if ran > unit:
        return story.violated(
            f"a request that crashed {point}, and its retries, had {ran} effects instead of {unit}",
            NOT_RETRY_SAFE,
        )
    if answer.kind is AnswerKind.UNKNOWN and again.kind is AnswerKind.UNKNOWN:
        return AnswerKind.UNKNOWN
    if answer.kind is not AnswerKind.SUCCESS:
        return story.violated(
            f"after a crash {point} a retry got neither the result nor 'outcome unknown'",
            ALWAYS_DECIDE,
        )
    if ran != unit:
        return story.violated(
            f"after a crash {point} a retry was answered as carried out, with {ran} effects "
            f"instead of {unit}",
            ALWAYS_DECIDE,
        )
    if not again.same_as(answer):
        return story.violated(
            f"after a crash {point} two retries got different answers", ALWAYS_DECIDE
        )
    return AnswerKind.SUCCESS
