"""A valid request of the app under test, its submissions, and what the app answers.

Plain data: what is sent with which key, and what came back, in a form that the cases can compare
and a person can read. Knows no client and no framework.
"""

from __future__ import annotations

import enum
import json as json_module
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SHOWN_MAX: Final = 300  # of a body, in a message


@dataclass(frozen=True)
class SampleRequest:
    """A request that your app accepts, without its idempotency key.

    method, path   such as "POST", "/charges?dry=0"
    json           the body, as anything that JSON has; or
    content        the body as bytes or text, with its Content-Type in `headers`
    headers        what else is sent, such as the caller's Authorization
    """

    method: str
    path: str
    json: Any = None
    content: bytes | str = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The bytes that are sent."""
        if self.json is not None:
            return json_module.dumps(self.json).encode()
        return self.content.encode() if isinstance(self.content, str) else self.content

    def sent_headers(self, more: Mapping[str, str]) -> dict[str, str]:
        """The headers that are sent, with `more` in place of those of the same name."""
        replaced = {name.lower() for name in more}
        headers = {n: v for n, v in self.headers.items() if n.lower() not in replaced} | dict(more)
        if self.body and not any(name.lower() == "content-type" for name in headers):
            kind = "application/octet-stream" if self.json is None else "application/json"
            headers["Content-Type"] = kind
        return headers

    def __str__(self) -> str:
        body = shortened(self.body.decode("utf-8", "replace"))
        return f"{self.method} {self.path} {body}".rstrip()


@dataclass(frozen=True)
class Submission:
    """One request, or one call of a function, under one key. `client` names who sends it: "caller",
    "other caller" or "rejected caller"."""

    key: str
    request: Any
    client: str = "caller"

    def __str__(self) -> str:
        who = "" if self.client == "caller" else f", by the {self.client}"
        return f"{self.request}, key {self.key}{who}"


class AnswerKind(enum.Enum):
    """What an answer means to a client."""

    SUCCESS = "success"
    IN_FLIGHT = "in flight"
    UNKNOWN = "outcome unknown"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True)
class Answer:
    """What came back. Two answers that a client cannot tell apart have the same `identity`.

    code    what says why something was refused: a status, or the name of an error
    error   what the app or its client raised in place of an answer, if so
    """

    kind: AnswerKind
    shown: str
    identity: Any = None
    code: object = None
    error: BaseException | None = None

    def same_as(self, other: Answer) -> bool:
        return self.kind is other.kind and bool(self.identity == other.identity)

    def __str__(self) -> str:
        return self.shown


def no_answer(error: BaseException) -> Answer:
    """The answer in place of an exception that the app or its client raised."""
    shown = f"no answer, but {type(error).__name__}: {shortened(str(error))}"
    return Answer(
        AnswerKind.FAILED, shown, identity=object(), code=type(error).__name__, error=error
    )


def shortened(text: str) -> str:
    """A text in one line that is not longer than a message needs it."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_MAX else f"{line[:SHOWN_MAX]}…"
