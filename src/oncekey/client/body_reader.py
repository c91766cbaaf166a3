"""Reading the body of a response into memory, up to a size and up to the deadline.

After the deadline no further part is waited for, but a body that is already complete is kept. If
even the first part is read after the deadline (because the host slept), the response may already be
there whole: then the shortest possible timeouts end the reading. This module knows no HTTP library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oncekey.client.retry_clock import ClockReader
from oncekey.client.retry_effects import SECOND_US


class ReadDeadline:
    """The deadline of one try (None: there is none); `make_error` makes the library's own error."""

    def __init__(
        self, clock: ClockReader, deadline: int | None, make_error: Callable[[str], Exception]
    ) -> None:
        self._clock = clock
        self._deadline = deadline
        self._make_error = make_error

    def has_passed(self) -> bool:
        return self._deadline is not None and self._clock.now() >= self._deadline

    def seconds_left(self, at_least: float) -> float | None:
        """How long a part may be waited for; None means as long as the caller would."""
        if self._deadline is None:
            return None
        return max(at_least, (self._deadline - self._clock.now()) / SECOND_US)

    def error(self) -> Exception:
        return self._make_error("the deadline passed while the answer came in")


class BodyBuffer:
    """Collects the parts of a body, up to `limit` bytes."""

    def __init__(self, limit: int, deadline: ReadDeadline, headers: Mapping[str, str]) -> None:
        self.parts: list[bytes] = []
        self._size = 0
        self._limit = limit
        self._deadline = deadline
        self._declared = declared_length(headers)
        self._began_late = deadline.has_passed()
        self._must_end = False

    def overflows_with(self, part: bytes) -> bool:
        """Add a part, and return True if the body is now larger than the limit. Raises the
        deadline's error if the next part must not be waited for."""
        if self._must_end:
            raise self._deadline.error()
        self.parts.append(part)
        self._size += len(part)
        if self._size > self._limit:
            return True
        if not self._began_late and self._deadline.has_passed():
            if self._declared is None:
                self._must_end = True  # this may have been all: only another read can tell
            elif self._size < self._declared:
                raise self._deadline.error()
        return False

    def content(self) -> bytes:
        return b"".join(self.parts)


def declared_length(headers: Mapping[str, str]) -> int | None:
    """The length that a message declares for its body; None if it declares none."""
    value = str(headers.get("Content-Length") or "").strip()
    if headers.get("Transfer-Encoding") or not (value.isascii() and value.isdigit()):
        return None
    return int(value[:18])
