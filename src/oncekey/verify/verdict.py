"""What the verifier says: one verdict per guarantee, and the faults it can name.

Owns the names that reports, documentation and scripts use; they are stable.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from oncekey.verify.recorded_exchange import Exchange


class Guarantee(enum.Enum):
    """What an API promises about a retried request; one probe checks one of them."""

    def __init__(self, slug: str, title: str) -> None:
        self.slug = slug
        self.title = title

    CONCURRENT_DUPLICATES = "concurrent-duplicates", "Concurrent duplicates run once"
    LOST_RESPONSE = "lost-response", "A retry after a lost response gets the outcome"
    DISCONNECT = "disconnect", "A client that leaves during the handler loses nothing"
    SLOW_HANDLER = "slow-handler", "A slow operation is not started a second time"
    OTHER_BODY_AFTER = "other-body-after", "Another body under a finished key is refused"
    OTHER_BODY_DURING = "other-body-during", "Another body under a running key is refused"
    OTHER_PATH = "other-path", "A key used on another path replays nothing from the first"
    OTHER_CALLER = "other-caller", "A key of one caller says nothing to another"
    BAD_CREDENTIALS = "bad-credentials", "A stored response is not given to strangers"
    KEY_SYNTAX = "key-syntax", "Malformed keys are refused, and one key has one meaning"
    MISSING_KEY = "missing-key", "A request without its required key is refused"
    REPLAY_FIDELITY = "replay-fidelity", "A replay is the first response: status, bytes, headers"
    CLIENT_ERRORS = "client-errors", "A request that was refused does not block or mislead retries"
    SERVER_ERRORS = "server-errors", "A failed operation is not run again unnoticed"
    NO_CONTENT = "no-content", "A response without a body is replayed too"
    LARGE_RESPONSE = "large-response", "A large response does not run the operation again"
    EXPIRY = "expiry", "A key is remembered as long as it is said to be"


class Fault(enum.Enum):
    """What is wrong, in the words of those who have to mend it."""

    def __init__(self, slug: str, title: str, cause: str) -> None:
        self.slug = slug
        self.title = title
        self.cause = cause

    RACE = (
        "race",
        "check-then-act race",
        "the key is looked up first and stored later, so duplicates that arrive together all run",
    )
    STALE_RESET = (
        "stale-reset",
        "stale reset of a running key",
        "a pending key is taken over by age alone, while its owner is still at work",
    )
    FAILURE_CLOBBERS_SUCCESS = (
        "failure-clobbers-success",
        "a failure overwrites a success",
        "an attempt that fails writes its failure without asking whether the key is still its own",
    )
    MISMATCH_DESTROYS_RECORD = (
        "mismatch-destroys-record",
        "a refused request destroys the stored outcome",
        "the refusal of another body ends in the code that marks the key as failed or removes it",
    )
    UNSCOPED = (
        "unscoped",
        "keys are shared by all callers",
        "the key is stored without the caller, so one caller meets the outcomes of another",
    )
    BODY_NOT_COMPARED = (
        "body-not-compared",
        "the body is not compared",
        "the stored outcome is given to any request with this key, whatever it asks for",
    )
    OTHER_BODY_RUN = (
        "other-body-run",
        "another body is run under the same key",
        "the body is part of what a key is stored under, so a key that is used for two things by "
        "mistake is not noticed",
    )
    PATH_NOT_COMPARED = (
        "path-not-compared",
        "the path is not compared",
        "the stored outcome is given to any request with this key, whichever path it goes to",
    )
    IN_FLIGHT_BEFORE_MISMATCH = (
        "in-flight-before-mismatch",
        "in flight is reported before the mismatch",
        "another body under a running key is told to retry, and will be refused for ever",
    )
    RERUN_ON_NO_CONTENT = (
        "rerun-on-204",
        "an empty response is not remembered",
        "a stored body that is empty is taken for no stored outcome",
    )
    RERUN_ON_LARGE = (
        "rerun-on-large",
        "a large response is not remembered",
        "a response over the limit is not stored, and nothing is kept in its place",
    )
    REPLAY_BEFORE_AUTH = (
        "replay-before-auth",
        "replayed before authentication",
        "the stored outcome is looked up before the caller is known",
    )
    LOST_ON_DISCONNECT = (
        "lost-on-disconnect",
        "the outcome is lost when the client leaves",
        "the handler is cancelled, its outcome is stored only after the response was sent, or the "
        "failure of the broken connection is stored as the outcome",
    )
    STATUS_LOST = (
        "status-lost",
        "the status is lost on replay",
        "only the body is stored, and a replay has the default status",
    )
    COOKIES_REPLAYED = (
        "cookies-replayed",
        "cookies are replayed",
        "Set-Cookie is stored with the response and given to whoever retries",
    )
    HEADER_LINES_JOINED = (
        "header-lines-joined",
        "two keys are joined to one",
        "several lines of the key header are joined by a comma and used as a key",
    )
    KEY_IGNORED = (
        "key-ignored",
        "the key has no effect",
        "a request that is sent again with its key is simply run again",
    )
    RERUN_AFTER_LOST_RESPONSE = (
        "rerun-after-lost-response",
        "a lost response leads to a second run",
        "the outcome is stored only after the response has left",
    )
    RERUN_AFTER_FAILURE = (
        "rerun-after-failure",
        "a failed operation that had its effect is run again",
        "a failure removes the key although the effect may have happened",
    )
    SUCCESS_WITHOUT_EFFECT = (
        "success-without-effect",
        "a success is told for an operation that did not happen",
        "the success is stored, or sent, before the operation's own commit, which failed",
    )
    FAILURE_NOT_KEPT = (
        "failure-not-kept",
        "a failure is run again instead of being replayed",
        "a 5xx removes the key, where the profile says that it is stored",
    )
    BODY_CHANGED = (
        "body-changed",
        "the body of a replay differs",
        "the response is parsed and written again instead of being kept as bytes",
    )
    HEADERS_LOST = (
        "headers-lost",
        "headers are lost on replay",
        "headers that describe the body or the resource are not stored",
    )
    REPLAY_UNMARKED = (
        "replay-unmarked",
        "a replay is not marked as one",
        "clients cannot tell whether their request or an earlier one was run",
    )
    KEY_ACCEPTED = (
        "malformed-key-accepted",
        "a malformed key is accepted",
        "the key header is used without being checked",
    )
    KEY_REFUSED = (
        "valid-key-refused",
        "a valid key is refused",
        "the limit of the key's length is lower than the profile says",
    )
    KEY_TRUNCATED = (
        "key-truncated",
        "long keys are cut",
        "two keys that begin alike are one, so one of two operations is lost",
    )
    KEY_CASE_IGNORED = (
        "key-case-ignored",
        "keys are compared without regard to case",
        "two keys that differ in case are one, so one of two operations is lost",
    )
    REFUSED_BUT_RUN = (
        "refused-but-run",
        "a refused request has its effect all the same",
        "the handler runs before the check that refuses, or beside it",
    )
    KEY_FORMS_DIFFER = (
        "key-forms-differ",
        "quoted and bare form are two keys",
        "the header's value is used as it came, quotes included",
    )
    KEY_NOT_REQUIRED = (
        "key-not-required",
        "a request without a key is run",
        "the header is optional here",
    )
    WRONG_STATUS = (
        "wrong-status",
        "refused with another status than the profile says",
        "clients decide by the status whether to retry",
    )
    NEVER_ANSWERED = (
        "never-answered",
        "no duplicate ever gets the outcome",
        "every request with this key was refused or failed, also long after the first one ended",
    )
    SERVER_FAILED = (
        "server-failed",
        "the server failed",
        "a request that it should have answered or refused ended in a 5xx",
    )
    EXPIRED_EARLY = (
        "expired-early",
        "the key was forgotten early",
        "a retry within the published time was run again",
    )


class Status(enum.StrEnum):
    """How a guarantee stands."""

    HOLDS = "holds"
    VIOLATED = "violated"
    NOT_OBSERVABLE = "not observable"


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault that was seen, with the exchanges that show it, in the order they were sent."""

    fault: Fault
    what: str
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of one guarantee.

    n            how many requests, or rounds of them, the verdict stands on
    window       which dangerous moment was met, such as "119 of 120 were sent before any answer"
    summary      one sentence for people
    violations   what was seen, if it is violated
    advice       how to make it observable, or what to look at next
    unseen       parts of the guarantee that could not be observed although the rest could
    """

    guarantee: Guarantee
    status: Status
    summary: str
    n: int = 0
    window: str = ""
    violations: tuple[Violation, ...] = ()
    advice: str = ""
    unseen: tuple[str, ...] = ()


def holds(
    guarantee: Guarantee, summary: str, *, n: int, window: str, unseen: tuple[str, ...] = ()
) -> Verdict:
    """A verdict that names what it stands on: without n and a window nothing was shown."""
    if n < 1 or not window:
        raise ValueError("a guarantee holds only by what was seen")
    return Verdict(guarantee, Status.HOLDS, summary, n, window, unseen=unseen)


def violated(
    guarantee: Guarantee, violations: list[Violation], *, n: int, window: str = ""
) -> Verdict:
    """A verdict by its violations; the first one is the summary."""
    summary = violations[0].what
    return Verdict(guarantee, Status.VIOLATED, summary, n, window, tuple(violations))


def not_observable(guarantee: Guarantee, why: str, advice: str) -> Verdict:
    """A verdict that says why nothing was seen, and what the user can give to change that."""
    return Verdict(guarantee, Status.NOT_OBSERVABLE, why, advice=advice)
