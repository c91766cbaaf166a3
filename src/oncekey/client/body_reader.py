"""What has come of an answer's body, and whether to wait for more of it after the deadline.

Owns one rule: nobody waits for a further part once the deadline has passed, and what is all there
is never thrown away. Where even the first part is read too late (the host slept), the answer may
lie there whole: then the shortest timeouts there are end the reading, not this. Knows no HTTP
library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oncekey.client.retry_clock import Readings
from oncekey.client.retry_effects import SECOND_US


class Pace:
    """The deadline of one try, as reading needs it; `cut` makes the library's own error."""

    def __init__(self, clock: Readings, until: int | None, cut: Callable[[str], Exception]) -> None:
        self._clock = clock
        self._until = until
        self._cut = cut

    def is_late(self) -> bool:
        return self._until is not None and self._clock.now() >= self._until

    def left(self, shortest: float) -> float | None:
        """Seconds that a part may be waited for; None: as long as the caller would."""
        if self._until is None:
            return None
        return max(shortest, (self._until - self._clock.now()) / SECOND_US)

    def cut(self) -> Exception:
        return self._cut("the deadline passed while the answer came in")


class Incoming:
    """Counts the parts. `most` is what can be held."""

    def __init__(self, most: int, pace: Pace, headers: Mapping[str, str]) -> None:
        self.parts: list[bytes] = []
        self._size = 0
        self._most = most
        self._pace = pace
        self._declared = declared_length(headers)
        self._began_late = pace.is_late()
        self._must_end = False

    def overflows(self, part: bytes) -> bool:
        """Take a part. Whether that was more than can be held; raises where it must not be waited
        for the next one."""
        if self._must_end:
            raise self._pace.cut()
        self.parts.append(part)
        self._size += len(part)
        if self._size > self._most:
            return True
        if not self._began_late and self._pace.is_late():
            if self._declared is None:
                self._must_end = True  # this may have been all of it: only asking for more tells
            elif self._size < self._declared:
                raise self._pace.cut()
        return False

    def body(self) -> bytes:
        return b"".join(self.parts)


def declared_length(headers: Mapping[str, str]) -> int | None:
    """How long a message says its body is; None where it does not say."""
    value = str(headers.get("Content-Length") or "").strip()
    if headers.get("Transfer-Encoding") or not (value.isascii() and value.isdigit()):
        return None
    return int(value[:18])
