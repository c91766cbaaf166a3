"""What a publisher sends with: the protocol of senders, and senders made of functions.

A sender is given some messages, of each order group one at most, and returns for each of them None,
or the error it failed with. The package of each broker has one; any function of a message will do.
This module must not know any broker.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.broker_faults import CANCELLED
from oncekey.queues.memory_broker import MemoryBroker
from oncekey.queues.outbox.outgoing_message import OutgoingMessage

T = TypeVar("T")

CONCURRENT_SENDS: Final = 16  # how many calls of an async function are under way at a time
# How many messages the senders of the brokers take at a time.
SENDER_BATCH_MAX: Final = 100
# How long a broker may take to confirm a message; well within half of a publisher's lease.
SEND_TIMEOUT_S: Final = 10.0

# The broker was not reached: that says nothing about the message, so it does not count as refused.
_UNAVAILABLE: Final = (BrokerUnavailable, OSError, TimeoutError)
# OSErrors that are about a file, such as one that is to be sent.
_ABOUT_FILES: Final = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
# Answers of HTTP servers that are about themselves: too many requests, and errors of their own.
_TOO_MANY_REQUESTS: Final = 429
_SERVER_ERRORS: Final = 500

Results = Sequence[Exception | None]


def is_unavailable(error: Exception) -> bool:
    """True if this error says nothing about the message. The errors of `requests` and `urllib` for
    an HTTP status are OSErrors too, but a server that answers has been reached."""
    if not isinstance(error, _UNAVAILABLE) or isinstance(error, _ABOUT_FILES):
        return False
    status = getattr(getattr(error, "response", None), "status_code", getattr(error, "code", None))
    if not isinstance(status, int):
        return True
    return status == _TOO_MANY_REQUESTS or status >= _SERVER_ERRORS


class Sender(Protocol):
    """Sends messages to a broker, from threads."""

    @property
    def batch_max(self) -> int:
        """How many messages to give it at a time."""

    def send(self, messages: Sequence[OutgoingMessage], /) -> Results:
        """Send these messages; None for each that the broker has durably. Errors of all of them
        may also be raised. BrokerUnavailable, OSError or TimeoutError say that the broker could
        not be reached."""

    # def close(self) -> None, if there is one, leaves the broker. A publisher calls it at the end
    # of `run`; a message that is sent after that connects again.


class AsyncSender(Protocol):
    """The same for asyncio."""

    @property
    def batch_max(self) -> int: ...

    async def send(self, messages: Sequence[OutgoingMessage], /) -> Results: ...


class FunctionSender:
    """Calls a function for each message; what it raises is that message's error."""

    batch_max = 1

    def __init__(self, publish: Callable[[OutgoingMessage], object]) -> None:
        self._publish = publish

    def send(self, messages: Sequence[OutgoingMessage], /) -> Results:
        for message in messages:
            self._publish(message)
        return [None] * len(messages)


class AsyncFunctionSender:
    """Calls an async function for each message, several at a time."""

    batch_max = CONCURRENT_SENDS

    def __init__(self, publish: Callable[[OutgoingMessage], Awaitable[object]]) -> None:
        self._publish = publish

    async def send(self, messages: Sequence[OutgoingMessage], /) -> Results:
        ended = await asyncio.gather(*map(self._publish, messages), return_exceptions=True)
        return [_error_of(one) for one in ended]


def _error_of(ended: object) -> Exception | None:
    """The error of one call. If the publisher itself were cancelled, none would have ended; so it
    was the client, which cancels what waits for an answer when its connection is lost."""
    if isinstance(ended, asyncio.CancelledError):
        return BrokerUnavailable(CANCELLED)
    if isinstance(ended, BaseException) and not isinstance(ended, Exception):
        raise ended
    return ended if isinstance(ended, Exception) else None


def prepared(
    messages: Sequence[OutgoingMessage], make: Callable[[OutgoingMessage], T]
) -> tuple[dict[int, T], list[Exception | None]]:
    """What `make` makes of the messages, by their positions, and a list of results with the errors
    of those that it cannot be made of: a message that a broker cannot take as it is must not keep
    its neighbours."""
    made: dict[int, T] = {}
    results: list[Exception | None] = [None] * len(messages)
    for position, message in enumerate(messages):
        try:
            made[position] = make(message)
        except (OncekeyError, ValueError) as error:
            results[position] = error
    return made, results


def memory_sender(*queues: MemoryBroker) -> Callable[[OutgoingMessage], object]:
    """A function that sends to queues in memory, chosen by their names; for tests."""
    by_name = {queue.facts().queue: queue for queue in queues}

    def publish(message: OutgoingMessage) -> None:
        queue = by_name.get(message.queue)
        if queue is None:
            raise LookupError(f"there is no queue {message.queue!r}")
        queue.send(message.body, message.headers, order_group=message.order_group)

    return publish


def sender_of(publish: Any, *, is_async: bool) -> Any:
    """A sender of what a user gave: a sender, or a function of a message."""
    send = getattr(publish, "send", publish)
    if not callable(send):
        raise ConfigurationError(
            f"publish= must be a function of a message, or a sender, not a {type(publish).__name__}"
        )
    if _is_async(send) is not is_async:
        kind, right = (
            ("plain", "OutboxPublisher") if is_async else ("async", "AsyncOutboxPublisher")
        )
        raise ConfigurationError(f"publish= is {kind}; use it with {right}")
    if send is publish:
        return AsyncFunctionSender(publish) if is_async else FunctionSender(publish)
    most = getattr(publish, "batch_max", None)
    if not isinstance(most, int) or most < 1:
        raise ConfigurationError(f"batch_max={most!r} of the sender must be 1 or more")
    return publish


def _is_async(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
