"""How a message that was moved back from a dead-letter queue is told from an ordinary duplicate.

A dead letter carries headers that say which generation of its key has failed. A message that comes
back with the fence of the record that is still the failed one opens a new generation of that key:
it is freed, by compare-and-set on that fence, and runs again. If that fails too, the record has a
higher fence, so the same message opens nothing however often it is delivered; and an ordinary
duplicate has no such header at all.

Whoever moves messages that have no such headers says so by `oncekey-redrive: ID`; each ID opens a
key once. The record's note keeps which redrives have been. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from oncekey.core.record import Record, State
from oncekey.core.state_machine import is_expired
from oncekey.queues.disposition import DeadLetter
from oncekey.queues.queue_message import Message

ERROR_HEADER: Final = "oncekey-error"
FENCE_HEADER: Final = "oncekey-fence"
TRIES_HEADER: Final = "oncekey-tries"
REDRIVE_HEADER: Final = "oncekey-redrive"
HEADERS: Final = (ERROR_HEADER, FENCE_HEADER, TRIES_HEADER, REDRIVE_HEADER)
REDRIVE_ID_MAX_CHARS: Final = 100
_NUMBER: Final = re.compile(r"\d{1,19}")

# Called with how many messages a redrive has moved so far; it ends if this returns False.
GoOn = Callable[[int], bool]


def to_the_end(moved: int) -> bool:
    """The `go_on` of a redrive that nobody interrupts."""
    return True


def headers_of(letter: DeadLetter) -> dict[str, str]:
    """The headers of a dead letter. Headers of an earlier one are replaced or must be left out."""
    headers = {ERROR_HEADER: letter.error}
    if letter.fence:
        headers[FENCE_HEADER] = str(letter.fence)
        headers[TRIES_HEADER] = str(letter.tries)
    return headers


def without_marks(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a message without those that this module has given it."""
    return {name: value for name, value in headers.items() if name not in HEADERS}


class Redrive(NamedTuple):
    """The marks of a message that was moved back. `id` is that of an explicit redrive, or ""."""

    id: str
    fence: int
    tries: int

    @property
    def name(self) -> str:
        """Its name in a record's note."""
        return f"redrive {self.id or self.fence}"

    def opens(self, record: Record | None, now: int) -> bool:
        """True if the record is the failed one that this message was a dead letter of, or if an
        explicit redrive has not been seen yet."""
        if record is None or record.state is not State.FAILED or is_expired(record, now):
            return False
        if self.id:
            return not self._line_of(record)
        return self.fence == record.fence

    def why(self, record: Record) -> str:
        """The reason that goes into the record's note."""
        return f"{self.name} after {record.attempt} tries"

    def tries_before(self, record: Record | None) -> int:
        """How many tries the key had before this redrive; they do not count any more. The message's
        own header is believed only if somebody has freed the key by hand, which the note tells;
        else a message that came with one would be tried for ever."""
        if record is None:
            return 0
        line = self._line_of(record)
        if line is not None:
            return int(line[1])
        return self.tries if record.note else 0

    def _line_of(self, record: Record) -> re.Match[str] | None:
        return re.search(re.escape(self.name) + r" after (\d+) tries", record.note)


def redrive_of(message: Message) -> Redrive | None:
    """The redrive marks of a message; None for an ordinary one."""
    headers = message.headers
    id = headers.get(REDRIVE_HEADER, "").strip()[:REDRIVE_ID_MAX_CHARS]
    fence = _number(headers.get(FENCE_HEADER, ""))
    if not id and not fence:
        return None
    printable = "".join(c if c.isprintable() else "?" for c in id)
    return Redrive(printable, fence, _number(headers.get(TRIES_HEADER, "")))


def _number(text: str) -> int:
    return int(text) if _NUMBER.fullmatch(text) else 0
