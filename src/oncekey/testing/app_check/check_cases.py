"""The cases: what is sent, in which order, and what must be true afterwards.

Each case is a generator that yields actions and returns a CaseResult. Effects are judged before
answers: that something ran twice is worse than any wrong answer. The case of crashes is in
crash_case.py. Knows no client, no thread and no event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from oncekey.testing.app_check.check_actions import Action, Send, Story
from oncekey.testing.app_check.check_report import CaseResult
from oncekey.testing.app_check.crash_case import crash
from oncekey.testing.app_check.sample_request import Answer, AnswerKind, Submission

Case = Callable[[Story], Generator[Action, Any, CaseResult]]

SUCCESS, IN_FLIGHT = AnswerKind.SUCCESS, AnswerKind.IN_FLIGHT
REFUSED, FAILED = AnswerKind.REFUSED, AnswerKind.FAILED

CLAIM_FIRST: Final = (
    "claim the key atomically before the operation runs (insert first, do not select first), so "
    "that of all duplicates one gets through and the others get 409 or wait"
)
STORE_ANSWER: Final = (
    "store the status, the body and the headers of the first answer with the key, and send exactly "
    "these to every retry"
)
STORE_BEFORE_SENDING: Final = (
    "store the outcome before the response is sent, and let the handler end although its client "
    "has gone"
)
COMPARE_REQUESTS: Final = (
    "store a fingerprint of the request with its key, compare it before anything else, and refuse "
    "another request with 422; with oncekey: `request=` of `run` and `guard`"
)
SCOPE_KEYS: Final = (
    "make the verified caller a part of the key; with oncekey: `caller=` or `scope=`"
)
UNSTABLE: Final = (
    "retries of one and the same request already get different answers; see completed and "
    "lost_response first"
)
HOLDABLE: Final = "with Effects, AsyncEffects or failpoints= duplicates come while it runs"
AUTHENTICATE_FIRST: Final = "authenticate before any key is looked at"


def completed(story: Story) -> Generator[Action, Any, CaseResult]:
    yield from story.begin()
    request = story.submission()
    first = yield from story.send(request)
    again = yield from story.send(request)
    third = yield from story.send(request)
    ran = yield from story.effects()
    if ran != story.settings.unit:
        return story.violated(
            f"a request and two retries of it had {_effects(ran)} instead of {story.settings.unit}",
            f"look up the key first, and do not run what has run; {STORE_ANSWER}",
        )
    if first.kind is not SUCCESS:
        return story.violated(f"the first request was not carried out: {first}", CLAIM_FIRST)
    if not (again.same_as(first) and third.same_as(first)):
        return story.violated("a retry got another answer than the first request did", STORE_ANSWER)
    return story.holds("two retries got the first answer, and nothing ran")


def concurrent(story: Story) -> Generator[Action, Any, CaseResult]:
    yield from story.begin()
    settings = story.settings
    request = story.submission()
    answers, was_held = yield from story.together([request] * settings.concurrency)
    ran = yield from story.effects()
    if ran > settings.unit:
        return story.violated(
            f"{settings.concurrency} requests with one key at the same time had {_effects(ran)} "
            f"instead of {settings.unit}",
            CLAIM_FIRST,
        )
    final = yield from story.until_answered(request)
    ran = yield from story.effects()
    if ran != settings.unit:
        return story.violated(
            f"{settings.concurrency} requests with one key at the same time, and a retry, had "
            f"{_effects(ran)} instead of {settings.unit}",
            STORE_ANSWER,
        )
    if final.kind is not SUCCESS:
        return story.violated("when all had ended, a retry did not get the result", STORE_ANSWER)
    if not any(answer.kind is SUCCESS for answer in answers):
        return story.violated(
            "the operation ran, and none of those who asked for it got its result", STORE_ANSWER
        )
    if any(answer.kind is SUCCESS and not answer.same_as(final) for answer in answers):
        return story.violated("requests with one key got different results", STORE_ANSWER)
    if any(answer.kind not in (SUCCESS, IN_FLIGHT) for answer in answers):
        return story.violated(
            "a duplicate got an error, while the first request was carried out",
            "let a duplicate wait for the result, or tell it with 409 and Retry-After to come back",
        )
    kinds = Counter(answer.kind for answer in answers)
    how = "one was held while the others came" if was_held else f"none could be held; {HOLDABLE}"
    return story.holds(
        f"{len(answers)} at the same time, {kinds[SUCCESS]} got the result and {kinds[IN_FLIGHT]} "
        f"had to come back ({how})"
    )


def lost_response(story: Story) -> Generator[Action, Any, CaseResult]:
    yield from story.begin()
    request = story.submission()
    how = yield from story.leave(request)
    answer = yield from story.until_answered(request)
    again = yield from story.send(request)
    ran = yield from story.effects()
    if ran != story.settings.unit:
        return story.violated(
            f"a request whose response was lost, and its retries, had {_effects(ran)} instead of "
            f"{story.settings.unit}",
            STORE_BEFORE_SENDING,
        )
    if answer.kind is not SUCCESS:
        return story.violated(
            "the retry of a request whose response was lost did not get the result",
            STORE_BEFORE_SENDING,
        )
    if not again.same_as(answer):
        return story.violated("two retries got different answers", STORE_ANSWER)
    return story.holds(f"{how}; its retries got the result")


# --- another request under the same key -----------------------------------------------------------


def other_body(story: Story) -> Generator[Action, Any, CaseResult]:
    make_other = story.settings.other_request
    if make_other is None:
        return story.not_checked("no other request was given; add other_request=")
    control = story.submission()
    control = replace(control, request=make_other(control.key))
    yield from story.begin()
    alone = yield from story.send(control)
    other_unit = yield from story.effects()
    if alone.kind is not SUCCESS or other_unit < 1:
        return story.not_checked(
            f"other_request= is not carried out under a key of its own ({alone}, "
            f"{_effects(other_unit)}), so that its refusal would prove nothing"
        )
    finished = yield from _finished(story)
    other = replace(finished.request, request=make_other(finished.request.key))
    refused = yield from story.send(other)
    ran = yield from story.effects()
    found = _wrong_about_another_body(finished.answer, refused, ran)
    if found is None and finished.is_stable:
        again = yield from story.send(finished.request)
        if not again.same_as(finished.answer) or (yield from story.effects()):
            found = "after another request was refused, the first one lost its answer"
    if found is not None:
        return story.violated(found, COMPARE_REQUESTS)
    if not finished.is_stable:
        return story.not_checked(UNSTABLE)
    return (yield from _other_body_at_the_same_time(story, make_other, other_unit))


def _wrong_about_another_body(first: Answer, refused: Answer, ran: int) -> str | None:
    """What is wrong about the answer to another request under a finished request's key."""
    if ran:
        return f"another request under the same key was carried out: {_effects(ran)} more"
    if refused.kind is SUCCESS and refused.same_as(first):
        return "another request under the same key got the answer to the first one"
    if refused.kind is SUCCESS:
        return "another request under the same key was answered as if it had been carried out"
    if refused.kind is FAILED:
        return "another request under the same key was not refused, but failed"
    return None


