"""What a case asks its driver to do, and the story of one case as it is told.

A case is a generator: it yields actions and gets their results, so that one text of it serves sync
and async clients. `Story` sends for a case, remembers every exchange for the message of a failure,
and counts effects since the case began.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from oncekey.engine.new_key import new_key
from oncekey.testing.app_check.check_report import CaseResult, CaseStatus, Violation
from oncekey.testing.app_check.sample_request import Answer, AnswerKind, Submission
from oncekey.testing.failpoints import Failpoints

# A client that is told that its key is held asks again so often, and then gives up.
RETRIES_MAX: Final = 60


class Gate(Protocol):
    """A place in the app where one request can be held."""

    def arm(self) -> None: ...
    def is_held(self) -> bool: ...
    def release(self) -> None: ...


@dataclass(frozen=True)
class Send:
    """Send one submission; the result is its Answer."""

    submission: Submission


@dataclass(frozen=True)
class SendTogether:
    """Send submissions at the same time; the result is a Together. One of them is held at the gate,
    if there is one, until the others are answered or wait for it."""

    submissions: tuple[Submission, ...]
    gate: Gate | None


class Together(NamedTuple):
    """The answers to submissions that were sent together, and whether one was held meanwhile."""

    answers: list[Answer]
    was_held: bool


@dataclass(frozen=True)
class SendAndLeave:
    """Send a submission and leave before its answer comes; the result says what was done."""

    submission: Submission
    gate: Gate | None


@dataclass(frozen=True)
class CountEffects:
    """Count the effects; the result is their number."""


@dataclass(frozen=True)
class Pause:
    """Wait a moment, as a client does before it asks again."""


Action = Send | SendTogether | SendAndLeave | CountEffects | Pause
Steps = Generator[Action, Any, Any]


@dataclass(frozen=True)
class CheckSettings:
    """What the cases need to know of the app under test.

    request, other_request   make the request of a key; there may be no other one
    unit                     how many effects one carried-out request has
    clients                  who can send: "caller", perhaps "other caller" and "rejected caller"
    """

    request: Callable[[str], Any]
    other_request: Callable[[str], Any] | None
    unit: int
    clients: frozenset[str]
    concurrency: int
    gate: Gate | None
    failpoints: Failpoints | None


class Story:
    """One case as it goes on: its exchanges and its effects."""

    def __init__(self, case: str, settings: CheckSettings) -> None:
        self.case = case
        self.settings = settings
        self._exchanges: list[tuple[str, str]] = []
        self._effects_before = 0

    # --- what is done -------------------------------------------------------------------------

    def begin(self) -> Steps:
        """Begins a new operation: earlier exchanges and effects do not belong to it."""
        self._exchanges = []
        yield from self.count_from_here()

    def count_from_here(self) -> Steps:
        """Lets `effects` count what happens from now on."""
        self._effects_before = yield CountEffects()

    def submission(self) -> Submission:
        """The request under test, with a new key."""
        key = new_key()
        return Submission(key, self.settings.request(key))

    def send(self, submission: Submission) -> Generator[Action, Any, Answer]:
        answer: Answer = yield Send(submission)
        self.note(str(submission), answer)
        return answer

    def together(self, submissions: Sequence[Submission]) -> Generator[Action, Any, Together]:
        together: Together = yield SendTogether(tuple(submissions), self.settings.gate)
        for submission, answer in zip(submissions, together.answers, strict=True):
            self.note(f"{submission}, with others at the same time", answer)
        return together

    def leave(self, submission: Submission) -> Generator[Action, Any, str]:
        how: str = yield SendAndLeave(submission, self.settings.gate)
        self.note(str(submission), f"nobody looked: {how}")
        return how

    def until_answered(self, submission: Submission) -> Generator[Action, Any, Answer]:
        """Sends again while the key is held, as a client does."""
        answer: Answer = yield Send(submission)
        for _ in range(RETRIES_MAX):
            if answer.kind is not AnswerKind.IN_FLIGHT:
                break
            yield Pause()
            answer = yield Send(submission)
        self.note(str(submission), answer)
        return answer

    def effects(self) -> Generator[Action, Any, int]:
        """How many effects there were since `begin` or `count_from_here`."""
        now: int = yield CountEffects()
        return now - self._effects_before

    # --- how it ends --------------------------------------------------------------------------

    def note(self, sent: str, answer: object) -> None:
        self._exchanges.append((sent, str(answer)))

    def holds(self, detail: str) -> CaseResult:
        return CaseResult(self.case, CaseStatus.HOLDS, detail)

    def not_checked(self, why: str) -> CaseResult:
        return CaseResult(self.case, CaseStatus.NOT_CHECKED, why)

    def violated(self, found: str, advice: str) -> CaseResult:
        violation = Violation(found, tuple(self._exchanges), advice)
        return CaseResult(self.case, CaseStatus.VIOLATED, found, violation)
