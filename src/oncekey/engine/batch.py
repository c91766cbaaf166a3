"""Which commands go in one batch, and how a poisoned one is told from its neighbours.

What both coalescers share. A batch is bounded by count and by bytes. What keeps or ends a claim
goes before new claims, nearest to its deadline first: a queue of claims must not cost a healthy
owner its lease. Knows no thread, loop or store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from oncekey.core.commands import Claim, Command, Look, Renew, Reply
from oncekey.core.errors import StoreUnavailable

BATCH_MAX = 256
BATCH_BYTES_MAX = 4 * 1024 * 1024
SHARE_MIN = 16  # a smaller batch costs a store nearly as much as one of this size
CLAIMS_PART = 4  # one in this many places of a batch is for claims and looks, if any wait
_LIMITS_GROW = 16  # in this many good batches the limits are whole again
_NEVER = 2**62

Outcome = Reply | Exception


class Queued(Protocol):
    """A command that waits to be sent."""

    command: Command
    deadline: int
    size: int


T = TypeVar("T", bound=Queued)


def size_of(command: Command) -> int:
    """The bytes of a command that can be large; the rest of it is small and bounded."""
    body: bytes = getattr(command, "body", b"")
    return len(body)


def due(command: Command, deadline: int | None) -> int:
    """By when the store should have it: a renewal at once, the others before their owner's
    deadline, where they have one."""
    if type(command) is Renew:
        return 0
    return _NEVER if deadline is None else deadline


class Queue(Generic[T]):
    """What waits to be sent. `split` changes nothing and gives what is left as a new queue, so
    that a caller can hand both on in one assignment, which no signal can split."""

    __slots__ = ("_others", "_urgent")

    def __init__(self, urgent: list[T] | None = None, others: list[T] | None = None) -> None:
        self._urgent: list[T] = [] if urgent is None else urgent
        self._others: list[T] = [] if others is None else others

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def __contains__(self, ticket: T) -> bool:
        return ticket in self._urgent or ticket in self._others

    def add(self, ticket: T) -> None:
        self.line_of(ticket).append(ticket)

    def line_of(self, ticket: T) -> list[T]:
        """Where it is to be appended, for whom a signal must not come on the way into `add`."""
        kind = type(ticket.command)
        return self._others if kind is Claim or kind is Look else self._urgent

    def split(self, count: int, size: int, *, some: bool = True) -> tuple[list[T], Queue[T]]:
        """At most `count` commands with at most `size` bytes, and the queue without them. With
        `some`, the first one goes whatever its size."""
        urgent, others = self._urgent, self._others
        kept = min(len(others), count // CLAIMS_PART)  # else a busy store would never claim again
        room = count - kept
        if len(urgent) > room or sum(ticket.size for ticket in urgent) > size:
            urgent = sorted(urgent, key=_deadline)
            room = min(room, _fitting(urgent, size, some))
        first = urgent[:room]
        rest = count - len(first)
        return first + others[:rest], Queue(urgent[room:], others[rest:])


def _deadline(ticket: Queued) -> int:
    return ticket.deadline


def _fitting(tickets: Sequence[Queued], size: int, some: bool) -> int:
    """How many of them, from the first on, have no more bytes than this."""
    for number, ticket in enumerate(tickets):
        size -= ticket.size
        if size < 0 and not (some and number == 0):
            return number
    return len(tickets)


class Limits:
    """How large a batch may be. One that took too long is halved: its commands are repeated by
    their callers and then leave in smaller batches. Good batches make the limits whole again."""

    __slots__ = ("_count_max", "_size_max", "count", "size")

    def __init__(self, count: int = BATCH_MAX, size: int = BATCH_BYTES_MAX) -> None:
        self._count_max = self.count = count
        self._size_max = self.size = size

    def sent(self, tickets: Sequence[Queued], error: Exception | None) -> None:
        """A batch came back, well or not."""
        if isinstance(error, StoreUnavailable) and error.timed_out:
            self.count = max(1, min(self.count, len(tickets)) // 2)
            total = sum(ticket.size for ticket in tickets)
            if total:
                self.size = max(1, min(self.size, total) // 2)
        elif error is None and (self.count < self._count_max or self.size < self._size_max):
            self.count = min(self._count_max, self.count + -(-self._count_max // _LIMITS_GROW))
            self.size = min(self._size_max, self.size + -(-self._size_max // _LIMITS_GROW))


def batch_size(queued: int, in_flight: int, max_in_flight: int, most: int) -> int:
    """How many of the queued commands go now: one batch's share of all that is under way.

    If one batch took everything, a crowd would move as one: the other batches in flight would stay
    empty, and Python and the store would alternate instead of working side by side. A few commands
    are not split.
    """
    share = -(-(queued + in_flight) // max_in_flight)
    return min(queued, max(share, SHARE_MIN), most)


def check_replies(commands: Sequence[Command], replies: Sequence[Reply]) -> None:
    """A store that answers too few or too many would hand one caller another one's reply."""
    if len(replies) != len(commands):
        raise AssertionError(f"the store gave {len(replies)} replies to {len(commands)} commands")


def shared_by_all(error: Exception) -> bool:
    """Whether a failed batch fails for everyone, or must be tried again one by one.

    An unavailable store is the whole batch's fate. Anything else is the fault of one command,
    and its neighbours must not suffer for it.
    """
    return isinstance(error, StoreUnavailable)
