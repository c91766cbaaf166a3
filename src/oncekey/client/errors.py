"""What the client raises of its own, beside what the HTTP library raises.

    OncekeyError
    ├─ NotSent            refused before anything was sent: how it was asked for is not safe
    └─ RetriesExhausted   sent, perhaps several times, and no answer to go by came

Owns the words about what may have happened and which key to use next. A message has a short tag
of the key and the URL without its query and its user: errors end up in logs.
"""

from __future__ import annotations

from typing import Any

from oncekey.core.errors import OncekeyError


class NotSent(OncekeyError):
    """The request was refused before anything was sent: a retry of it could not be kept safe.

    Trying again does not help; the message says what to change.
    """


def unguarded(method: str, what: str) -> NotSent:
    """The refusal of a key, or of an intent, for a request that gets none."""
    return NotSent(
        f"{what} has no meaning here: a {method} gets no key from this client. Name the method in "
        "methods=[...], or leave it out. Nothing was sent"
    )


class RetriesExhausted(OncekeyError):
    """No answer to go by came within the tries and the time there were.

    `safe_new_key` is True only where no try can have had an effect. Else do not use a new key:
    send the same request with the same `key` again, or find out first what became of it.

    It is an `httpx.TransportError` or a `requests.RequestException` too, by the library in use.
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
