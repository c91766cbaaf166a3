"""The messages that a consumer has taken and not settled yet, in their order.

Messages of one order group are started one after the other: the next one when the first is done for
good. If the first is to be delivered again, those behind it are given back, so that it stays first.
Knows no threads and no broker; whoever shares it between threads holds a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from oncekey.queues.disposition import FOLLOWS, Disposition
from oncekey.queues.queue_message import Message


class Entry:
    """A message in hand. `attempt` is the attempt that runs its handler, once there is one.
    `claimed` is the work on it if its key was claimed with others before, `raised` what its handler
    raised. `ended` is an event that is set when it is done, if a twin waits for it; `is_waiting` is
    true of such a twin."""

    __slots__ = (
        "attempt",
        "claimed",
        "ended",
        "is_waiting",
        "key",
        "message",
        "raised",
        "taken_at",
        "was_told",
    )

    def __init__(self, message: Message, taken_at: float) -> None:
        self.message = message
        self.taken_at = taken_at
        self.attempt: object = None
        self.claimed: object = None
        self.raised: Exception | None = None
        self.ended: Any = None
        self.is_waiting = False
        self.key = ""
        self.was_told = False  # that it is held nearly as long as the broker allows

    @property
    def is_held(self) -> bool:
        """False once its attempt was overtaken: then the broker's deadline ends too."""
        return not getattr(self.attempt, "lost", False)


class WorkInHand:
    def __init__(self) -> None:
        self._entries: dict[Entry, None] = {}
        self._groups: dict[str, deque[Entry]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, messages: Iterable[Message], now: float) -> list[Entry]:
        """Take messages; those whose work may begin now."""
        ready = []
        for message in messages:
            entry = Entry(message, now)
            self._entries[entry] = None
            if message.order_group is None:
                ready.append(entry)
                continue
            group = self._groups.setdefault(message.order_group, deque())
            group.append(entry)
            if len(group) == 1:
                ready.append(entry)
        return ready

    def end(
        self, entry: Entry, disposition: Disposition
    ) -> tuple[list[tuple[Message, Disposition]], list[Entry]]:
        """A message has its disposition: what is to be settled with it, in order, and what may
        begin now."""
        del self._entries[entry]
        settled = [(entry.message, disposition)]
        name = entry.message.order_group
        if name is None:
            return settled, []
        group = self._groups[name]
        group.popleft()
        if not disposition.lets_pass:
            for follower in group:
                del self._entries[follower]
                settled.append((follower.message, FOLLOWS))
            group.clear()
        if group:
            return settled, [group[0]]
        del self._groups[name]
        return settled, []

    def twin_of(self, entry: Entry) -> Entry | None:
        """Another message in hand with the same key, whose claim was made or is under way."""
        for other in self._entries:
            if other is not entry and other.key == entry.key and not other.is_waiting:
                return other
        return None

    def held(self) -> list[Entry]:
        """Those whose deadline at the broker is to be extended."""
        return [entry for entry in self._entries if entry.is_held]