def _other_body_at_the_same_time(
    story: Story, make_other: Callable[[str], Any], other_unit: int
) -> Generator[Action, Any, CaseResult]:
    yield from story.begin()
    request = story.submission()
    other = replace(request, request=make_other(request.key))
    answers, _ = yield from story.together([request, other])
    ran = yield from story.effects()
    units = (story.settings.unit, other_unit)
    winners = [number for number, answer in enumerate(answers) if answer.kind is SUCCESS]
    if ran > max(units) or len(winners) > 1:
        return story.violated(
            f"two different requests under one key at the same time had {_effects(ran)}",
            COMPARE_REQUESTS,
        )
    if not winners:
        return story.violated(
            f"of two different requests under one key at the same time none was answered, with "
            f"{_effects(ran)}",
            COMPARE_REQUESTS,
        )
    won, lost = winners[0], 1 - winners[0]
    again = yield from story.until_answered((request, other)[won])
    late = yield from story.until_answered((request, other)[lost])
    ran = yield from story.effects()
    if ran != units[won] or again.kind in (REFUSED, FAILED) or late.kind is SUCCESS:
        return story.violated(
            f"of two different requests under one key at the same time one was answered; it lost "
            f"its answer, or the other one was carried out too ({_effects(ran)})",
            COMPARE_REQUESTS,
        )
    if answers[lost].kind not in (REFUSED, IN_FLIGHT):
        return story.violated(
            "of two different requests under one key at the same time one was not refused, but "
            "failed",
            COMPARE_REQUESTS,
        )
    return story.holds("it was refused after the first request and beside it, and changed nothing")


