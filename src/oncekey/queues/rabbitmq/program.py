"""What a consumer does with RabbitMQ, as programs of calls: begin, settle, leave, redrive.

    REMOVE        ack; many at once where everything before them is done too
    HIDE, RETRY   a copy into a delay queue, confirmed, then ack. If the queue itself delays what
                  comes back for long enough, it is given back instead
    DEAD_LETTER   a copy into the queue of dead letters, confirmed, then ack
    PARK          a copy into the queue of parked messages, confirmed, then ack
    GIVE_BACK     unsubscribe, so that it is not sent here again at once, then give it back

A crash between a confirmed copy and its ack leaves two messages; the store takes the second one for
the duplicate it is. A copy that its queue does not take waits in a delay queue, and is tried again
when it comes back.

A program is a generator that yields calls and is sent their results. So pika, in a thread, and
aio-pika, in tasks, drive the same code; each performs a call by the client's own method. The queue
is consumed on one channel; letters are published, and dead letters taken, on a second one.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.errors import ConfigurationError
from oncekey.queues import broker_faults
from oncekey.queues.broker import BrokerUnavailable, LoginRefused, Settled
from oncekey.queues.disposition import Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.rabbitmq.message import (
    Arguments,
    Letter,
    delay_arguments,
    delay_step,
    delayed_letter,
    letter_of,
    queue_arguments,
    redriven_letter,
    store_arguments,
    unparked_letter,
)
from oncekey.queues.rabbitmq.settings import QueueNames, Version, stream_refused
from oncekey.queues.redrive import GoOn

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
STREAM_HEADER: Final = "x-stream-offset"
REFUSED_LETTER_DELAY_S: Final = 32.0  # before a letter that its queue did not take is tried again
_log = logging.getLogger("oncekey")
_MOVED: Final = frozenset((Kind.HIDE, Kind.RETRY, Kind.DEAD_LETTER, Kind.PARK))


# --- the calls ------------------------------------------------------------------------------------


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


# --- why they fail --------------------------------------------------------------------------------


class RabbitRefused(ConfigurationError):
    """RabbitMQ refuses what a consumer needs: a queue is declared otherwise, or a right is
    missing. Or it refuses a message that a sender gives it: there is no such queue, the queue is
    full, the message is too large."""


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


# --- the programs ---------------------------------------------------------------------------------


def publish(letters: list[Letter]) -> Program[list[str | None]]:
    """Publish letters, and do nothing else: what a sender does."""
    failures: list[str | None] = yield Publish(letters)
    return failures


class ChannelProgram:
    """The programs of one session, that is, of one connection.

    `unsettled` has the tags of what was delivered and is not settled, in order; `retry_delay` is
    for how many seconds the queue itself delays what it is given back, if it does. All programs of
    a session run one after the other.
    """

    def __init__(self, names: QueueNames, version: Version) -> None:
        self.names = names
        self.unsettled: dict[int, None] = {}
        self.is_subscribed = False
        self.retry_delay: float | None = None
        self._version = version
        self._declared: set[str] = set()
        self._is_queue = False  # known not to be a stream

    # --- the beginning and the end --------------------------------------------------------------

    def prepare(self, *, declare: bool) -> Program[None]:
        """Make sure that the queues are there; `declare` says whether to declare the consumed
        one."""
        names = self.names
        for queue in dict.fromkeys((names.dead_letters, names.parked)):
            if (yield CountMessages(queue)) is None:
                yield Declare(queue, store_arguments(self._version))
        if (yield CountMessages(names.queue)) is None:
            if not declare:
                raise ConfigurationError(
                    f"there is no queue {names.queue!r}; declare it, or give declare=True to have "
                    "it declared as a quorum queue"
                )
            yield Declare(names.queue, queue_arguments(names))
        yield from self._declare_delay(1.0)  # so that a missing right shows now

    def subscribe(self, prefetch: int) -> Program[None]:
        if not self.is_subscribed:
            yield Subscribe(self.names.queue, prefetch)
            self.is_subscribed = True

    def may_be_of_a_stream(self, messages: Sequence[Message]) -> bool:
        """True if `check_kind` has to find out whether this is a queue: its messages have a header
        that a stream gives them, and that a shovel copies into queues."""
        return not self._is_queue and any(STREAM_HEADER in each.headers for each in messages)

    def check_kind(self) -> Program[None]:
        """Refuse to consume a stream: what was published while nobody consumed it is not delivered,
        and nothing is ever removed."""
        if (yield IsStream(self.names.queue)):
            raise stream_refused(self.names.queue)
        self._is_queue = True

    def leave(self) -> Program[None]:
        """Give back everything that is not settled: a connection that is closed over it would
        count as a failed delivery."""
        yield from self._unsubscribe()
        if self.unsettled:
            yield Requeue(0)
            self.unsettled.clear()

    def _unsubscribe(self) -> Program[None]:
        if self.is_subscribed:
            self.is_subscribed = False
            yield Unsubscribe()

    # --- settling -------------------------------------------------------------------------------

    def settle(self, settled: Sequence[Settled]) -> Program[None]:
        settled = [pair for pair in settled if _tag(pair[0]) in self.unsettled]
        yield from self._ack(m for m, d in settled if d.kind is Kind.REMOVE)
        moved = [pair for pair in settled if pair[1].kind in _MOVED and not self._comes_back(pair)]
        if moved:
            yield from self._move(moved)
        back = [m for m, d in settled if d.kind is Kind.GIVE_BACK]
        if back:
            yield from self._unsubscribe()
        for message in (*back, *(pair[0] for pair in settled if self._comes_back(pair))):
            yield Requeue(_tag(message))
            del self.unsettled[_tag(message)]

    def _comes_back(self, pair: Settled) -> bool:
        """True if the queue itself delays a message that is given back, and for so long that it
        comes back at most twice as often as it should."""
        _, disposition = pair
        if self.retry_delay is None or disposition.kind not in (Kind.HIDE, Kind.RETRY):
            return False
        return 2 * self.retry_delay >= disposition.seconds

    def _ack(self, messages: Iterable[Message]) -> Program[None]:
        tags = {_tag(message) for message in messages}
        last = 0
        for tag in self.unsettled:  # in the order of delivery
            if tag not in tags:
                break
            last = tag
        if last:
            yield Ack(last, up_to=True)
        for tag in sorted(tags):
            if tag > last:
                yield Ack(tag)
            del self.unsettled[tag]

    def _move(self, moved: Sequence[Settled]) -> Program[None]:
        for _, disposition in moved:
            if disposition.kind in (Kind.HIDE, Kind.RETRY):
                yield from self._declare_delay(delay_step(disposition.seconds))
        letters = [letter_of(message, disposition, self.names) for message, disposition in moved]
        failed = yield from self._publish([message for message, _ in moved], letters)
        if not failed:
            return
        yield from self._declare_delay(REFUSED_LETTER_DELAY_S)
        later = [delayed_letter(m, REFUSED_LETTER_DELAY_S, self.names) for m in failed]
        failed = yield from self._publish(failed, later)
        if failed:
            raise BrokerUnavailable(f"RabbitMQ did not take the copies of {len(failed)} messages")

    def _publish(
        self, messages: Sequence[Message], letters: list[Letter]
    ) -> Program[list[Message]]:
        """Publish the letters, and remove the messages whose letters were confirmed; the others."""
        failures: list[str | None] = yield Publish(letters)
        results = list(zip(messages, letters, failures, strict=True))
        yield from self._ack(message for message, _, failure in results if failure is None)
        for _, letter, failure in results:
            if failure is not None:
                _log.warning("RabbitMQ: queue %s did not take a copy: %s", letter.queue, failure)
        return [message for message, _, failure in results if failure is not None]

    def _declare_delay(self, seconds: float) -> Program[None]:
        queue = self.names.delay_queue(seconds)
        if queue not in self._declared:
            yield Declare(queue, delay_arguments(self.names, seconds, self._version))
            self._declared.add(queue)

    # --- redrive --------------------------------------------------------------------------------

    def redrive(self, most: int, id: str, parked: bool, go_on: GoOn) -> Program[int]:
        """Move dead letters, or parked messages, back. No more than there are at the beginning, for
        one that fails again comes to the end of the same queue."""
        names = self.names
        source = names.parked if parked else names.dead_letters
        waiting: int = (yield CountMessages(source)) or 0
        moved = 0
        while moved < min(most, waiting):
            message: Message | None = yield Take(source)
            if message is None:
                break
            letter = (
                unparked_letter(message, names) if parked else redriven_letter(message, id, names)
            )
            (failure,) = yield Publish([letter])
            if failure is not None:
                raise BrokerUnavailable(f"queue {names.queue!r} did not take it: {failure}")
            yield AckTaken(_tag(message))
            moved += 1
            if not go_on(moved):
                break
        return moved


def _tag(message: Message) -> int:
    tag: int = message.raw.tag
    return tag
