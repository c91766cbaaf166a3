"""What the program of a channel asks of a client: one value for each call.

A program is a generator that yields calls and is sent their results. So pika, in a thread, and
aio-pika, in tasks, drive the same code; each performs a call by the client's own method. The queue
is consumed on one channel; letters are published, and dead letters taken, on a second one.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.errors import ConfigurationError
from oncekey.queues import broker_faults
from oncekey.queues.broker import BrokerUnavailable, LoginRefused
from oncekey.queues.rabbitmq.message import Arguments, Letter

T = TypeVar("T")

# Why RabbitMQ did not take a letter, where it does not say so itself.
NO_QUEUE: Final = "there is no such queue"
NOT_TAKEN: Final = "RabbitMQ refused it"

# The codes with which RabbitMQ closes the channel of a call that it refuses: a right is missing,
# there is no such queue, another connection has it for itself, it is declared otherwise.
NOT_FOUND: Final = 404
REFUSALS: Final = frozenset((403, NOT_FOUND, 405, 406))
_PREFIX: Final = "RabbitMQ: "
_LOGIN_REFUSED: Final = frozenset(
    ("AuthenticationError", "ProbableAuthenticationError", "ProbableAccessDeniedError")
)


class CountMessages(NamedTuple):
    """How many messages wait in a queue; None if there is no such queue."""

    queue: str


class Declare(NamedTuple):
    """Declare a durable queue; raises RabbitRefused if it is there and differs, or is not
    permitted."""

    queue: str
    arguments: Arguments


class IsStream(NamedTuple):
    """Whether a queue that is there is a stream; False if the user has no right to ask."""

    queue: str


class Subscribe(NamedTuple):
    """Have messages sent, at most `prefetch` that are not settled."""

    queue: str
    prefetch: int


class Unsubscribe(NamedTuple):
    """Have no more messages sent."""


class Ack(NamedTuple):
    """Remove a message, or with `up_to` all that were delivered before it as well."""

    tag: int
    up_to: bool = False


class Requeue(NamedTuple):
    """Give a message back to the queue; with the tag 0 all that are not settled."""

    tag: int


class Publish(NamedTuple):
    """Publish letters, and wait until RabbitMQ has confirmed them: for each None, or why not."""

    letters: list[Letter]


class Take(NamedTuple):
    """Take one message of a queue; the result is a `Message`, or None if the queue is empty."""

    queue: str


class AckTaken(NamedTuple):
    """Remove a message that was taken."""

    tag: int


ChannelCall = (
    CountMessages
    | Declare
    | IsStream
    | Subscribe
    | Unsubscribe
    | Ack
    | Requeue
    | Publish
    | Take
    | AckTaken
)
Program = Generator[ChannelCall, Any, T]


class RabbitRefused(ConfigurationError):
    """RabbitMQ refuses what a consumer needs: a queue is declared otherwise, or a right is
    missing. Or it refuses a message that a sender gives it: there is no such queue, the queue is
    full, the message is too large."""


def publish(letters: list[Letter]) -> Program[list[str | None]]:
    """Publish letters, and do nothing else: what a sender does."""
    failures: list[str | None] = yield Publish(letters)
    return failures


def reason_of(error: BaseException) -> str:
    """Why a call failed, in the client's own words; some of pika's errors have none."""
    reason = broker_faults.reason_of(error).removeprefix(_PREFIX)
    if reason.rstrip() == f"{type(error).__name__}:":
        with suppress(Exception):  # pika has some that cannot be shown
            return repr(error)
    return reason


def unavailable(error: BaseException) -> BrokerUnavailable:
    kind = LoginRefused if _is_login_refused(error) else BrokerUnavailable
    return kind(_PREFIX + reason_of(error))


def _is_login_refused(error: BaseException) -> bool:
    """True if RabbitMQ has refused the user or the virtual host, as pika and aiormq say it. The
    latter has no class for a virtual host, whose connection is closed instead of being opened."""
    if isinstance(error, LoginRefused) or type(error).__name__ in _LOGIN_REFUSED:
        return True
    return type(error).__name__ == "InvalidFrameError" and "Connection.Close" in str(error)
