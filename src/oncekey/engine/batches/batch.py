"""The rules of a batch, for both coalescers: which commands go into it, and how large it may be.

A batch is bounded by count and by bytes. Commands that keep or end a claim go before new claims,
those nearest to their deadline first: a queue of claims must not cost a healthy owner its lease.
Must not know threads, event loops or stores.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

from oncekey.core.commands import Claim, Command, Look, Renew, Reply
from oncekey.core.errors import OncekeyError, StoreUnavailable

_log = logging.getLogger("oncekey")

BATCH_MAX = 256
BATCH_BYTES_MAX = 4 * 1024 * 1024
SHARE_MIN = 16  # a smaller batch costs a store nearly as much as one of this size
CLAIMS_PART = 4  # one in this many places of a batch is for claims and looks, if any wait
_LIMITS_GROW = 16  # after this many good batches the limits are back at their maximum
_NEVER = 2**62

ReplyOrError = Reply | Exception

# What Python raises for a reply that cannot be read: a column is missing, or NULL, or too short. In
# a caller's transaction these alone are the store's fault. The rest is for the caller, above all
# the errors of its driver, by which code that repeats transactions goes.
UNREADABLE: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    struct.error,
)
_UNREADABLE_OR_DOWN: Final = (StoreUnavailable, *UNREADABLE)
# A store that never waits has no driver either. The test kit's SimulatedCrash is none of these: it
# is the end of the attempt's process, and no answer.
_FAULTS_OF_IMMEDIATE_STORES: Final = (*_UNREADABLE_OR_DOWN, OSError, RuntimeError)

# The store's reply to a command, or that it is unavailable, and when the command was sent.
Sent = tuple[Reply | StoreUnavailable, int]


class Queued(Protocol):
    """A command that waits to be sent, and the deadline of its owner, if it has one."""

    command: Command
    deadline: int | None


T = TypeVar("T", bound=Queued)


def size_of(command: Command) -> int:
    """The bytes of a command that can be large; the rest of it is small and bounded."""
    body: bytes = getattr(command, "body", b"")
    return len(body)


class Queue(Generic[T]):
    """The commands that wait to be sent: those that keep or end a claim, and the others. `split`
    changes nothing and returns the rest as a new queue, so that a caller can store both in one
    assignment, which no signal can interrupt."""

    __slots__ = ("others", "urgent")

    def __init__(self, urgent: list[T] | None = None, others: list[T] | None = None) -> None:
        self.urgent: list[T] = [] if urgent is None else urgent
        self.others: list[T] = [] if others is None else others

    def __len__(self) -> int:
        return len(self.urgent) + len(self.others)

    def __contains__(self, ticket: T) -> bool:
        return ticket in self.urgent or ticket in self.others

    def list_for(self, command: Command) -> list[T]:
        """The list to which a ticket with this command is appended. A caller that a signal may
        interrupt appends it itself."""
        kind = type(command)
        return self.others if kind is Claim or kind is Look else self.urgent

    def split(self, count: int, size: int, some: bool = True) -> tuple[list[T], Queue[T]]:
        """At most `count` commands with at most `size` bytes, and the queue without them. With
        `some`, the first one is taken whatever its size."""
        urgent, others = self.urgent, self.others
        reserved = min(len(others), count // CLAIMS_PART)  # else a busy store would never claim
        room = count - reserved
        if len(urgent) > room or _total_size(urgent) > size:
            urgent = sorted(urgent, key=_due)
            room = min(room, _fitting(urgent, size, some))
        first = urgent[:room]
        rest = count - len(first)
        return first + others[:rest], Queue(urgent[room:], others[rest:])


def _due(ticket: Queued) -> int:
    """When the store should have the command: a renewal at once, every other one before its
    owner's deadline, if it has one."""
    if type(ticket.command) is Renew:
        return 0
    return _NEVER if ticket.deadline is None else ticket.deadline


def _total_size(tickets: Sequence[Queued]) -> int:
    return sum([size_of(ticket.command) for ticket in tickets])


def _fitting(tickets: Sequence[Queued], size: int, some: bool) -> int:
    """How many of the tickets, from the first on, have at most `size` bytes together."""
    for number, ticket in enumerate(tickets):
        size -= size_of(ticket.command)
        if size < 0 and not (some and number == 0):
            return number
    return len(tickets)