# --- other callers --------------------------------------------------------------------------------


def other_caller(story: Story) -> Generator[Action, Any, CaseResult]:
    if "other caller" not in story.settings.clients:
        return story.not_checked("no second caller was given; add other_caller=")
    yield from story.begin()
    alone = yield from story.send(_by(story.submission(), "other caller"))
    their_unit = yield from story.effects()
    if alone.kind is not SUCCESS or their_unit < 1:
        return story.not_checked(
            f"other_caller= cannot make this request at all ({alone}, {_effects(their_unit)})"
        )
    finished = yield from _finished(story)
    theirs = yield from story.send(_by(finished.request, "other caller"))
    ran = yield from story.effects()
    if theirs.kind is SUCCESS and ran == 0:
        return story.violated("a caller got the answer of another caller's request", SCOPE_KEYS)
    if theirs.kind is not SUCCESS:
        return story.violated(
            "a caller was refused because another caller has used the same key", SCOPE_KEYS
        )
    if ran != their_unit:
        return story.violated(
            f"a request under another caller's key had {_effects(ran)} instead of {their_unit}",
            SCOPE_KEYS,
        )
    if not finished.is_stable:
        return story.not_checked(UNSTABLE)
    again = yield from story.send(finished.request)
    if not again.same_as(finished.answer):
        return story.violated("the first caller's retry got another answer", SCOPE_KEYS)
    ran = yield from story.effects()
    if ran != their_unit:
        return story.violated("the first caller's retry was carried out again", SCOPE_KEYS)
    return story.holds("each caller's request was carried out once, and each got its own answer")


def rejected_caller(story: Story) -> Generator[Action, Any, CaseResult]:
    if "rejected caller" not in story.settings.clients:
        return story.not_checked("no caller that the app rejects was given; add rejected_caller=")
    yield from story.begin()
    request = story.submission()
    rejection = yield from story.send(_by(request, "rejected caller"))
    ran = yield from story.effects()
    if ran:
        return story.violated(
            f"a rejected caller's request had {_effects(ran)}", AUTHENTICATE_FIRST
        )
    first = yield from story.send(request)
    ran = yield from story.effects()
    if first.kind is not SUCCESS or ran != story.settings.unit:
        return story.violated(
            "a request was not carried out, because a rejected caller had sent its key before",
            AUTHENTICATE_FIRST,
        )
    theirs = yield from story.send(_by(request, "rejected caller"))
    ran = yield from story.effects()
    found = None
    if ran != story.settings.unit:
        found = f"a rejected caller's request had {_effects(ran - story.settings.unit)}"
    elif theirs.same_as(first):
        found = "a rejected caller got the stored answer"
    elif theirs.code != rejection.code:
        found = "a rejected caller was told that the key has been used"
    if found is not None:
        return story.violated(found, AUTHENTICATE_FIRST)
    return story.holds("a caller that is rejected got the same rejection before and after")


class _Finished(NamedTuple):
    """A request that was carried out and retried: what its retries get, and whether that is the
    same every time."""

    request: Submission
    answer: Answer
    is_stable: bool


def _finished(story: Story) -> Generator[Action, Any, _Finished]:
    """Sends a request and two retries; effects are counted from then on."""
    yield from story.begin()
    request = story.submission()
    yield Send(request)
    before = yield Send(request)
    answer = yield from story.send(request)
    yield from story.count_from_here()
    return _Finished(request, answer, answer.same_as(before))


def _by(submission: Submission, client: str) -> Submission:
    return replace(submission, client=client)


def _effects(count: int) -> str:
    return "1 effect" if count == 1 else f"{count} effects"


CASES: Final[dict[str, Case]] = {
    "completed": completed,
    "concurrent": concurrent,
    "lost_response": lost_response,
    "other_body": other_body,
    "other_caller": other_caller,
    "rejected_caller": rejected_caller,
    "crash": crash,
}
