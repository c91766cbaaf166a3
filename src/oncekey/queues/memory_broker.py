"""An embedded broker: a queue in this process, for tests and for trying things out.

It keeps the promises that the port asks for, as SQS makes them: a received message is hidden until
its deadline and then delivered again, every delivery counts, a group is delivered in order. A
process that ends takes its messages with it.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from uuid import uuid4

from oncekey.queues.broker import Settled
from oncekey.queues.broker_identity import identity_of
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.disposition import Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import (
    REDRIVE_HEADER,
    GoOn,
    headers_of,
    to_the_end,
    without_marks,
)


class _Stored:
    """A message in the queue; `visible_at` is when it may be delivered, `receipt` the number of its
    latest delivery, which alone may settle it."""

    __slots__ = ("body", "group", "headers", "id", "receipt", "visible_at")

    def __init__(self, id: str, body: bytes, headers: dict[str, str], group: str | None) -> None:
        self.id = id
        self.body = body
        self.headers = headers
        self.group = group
        self.visible_at = -math.inf
        self.receipt = 0


class MemoryBroker:
    """A queue in memory. `dead_letters` and `parked` are what was moved out of it."""

    def __init__(
        self,
        queue: str = "memory",
        *,
        facts: BrokerFacts | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._facts = facts or BrokerFacts(
            queue, identity=f"memory-{uuid4().hex}", ordered=True, broker=identity_of("memory")
        )
        self._now = now
        self._changed = threading.Condition()
        self._numbers = count(1)
        self._interruptions = 0
        self._stored: dict[str, _Stored] = {}
        self.dead_letters: list[Message] = []
        self.parked: list[Message] = []

    def send(
        self,
        body: bytes | str,
        headers: Mapping[str, str] | None = None,
        *,
        order_group: str | None = None,
    ) -> str:
        """Put a message into the queue; its id."""
        data = body.encode() if isinstance(body, str) else body
        named = {name.lower(): value for name, value in (headers or {}).items()}
        with self._changed:
            id = f"m{next(self._numbers)}"
            self._stored[id] = _Stored(id, data, named, order_group)
            self._changed.notify_all()
        return id

    def redrive(self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end) -> int:
        source = self.parked if parked else self.dead_letters
        marks = {} if parked else {REDRIVE_HEADER: id}
        moved = 0
        for letter in source[:most]:
            source.remove(letter)
            self.send(letter.body, {**letter.headers, **marks}, order_group=letter.order_group)
            moved += 1
            if not go_on(moved):
                break
        return moved

    def __len__(self) -> int:
        """How many messages are in the queue, hidden ones included."""
        return len(self._stored)

    # --- the port -----------------------------------------------------------------------------

    def facts(self) -> BrokerFacts:
        return self._facts

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        until = self._now() + wait
        with self._changed:
            interruptions = self._interruptions
            while most and interruptions == self._interruptions:
                taken = self._take(most, lease)
                left = until - self._now()
                if taken or left <= 0:
                    return taken
                self._changed.wait(min(left, self._until_visible()))
        return ()

    def settle(self, settled: Sequence[Settled]) -> None:
        with self._changed:
            for message, disposition in settled:
                stored = self._of(message)
                if stored is None:
                    continue  # it was delivered again meanwhile: this delivery settles nothing
                if disposition.kind in (Kind.HIDE, Kind.RETRY, Kind.GIVE_BACK):
                    stored.visible_at = self._now() + disposition.seconds
                    continue
                del self._stored[stored.id]
                if disposition.dead_letter is not None:
                    marks = headers_of(disposition.dead_letter)
                    headers = without_marks(message.headers) | marks
                    self.dead_letters.append(_with_headers(message, headers))
                elif disposition.kind is Kind.PARK:
                    self.parked.append(message)
            self._changed.notify_all()

    def extend(self, messages: Sequence[Message], seconds: float) -> None:
        with self._changed:
            for message in messages:
                stored = self._of(message)
                if stored is not None:
                    stored.visible_at = self._now() + seconds

    def interrupt(self) -> None:
        """Let every `receive` that waits return."""
        with self._changed:
            self._interruptions += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing is held open."""

    # --- inside -------------------------------------------------------------------------------

    def _take(self, most: int, lease: float) -> list[Message]:
        now = self._now()
        taken: list[Message] = []
        held: set[str | None] = set()
        for stored in self._stored.values():
            if len(taken) == most:
                break
            if stored.group in held:
                continue
            if stored.visible_at > now:
                if stored.group is not None:
                    held.add(stored.group)  # what is behind it waits
                continue
            stored.visible_at = now + lease
            stored.receipt += 1
            taken.append(self._message(stored))
        return taken

    def _message(self, stored: _Stored) -> Message:
        return Message(
            stored.body,
            self._facts.queue,
            stored.headers,
            stored.id,
            stored.receipt,
            stored.group,
            raw=stored.receipt,
        )

    def _of(self, message: Message) -> _Stored | None:
        stored = self._stored.get(message.delivery_id)
        return stored if stored is not None and stored.receipt == message.raw else None

    def _until_visible(self) -> float:
        """Seconds until the next message can be delivered."""
        now = self._now()
        waits: Iterable[float] = (stored.visible_at - now for stored in self._stored.values())
        return max(0.001, min((wait for wait in waits if wait > 0), default=math.inf))


class AsyncMemoryBroker:
    """The same queue for tasks; `queue` is where messages are sent, and may be shared."""

    def __init__(self, queue: MemoryBroker) -> None:
        self.queue = queue

    async def facts(self) -> BrokerFacts:
        return self.queue.facts()

    async def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        until = time.monotonic() + wait
        while True:
            taken = self.queue.receive(most, 0.0, lease)
            if taken or not most or time.monotonic() >= until:
                return taken
            await asyncio.sleep(min(0.01, wait))

    async def settle(self, settled: Sequence[Settled]) -> None:
        self.queue.settle(settled)

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        self.queue.extend(messages, seconds)

    async def redrive(
        self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end
    ) -> int:
        return self.queue.redrive(most, id, parked=parked, go_on=go_on)

    async def close(self) -> None:
        self.queue.close()


def _with_headers(message: Message, headers: dict[str, str]) -> Message:
    return Message(
        message.body,
        message.queue,
        headers,
        message.delivery_id,
        message.receive_count,
        message.order_group,
    )
