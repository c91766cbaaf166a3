"""The demo's broker: a queue of orders in an SQLite file, which several processes share.

It behaves as brokers do. A message that was received is hidden from others for the length of a
lease; whoever dies before it removes the message leaves it there, and it is delivered again. Only
the latest delivery of a message settles it. Must not know who consumes it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from oncekey.queues.broker import Settled
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.disposition import REMOVE, Disposition, Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import REDRIVE_HEADER, GoOn, headers_of, to_the_end, without_marks

_BUSY_SECONDS = 30.0
_POLL_SECONDS = 0.05
_SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    place TEXT NOT NULL DEFAULT 'queue' CHECK (place IN ('queue', 'dead letters', 'parked')),
    body BLOB NOT NULL,
    headers TEXT NOT NULL,
    receives INTEGER NOT NULL DEFAULT 0,
    visible_at REAL NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS messages_queue ON messages (queue, place, visible_at);
"""
_VISIBLE = """
SELECT id, body, headers, receives FROM messages
WHERE queue = ? AND place = 'queue' AND visible_at <= ? ORDER BY id LIMIT ?
"""
_TAKE = "UPDATE messages SET visible_at = ?, receives = receives + 1 WHERE id = ?"
_HIDE = "UPDATE messages SET visible_at = ? WHERE id = ? AND receives = ?"
_REMOVE = "DELETE FROM messages WHERE id = ? AND receives = ?"
_MOVE = "UPDATE messages SET place = ?, headers = ? WHERE id = ? AND receives = ?"
_ASIDE = "SELECT id, headers FROM messages WHERE queue = ? AND place = ? LIMIT ?"
_BACK = "UPDATE messages SET place = 'queue', visible_at = 0, headers = ? WHERE id = ?"


class OrderQueue:
    """One queue of the file; thread-safe, because every call opens a connection of its own."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self._path = path
        with closing(self._connect()) as connection:
            connection.executescript(_SCHEMA)

    def send(self, order: dict[str, Any]) -> None:
        with self._open() as messages:
            messages.execute(
                "INSERT INTO messages (queue, body, headers) VALUES (?, ?, '{}')",
                (self.name, json.dumps(order).encode()),
            )

    def __len__(self) -> int:
        """How many messages are in the queue, hidden ones included."""
        with self._open() as messages:
            query = "SELECT count(*) FROM messages WHERE queue = ?"
            return int(messages.execute(query, (self.name,)).fetchone()[0])

    # --- the port of a broker -----------------------------------------------------------------

    def facts(self) -> BrokerFacts:
        return BrokerFacts(self.name, broker="sqlite")

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        give_up = time.monotonic() + wait
        while most:
            taken = self._take(most, lease)
            if taken or time.monotonic() >= give_up:
                return taken
            time.sleep(_POLL_SECONDS)
        return ()

    def settle(self, settled: Sequence[Settled]) -> None:
        with self._open() as messages:
            for message, disposition in settled:
                _settle(messages, message, disposition)

    def extend(self, messages: Sequence[Message], seconds: float) -> None:
        with self._open() as stored:
            for message in messages:
                stored.execute(_HIDE, (time.time() + seconds, *_receipt(message)))

    def redrive(self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end) -> int:
        """Moves all of them in one transaction, so `go_on` is asked at the end."""
        place, marks = ("parked", {}) if parked else ("dead letters", {REDRIVE_HEADER: id})
        with self._open() as messages:
            rows = messages.execute(_ASIDE, (self.name, place, most)).fetchall()
            for row in rows:
                headers = {**json.loads(row["headers"]), **marks}
                messages.execute(_BACK, (json.dumps(headers), row["id"]))
        go_on(len(rows))
        return len(rows)

    def close(self) -> None:
        """Nothing is held open."""

    # --- inside -------------------------------------------------------------------------------

    def _take(self, most: int, lease: float) -> list[Message]:
        now = time.time()
        with self._open() as messages:
            rows = messages.execute(_VISIBLE, (self.name, now, most)).fetchall()
            for row in rows:
                messages.execute(_TAKE, (now + lease, row["id"]))
        return [
            Message(
                row["body"],
                self.name,
                json.loads(row["headers"]),
                str(row["id"]),
                row["receives"] + 1,
            )
            for row in rows
        ]

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        connection.row_factory = sqlite3.Row
        return connection

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")


def _settle(messages: sqlite3.Connection, message: Message, disposition: Disposition) -> None:
    if disposition.kind is Kind.REMOVE:
        messages.execute(_REMOVE, _receipt(message))
    elif disposition.kind is Kind.DEAD_LETTER and disposition.dead_letter is not None:
        headers = without_marks(message.headers) | headers_of(disposition.dead_letter)
        messages.execute(_MOVE, ("dead letters", json.dumps(headers), *_receipt(message)))
    elif disposition.kind is Kind.PARK:
        headers = dict(message.headers)
        messages.execute(_MOVE, ("parked", json.dumps(headers), *_receipt(message)))
    else:
        messages.execute(_HIDE, (time.time() + disposition.seconds, *_receipt(message)))


def _receipt(message: Message) -> tuple[int, int]:
    """What names this delivery of the message: a later one makes it worthless."""
    return int(message.delivery_id), message.receive_count


class AsyncOrderQueue:
    """The same queue for an event loop; its calls are made in threads."""

    def __init__(self, queue: OrderQueue) -> None:
        self._queue = queue

    async def facts(self) -> BrokerFacts:
        return self._queue.facts()

    async def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        return await asyncio.to_thread(self._queue.receive, most, wait, lease)

    async def remove(self, message: Message) -> None:
        await self.settle([(message, REMOVE)])

    async def settle(self, settled: Sequence[Settled]) -> None:
        await asyncio.to_thread(self._queue.settle, settled)

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        await asyncio.to_thread(self._queue.extend, messages, seconds)

    async def redrive(
        self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end
    ) -> int:
        return await asyncio.to_thread(self._queue.redrive, most, id, parked=parked, go_on=go_on)

    async def close(self) -> None:
        self._queue.close()
