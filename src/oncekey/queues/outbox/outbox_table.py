"""`Outbox` and `AsyncOutbox`: add messages in a caller's transaction, and look after the table.

The table is in the database of the engine's store, under the same schema. What becomes of a
message after the commit is up to a publisher (publisher.py, async_publisher.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from oncekey.core.errors import ConfigurationError
from oncekey.core.identity import KeyLike
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.engine.port import AnyPort, AsyncPort, Port
from oncekey.queues.outbox.outgoing_message import (
    OutgoingMessage,
    check_added,
    message_of,
    row_of,
)
from oncekey.stores.outbox_commands import (
    AsyncOutboxStore,
    AsyncOutboxTransaction,
    DiscardParked,
    ListParked,
    Measure,
    OutboxCounts,
    OutboxEntry,
    OutboxStore,
    OutboxTransaction,
    ReleaseParked,
)

PARKED_LIMIT_DEFAULT: Final = 100
_SECOND: Final = 1_000_000


class OutboxStats(NamedTuple):
    """How many messages wait to be sent (those included that a publisher has taken), how many of
    them are taken, how many are parked, how many were published and are kept; and for how many
    seconds the oldest one has waited."""

    waiting: int
    taken: int
    parked: int
    published: int
    oldest_seconds: float


class ParkedMessage(NamedTuple):
    """A message that was refused too often, and why."""

    message: OutgoingMessage
    error: str
    refusals: int


class Outbox:
    """The outbox of a database, from threads.

    `once` is an engine on PostgreSQL or SQLite, or the URL of one.
    """

    def __init__(self, once: Once | str) -> None:
        self.once = Once(once) if isinstance(once, str) else once
        self._store: OutboxStore = outbox_store(self.once, Once)

    def create_table(self) -> None:
        """Create the table, unless it is there. Call it at start-up, or run `oncekey migrate
        --outbox` where the application may not create tables."""
        Port(self.once).ready()
        self._store.create_outbox()

    def add(
        self,
        connection: Any,
        queue: str,
        body: Any,
        *,
        name: str | None = None,
        key: KeyLike | None = None,
        headers: Mapping[str, str] | None = None,
        order_group: str | None = None,
    ) -> str:
        """Add a message in the transaction of your connection or session; returns its id.

        It is sent if the transaction commits. `body` is bytes, text, or plain values for JSON.

        name         of this message among those of the running operation; the queue's by default.
                     An operation that runs again adds the same message, so it is not sent twice
        key          the id of the message where no operation runs, or instead of the derived one
        order_group  messages of one group in one queue are sent in the order in which their
                     transactions committed; transactions that add to one group wait for each other
        """
        row = row_of(queue, body, name=name, key=key, headers=headers, order_group=order_group)
        Port(self.once).ready()
        transaction = cast(OutboxTransaction, Port(self.once).join(connection))
        check_added(row, transaction.add_message(row))
        return row.id

    def stats(self) -> OutboxStats:
        """How much waits, and for how long."""
        return _stats(self._store.outbox(Measure()))

    def parked(self, limit: int = PARKED_LIMIT_DEFAULT) -> list[ParkedMessage]:
        """The oldest messages that were refused too often, each with its last error."""
        return [_parked(entry) for entry in self._store.outbox(ListParked(limit))]

    def release(self, ids: Sequence[str]) -> int:
        """Let parked messages be sent again; how many there were."""
        return self._store.outbox(ReleaseParked(_ids(ids)))

    def discard(self, ids: Sequence[str]) -> int:
        """Delete parked messages for good; how many there were."""
        return self._store.outbox(DiscardParked(_ids(ids)))


class AsyncOutbox:
    """The same for asyncio; `once` is an AsyncOnce, or a URL."""

    def __init__(self, once: AsyncOnce | str) -> None:
        self.once = AsyncOnce(once) if isinstance(once, str) else once
        self._store: AsyncOutboxStore = outbox_store(self.once, AsyncOnce)

    async def create_table(self) -> None:
        """Create the table, unless it is there: see `Outbox.create_table`."""
        await AsyncPort(self.once).ready()
        await self._store.create_outbox()

    async def add(
        self,
        connection: Any,
        queue: str,
        body: Any,
        *,
        name: str | None = None,
        key: KeyLike | None = None,
        headers: Mapping[str, str] | None = None,
        order_group: str | None = None,
    ) -> str:
        """Add a message in the transaction of your connection or session: see `Outbox.add`."""
        row = row_of(queue, body, name=name, key=key, headers=headers, order_group=order_group)
        await AsyncPort(self.once).ready()
        transaction = cast(AsyncOutboxTransaction, AsyncPort(self.once).join(connection))
        check_added(row, await transaction.add_message(row))
        return row.id

    async def stats(self) -> OutboxStats:
        """How much waits, and for how long."""
        return _stats(await self._store.outbox(Measure()))

    async def parked(self, limit: int = PARKED_LIMIT_DEFAULT) -> list[ParkedMessage]:
        """The oldest messages that were refused too often, each with its last error."""
        return [_parked(entry) for entry in await self._store.outbox(ListParked(limit))]

    async def release(self, ids: Sequence[str]) -> int:
        """Let parked messages be sent again; how many there were."""
        return await self._store.outbox(ReleaseParked(_ids(ids)))

    async def discard(self, ids: Sequence[str]) -> int:
        """Delete parked messages for good; how many there were."""
        return await self._store.outbox(DiscardParked(_ids(ids)))


def outbox_store(once: Any, kind: type[Any]) -> Any:
    """The store of an engine, if it can have an outbox; raises ConfigurationError."""
    if not isinstance(once, kind):
        raise ConfigurationError(
            f"an outbox needs an engine of the same kind ({kind.__name__}) or its URL, not a "
            f"{type(once).__name__}"
        )
    store = AnyPort(once).store
    if not hasattr(store, "create_outbox"):
        raise ConfigurationError(
            f"a {type(store).__name__} has no outbox: it must be in the database of your own "
            "rows, PostgreSQL or SQLite. Give the outbox the URL of that one"
        )
    return store


def _stats(counts: OutboxCounts) -> OutboxStats:
    return OutboxStats(*counts[:4], counts.oldest / _SECOND)


def _parked(entry: OutboxEntry) -> ParkedMessage:
    return ParkedMessage(message_of(entry), entry.error, entry.refusals)


def _ids(ids: Sequence[str]) -> list[str]:
    if isinstance(ids, str):
        raise ConfigurationError(f"ids={ids!r} must be a list of message ids")
    return list(ids)
