"""One HTTP exchange as the verifier sent and received it, and its form as a curl command.

Nothing is normalised: header lines keep their order and their number. Secrets are shown by the
name of the caller that sent them, never by value.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace

Headers = tuple[tuple[str, bytes], ...]

# A longer body appears in a report by its size.
SHOWN_BODY_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request, complete but for Host and Content-Length, which the connection adds.

    secrets   values of headers that a report must not show -> what it shows instead
    """

    method: str
    path: str
    headers: Headers = ()
    body: bytes = b""
    secrets: tuple[tuple[bytes, str], ...] = ()

    def header_lines(self, name: str) -> list[bytes]:
        """Return the values of all lines with this name."""
        return [value for line, value in self.headers if line.lower() == name.lower()]

    def with_lines(self, name: str, values: Iterable[bytes]) -> WireRequest:
        """Return the request with exactly these lines of one header, which may be none."""
        kept = [line for line in self.headers if line[0].lower() != name.lower()]
        return replace(self, headers=(*kept, *((name, value) for value in values)))


@dataclass(frozen=True, slots=True)
class WireResponse:
    """A response, or the part of it that was read before the connection was left."""

    status: int
    headers: Headers
    body: bytes
    is_complete: bool = True

    def header_lines(self, name: str) -> list[str]:
        """Return the values of all lines with this name."""
        return [v.decode("latin-1") for line, v in self.headers if line.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        """Return the value of the first line with this name."""
        lines = self.header_lines(name)
        return lines[0] if lines else None

    @property
    def is_success(self) -> bool:
        """True for a complete 2xx, 302 or 303: these lead from a form to what was made. Every
        other redirect asks for the same request elsewhere, and nothing was done."""
        return self.is_complete and (200 <= self.status < 300 or self.status in (302, 303))

    @property
    def is_redirect(self) -> bool:
        """True for a 3xx with the address of something else."""
        return 300 <= self.status < 400 and self.header("location") is not None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and what came back.

    response      None if not even a status line was read
    failure       why there is no complete response: "" if there is one
    note          what this exchange was for, such as "duplicate 3 of 20"
    sent_at       when the last byte was sent (seconds of a monotonic clock)
    answered_at   when the response was complete, or the connection was left
    """

    request: WireRequest
    response: WireResponse | None
    failure: str
    note: str
    sent_at: float
    answered_at: float

    @property
    def status(self) -> int | None:
        """The status of a complete response."""
        if self.response is None or not self.response.is_complete:
            return None
        return self.response.status

    @property
    def is_success(self) -> bool:
        return self.response is not None and self.response.is_success

    def outcome(self) -> str:
        """Say in a few words how it ended."""
        if self.status is not None:
            return str(self.status)
        if self.response is not None:
            return f"{self.response.status}, {self.failure}"
        return self.failure


def curl_line(request: WireRequest, origin: str) -> str:
    """Return a command line that sends this request again."""
    words = ["curl", "-i", "-X", request.method]
    for name, value in request.headers:
        # "X-Name;" is how curl sends a header without a value.
        text = f"{name}: {_shown(value, request)}" if value else f"{name};"
        words += ["-H", text]
    if request.body:
        words += ["--data-binary", _body_text(request.body)]
    return shlex.join([*words, origin + request.path])


def _shown(value: bytes, request: WireRequest) -> str:
    for secret, name in request.secrets:
        if secret and secret in value:
            value = value.replace(secret, f"<{name}>".encode())
    return value.decode("utf-8", "backslashreplace")


def _body_text(body: bytes) -> str:
    if len(body) > SHOWN_BODY_BYTES:
        return f"<{len(body)} bytes>"
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"<base64: {base64.b64encode(body).decode()}>"
