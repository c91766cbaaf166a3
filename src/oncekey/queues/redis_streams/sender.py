"""Senders of Redis Streams, for the publishers of an outbox: one pipeline of XADD for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.missing_client import client_of
from oncekey.queues.outbox.outgoing_message import OutgoingMessage
from oncekey.queues.outbox.senders import SENDER_BATCH_MAX, prepared
from oncekey.queues.redis_streams.settings import BODY_FIELD_DEFAULT, StreamRefused, code_of

# What is wrong with one stream or entry. Every other error says nothing about a message: the server
# is away, loads, is a replica, is full, or does not know the login.
_OF_ONE_STREAM: Final = frozenset(("WRONGTYPE", "NOPERM", "ERR"))


class _SenderBase:
    """What both senders share: messages as commands, and replies as results."""

    batch_max = SENDER_BATCH_MAX

    def __init__(self, body_field: str, create: bool, max_entries: int | None) -> None:
        if not isinstance(body_field, str) or not body_field:
            raise ConfigurationError(f"body_field={body_field!r} must be the name of a field")
        is_count = isinstance(max_entries, int) and not isinstance(max_entries, bool)
        if max_entries is not None and not (is_count and max_entries >= 1):
            raise ConfigurationError(f"max_entries={max_entries!r} must be 1 or more")
        self._body_field = body_field
        self._words: list[Any] = [] if create else ["NOMKSTREAM"]
        if max_entries is not None:
            self._words += ["MAXLEN", "~", max_entries]

    def _command(self, message: OutgoingMessage) -> list[Any]:
        if self._body_field in message.headers:
            raise ConfigurationError(
                f"the field {self._body_field!r} is the body; a header cannot have that name"
            )
        fields = [word.encode() for header in message.headers.items() for word in header]
        body = [self._body_field.encode(), message.body]
        return ["XADD", message.queue.encode(), *self._words, "*", *body, *fields]


def _noted(
    results: list[Exception | None],
    messages: Sequence[OutgoingMessage],
    replies: dict[int, Any],
) -> list[Exception | None]:
    """The results, with the errors among the replies to the commands."""
    for position, reply in replies.items():
        stream = messages[position].queue
        if reply is None:
            results[position] = StreamRefused(f"there is no stream {stream!r}, and create=False")
        elif isinstance(reply, Exception):
            results[position] = _error(reply, stream)
    return results


def _error(error: Exception, stream: str) -> OncekeyError:
    first_line = str(error).strip().partition("\n")[0] or type(error).__name__
    text = f"cannot add to the stream {stream!r}: {first_line}"
    return StreamRefused(text) if code_of(error) in _OF_ONE_STREAM else BrokerUnavailable(text)


class RedisStreamSender(_SenderBase):
    """Sends messages of an outbox to streams of Redis or Valkey, for `OutboxPublisher`.

        publisher = OutboxPublisher(once, RedisStreamSender("redis://..."))

    server        a URL, or a client of redis-py, also one of a Cluster or of Sentinels
    body_field    the field that has a message's body, "body"; its headers are the other fields
    create        make a stream that does not exist; False refuses its messages
    max_entries   let the server trim a stream to about so many entries. It trims what nobody has
                  read yet, too; without it nothing is trimmed

    A message counts as sent when the server has answered: it is as durable as the server is.
    """

    def __init__(
        self,
        server: str | Any,
        *,
        body_field: str = BODY_FIELD_DEFAULT,
        create: bool = True,
        max_entries: int | None = None,
    ) -> None:
        super().__init__(body_field, create, max_entries)
        with client_of("Redis Streams", extra="redis"):
            from oncekey.queues.redis_streams.client import StreamClient
        self._client = StreamClient(server, other="AsyncRedisStreamSender")

    def send(self, messages: Sequence[OutgoingMessage], /) -> list[Exception | None]:
        """Add messages; None for each that the server has, or its error."""
        commands, results = prepared(messages, self._command)
        replies = self._client.pipeline(commands.values())
        return _noted(results, messages, dict(zip(commands, replies, strict=True)))

    def close(self) -> None:
        """Close the client, if it was made here."""
        self._client.close()


class AsyncRedisStreamSender(_SenderBase):
    """The same for `AsyncOutboxPublisher`; a client is one of `redis.asyncio`."""

    def __init__(
        self,
        server: str | Any,
        *,
        body_field: str = BODY_FIELD_DEFAULT,
        create: bool = True,
        max_entries: int | None = None,
    ) -> None:
        super().__init__(body_field, create, max_entries)
        with client_of("Redis Streams", extra="redis"):
            from oncekey.queues.redis_streams.client import AsyncStreamClient
        self._client = AsyncStreamClient(server, other="RedisStreamSender")

    async def send(self, messages: Sequence[OutgoingMessage], /) -> list[Exception | None]:
        """Add messages; None for each that the server has, or its error."""
        commands, results = prepared(messages, self._command)
        replies = await self._client.pipeline(commands.values())
        return _noted(results, messages, dict(zip(commands, replies, strict=True)))

    async def close(self) -> None:
        """Close the client, if it was made here."""
        await self._client.close()
