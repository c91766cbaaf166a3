"""The record of one key: what a store keeps, as immutable values, and the format of its note.

Times are whole microseconds of the store's clock. A note has one line for each time that somebody
else than the owner decided the key; a line that is ended by a newline is of an earlier attempt: the
key was freed and claimed again. Owns the meaning of the fields and when a record expires. Knows
nothing of how stores write it down.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from oncekey.core.origin import Origin, operation_of, origin_of

# "Until it is decided", as a duration: about a thousand years, so that a time plus this is still a
# time that every database and calendar can write.
FOREVER_US: Final = 1_000 * 366 * 86_400_000_000


class State(enum.IntEnum):
    """The state of a key. ABSENT is also that of a freed key whose record is kept for its fence."""

    ABSENT = 0
    PENDING = 1
    SUCCEEDED = 2
    FAILED = 3
    UNKNOWN = 4


class Step(NamedTuple):
    """One step of an operation: its intent, or its result once it is `done`. The format of `body`
    is in step_format.py."""

    name: str
    done: bool
    body: bytes
    at: int


class Record(NamedTuple):
    """Everything known about one key in its present generation. `label` has its operation and its
    origin; `note` has one line for each time that somebody else than its owner decided it."""

    id: bytes
    state: State
    fingerprint: bytes
    owner: bytes
    fence: int
    attempt: int
    retry_safe: bool
    created_at: int
    lease_until: int
    finished_at: int
    keep: int
    audit: int
    scope: str
    label: str
    key: str
    steps: tuple[Step, ...]
    body: bytes
    note: str
    keep_unknown: int = FOREVER_US

    @property
    def operation(self) -> str:
        return operation_of(self.label)

    @property
    def origin(self) -> Origin:
        return origin_of(self.label)

    @property
    def tag(self) -> str:
        """The name of the key in logs."""
        return self.id[:6].hex()

    @property
    def is_undecided(self) -> bool:
        """True if only its owner knows what happened: it is unknown, or it is pending and would
        become unknown if its owner died."""
        return self.state == State.UNKNOWN or (self.state == State.PENDING and not self.retry_safe)

    @property
    def lasts_until_decided(self) -> bool:
        """True if the key never expires by itself."""
        return self.is_undecided and self.keep_unknown >= FOREVER_US

    @property
    def expires_at(self) -> int:
        """From here on the key is fresh again: `keep` after it ended, or after the lease of a
        retry-safe claim; `keep_unknown` after that of an undecided one."""
        span = self.keep_unknown if self.is_undecided else self.keep
        return (self.finished_at or self.lease_until) + span

    @property
    def audit_until(self) -> int:
        """From here on the record is garbage."""
        return self.expires_at + self.audit

    @property
    def sweep_at(self) -> int:
        """When a sweeper should look at it first. For a pending record this is the time at which it
        would be garbage if it ended with its lease, so that ending it earlier need not move it."""
        if self.state == State.PENDING:
            return self.lease_until + self.keep + self.audit
        return self.audit_until

    def ended(self, state: State, finished_at: int, body: bytes) -> Record:
        """This record with its outcome. Made of its fields, because every operation ends here and
        `_replace` takes five times as long."""
        (
            id, _, fingerprint, owner, fence, attempt, retry_safe, created_at, lease_until, _,
            keep, audit, scope, label, key, steps, _, note, keep_unknown,
        ) = self[:]  # fmt: skip
        fields = (
            id, state, fingerprint, owner, fence, attempt, retry_safe, created_at, lease_until,
            finished_at, keep, audit, scope, label, key, steps, body, note, keep_unknown,
        )  # fmt: skip
        return tuple.__new__(Record, fields)


NOTE_MAX_CHARS: Final = 1_000  # of one line
NOTE_KEPT_CHARS: Final = 4_000  # of all lines, when a freed key is claimed again
_LATE_OWNER: Final = "; its late owner then reported: "


def ended(note: str) -> str:
    """The note of a key that is claimed or decided again: its lines are ended, and the first ones
    are cut off if they are too many."""
    if not note or note.endswith("\n"):
        return note
    return note[-NOTE_KEPT_CHARS:] + "\n"


def decision(note: str) -> str:
    """The line about the present attempt, without its late owner's report; "" if nobody but the
    owner has decided it."""
    return note.rpartition("\n")[2].partition(_LATE_OWNER)[0]


def with_late_report(note: str, state: str) -> str:
    """The note after the late owner of a decided key has reported its own state."""
    earlier, newline, line = note.rpartition("\n")
    return earlier + newline + line.partition(_LATE_OWNER)[0] + _LATE_OWNER + state


def lines(note: str) -> list[str]:
    """The decisions, oldest first."""
    return note.splitlines()