class Limits:
    """How large a batch may be. After a batch that timed out the limits are half of it: its
    commands are repeated by their callers and then go in smaller batches. With good batches the
    limits grow again. `lowered` says that they are below their maximum."""

    __slots__ = ("_count_max", "_size_max", "count", "lowered", "size")

    def __init__(self, count: int = BATCH_MAX, size: int = BATCH_BYTES_MAX) -> None:
        self._count_max = self.count = count
        self._size_max = self.size = size
        self.lowered = False

    def failed(self, tickets: Sequence[Queued], error: Exception) -> None:
        """Lower the limits if a batch timed out."""
        if isinstance(error, StoreUnavailable) and error.timed_out:
            self.count = max(1, min(self.count, len(tickets)) // 2)
            total = _total_size(tickets)
            if total:
                self.size = max(1, min(self.size, total) // 2)
            self.lowered = True

    def grow(self) -> None:
        """Raise the limits after a good batch; called while they are `lowered`."""
        self.count = min(self._count_max, self.count + -(-self._count_max // _LIMITS_GROW))
        self.size = min(self._size_max, self.size + -(-self._size_max // _LIMITS_GROW))
        self.lowered = self.count < self._count_max or self.size < self._size_max


def batch_size(queued: int, in_flight: int, max_in_flight: int, most: int) -> int:
    """How many of the queued commands go now: one batch's share of all that are queued or in
    flight.

    If one batch took everything, the other batches in flight would stay empty, and Python and the
    store would wait for each other instead of working at the same time. A few commands stay
    together.
    """
    share = -(-(queued + in_flight) // max_in_flight)
    return min(queued, max(share, SHARE_MIN), most)


def check_replies(commands: Sequence[Command], replies: Sequence[Reply]) -> None:
    """Raise AssertionError unless there is one reply per command: with too few or too many, one
    caller would get the reply of another."""
    if len(replies) != len(commands):
        raise AssertionError(f"the store gave {len(replies)} replies to {len(commands)} commands")


def shared_by_all(error: Exception) -> bool:
    """True if a failed batch failed for everyone; if not, its commands are sent one by one.

    A store that is unavailable is unavailable for the whole batch. Any other error is the fault of
    one command, and the others of the batch must not fail with it.
    """
    return isinstance(error, StoreUnavailable)


def answered(reply: ReplyOrError | None) -> Reply | StoreUnavailable:
    """A reply as it is. Raises an error that is oncekey's own and says what to do. Any other one is
    a fault in the store's code or its driver's: nobody knows whether the command was applied."""
    if isinstance(reply, OncekeyError) and not isinstance(reply, StoreUnavailable):
        raise reply
    return unavailable(reply)


def unavailable(reply: ReplyOrError | None) -> Reply | StoreUnavailable:
    """A reply as it is; any error of the store as one of this kind."""
    assert reply is not None
    if isinstance(reply, Exception) and not isinstance(reply, StoreUnavailable):
        return no_answer(reply)
    return reply


def faults_in(transaction: object) -> tuple[type[Exception], ...]:
    """The errors by which the store is unavailable, in a caller's transaction or, if that is None,
    where a store that never waits is called directly. All others are raised as they are."""
    return _FAULTS_OF_IMMEDIATE_STORES if transaction is None else _UNREADABLE_OR_DOWN


def not_answered(error: Exception, command: Command) -> StoreUnavailable:
    """What a store has raised instead of its reply to one command. Raises like `answered`."""
    if isinstance(error, StoreUnavailable):
        return error
    if isinstance(error, OncekeyError):
        raise error
    return no_answer(error, ambiguous=writes(command))


def no_answer(error: Exception, *, ambiguous: bool = True) -> StoreUnavailable:
    """The error for what the store's code or its driver's has raised."""
    if not isinstance(error, OncekeyError):
        _log.error("the store failed in a way that is no answer of a store", exc_info=error)
    lost = StoreUnavailable(
        f"the store raised {type(error).__name__}: {error}", ambiguous=ambiguous
    )
    lost.__cause__ = error
    return lost


def writes(command: Command) -> bool:
    """True if the store may be changed by this command."""
    return type(command) is not Look
