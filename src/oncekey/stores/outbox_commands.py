"""What can be done with a store's outbox: commands and replies, as data.

An outbox is a table of messages that a caller's transaction writes beside its own rows, and that a
publisher takes out of it again. A store that has one offers `outbox(command)` on its own
connections and, on a caller's, `add_message(row)` (see OutboxStore and OutboxTransaction). How a
command becomes SQL is in each store's outbox_program.py. This module knows neither databases nor
brokers.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

# A message that waits behind an older one of its order group is looked at again when that one is
# due, but never sooner and never later than this. So no row is forgotten, whatever an operator
# deletes by hand, and a long queue behind a failing message costs little.
RECHECK_MIN_US: Final = 1_000_000
RECHECK_MAX_US: Final = 300_000_000

# In one take so many times rows are put off that wait behind others, before it returns empty.
TAKE_ROUNDS: Final = 50

# When the bodies of a take have this many bytes, no more are taken.
TAKE_BYTES: Final = 67_108_864


class OutboxRow(NamedTuple):
    """A message to add. `fence` is that of the attempt which adds it, 0 where there is none."""

    id: str
    queue: str
    order_group: str | None
    headers: str
    body: bytes
    fence: int


class Added(enum.Enum):
    """What became of a message to add."""

    NEW = "added"
    KNOWN = "known"  # an earlier attempt has added it, and its message stays
    DIFFERS = "differs"  # the same attempt has added another message of this id
    WRONG_STORE = "elsewhere"  # the connection leads to another store's tables


class OutboxEntry(NamedTuple):
    """A message as it is stored. `refusals` are the tries that count toward being parked."""

    seq: int
    id: str
    queue: str
    order_group: str | None
    headers: str
    body: bytes
    tries: int
    refusals: int
    created_at: int
    error: str


class FailedTry(NamedTuple):
    """A message that was not published: when to try again, and why it failed."""

    seq: int
    delay: int
    error: str
    counts: bool
    park: bool


class OutboxCounts(NamedTuple):
    """How many messages wait (those taken by a publisher included), are parked, and were published
    and are kept; and the age of the oldest one that waits, in microseconds."""

    waiting: int
    taken: int
    parked: int
    published: int
    oldest: int


class OutboxCommand(Generic[R_co]):
    """A command; its type parameter is the type of its reply."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Take(OutboxCommand[list[OutboxEntry]]):
    """Take messages that are due, oldest first, for `lease` microseconds. Of an order group, only
    the oldest messages without a gap are taken."""

    owner: bytes
    lease: int
    limit: int


@dataclass(frozen=True, slots=True)
class Settle(OutboxCommand[int]):
    """Tell what became of taken messages. Changes only those that this owner still has; the reply
    is how many were published. With `keep` a published row stays so long, and a message that is
    added again under its id is not published again."""

    owner: bytes
    published: Sequence[int]
    failed: Sequence[FailedTry]
    unsent: Sequence[int]
    keep: int
    limit: int


@dataclass(frozen=True, slots=True)
class Purge(OutboxCommand[int]):
    """Delete at most `limit` published rows that were kept long enough; how many were deleted."""

    keep: int
    limit: int


@dataclass(frozen=True, slots=True)
class Measure(OutboxCommand[OutboxCounts]):
    """Count the messages."""


@dataclass(frozen=True, slots=True)
class ListParked(OutboxCommand[list[OutboxEntry]]):
    """The oldest parked messages."""

    limit: int


@dataclass(frozen=True, slots=True)
class ReleaseParked(OutboxCommand[int]):
    """Let parked messages be tried again, with their count of refusals at 0."""

    ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class DiscardParked(OutboxCommand[int]):
    """Delete parked messages for good."""

    ids: Sequence[str]


class OutboxStore(Protocol):
    """A store that has an outbox."""

    def create_outbox(self) -> None:
        """Create the table, unless it is there."""

    def outbox(self, command: OutboxCommand[R], /) -> R: ...


class OutboxTransaction(Protocol):
    """A caller's transaction on such a store."""

    def add_message(self, row: OutboxRow, /) -> Added: ...


class AsyncOutboxStore(Protocol):
    """The same for asyncio."""

    async def create_outbox(self) -> None: ...
    async def outbox(self, command: OutboxCommand[R], /) -> R: ...


class AsyncOutboxTransaction(Protocol):
    """The same for asyncio."""

    async def add_message(self, row: OutboxRow, /) -> Added: ...
