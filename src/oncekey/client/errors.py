"""The errors that the client raises of its own, beside those of the HTTP library.

    OncekeyError
    ├─ NotSent            refused before anything was sent, because it could not be sent safely
    └─ RetriesExhausted   sent, perhaps several times, but no response to go by came

A message says what may have happened and which key to use next. It has a short tag of the key and
the URL without its query and its user, because errors end up in logs.
"""

from __future__ import annotations

from typing import Any

from oncekey.client.retry_effects import SECOND_US, RequestOutcome
from oncekey.core.errors import OncekeyError


class NotSent(OncekeyError):
    """The request was refused before anything was sent: a retry of it could not be kept safe.

    Trying again does not help; the message says what to change.
    """


def gets_no_key(method: str, what: str) -> NotSent:
    """The error for a key or an intent that came with a request whose method gets no key."""
    return NotSent(
        f"{what} has no meaning here: a {method} gets no key from this client. Name the method in "
        "methods=[...], or leave it out. Nothing was sent"
    )


class RetriesExhausted(OncekeyError):
    """No response to go by came within the allowed tries and time.

    `safe_new_key` is True only if no try can have had an effect. Otherwise do not use a new key:
    send the same request with the same `key` again, or find out first what became of it.

    The error is also an `httpx.TransportError` or a `requests.RequestException`, by the library in
    use.
    """

    def __init__(
        self,
        message: str = "",
        *,
        key: str = "",
        attempts: int = 0,
        elapsed: float = 0.0,
        last: int | BaseException | None = None,
        request: Any = None,
        response: Any = None,
        safe_new_key: bool = False,
        operation: str = "",
        tag: str = "",
    ) -> None:
        super().__init__(message, operation=operation, tag=tag)
        self.key = key
        self.attempts = attempts
        self.elapsed = elapsed
        self.last = last
        self.response = response
        if request is not None:
            self.request = request
        self.safe_new_key = safe_new_key


def exhausted_message(outcome: RequestOutcome, *, in_journal: bool) -> str:
    """The message of a RetriesExhausted; `in_journal` is True if the journal keeps the key."""
    tries = "1 try" if outcome.attempts == 1 else f"{outcome.attempts} tries"
    if not outcome.maybe_carried_out:
        advice = "None of them can have had an effect: it is safe to use a new key"
    else:
        advice = (
            "It may have been carried out: do NOT use a new key. Send the same request with "
            "the same key again, or find out first"
        )
        if in_journal:
            advice += "; the journal keeps the key for the next such request"
    return (
        f"gave up after {tries} in {outcome.elapsed / SECOND_US:.1f} s: {outcome.why}. "
        f"The last one: {outcome.last}. {advice}"
    )
