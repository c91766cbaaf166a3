"""The port of a broker: what a consumer needs of one, sync and async.

A consumer calls `receive` from one thread (or task), and `settle` and `extend` from another one;
both may be called at the same time. A broker whose client cannot stand that has a lock or a thread
of its own. All calls may raise `BrokerUnavailable`: the consumer goes on after a pause, and the
broker connects again by itself; what else a call may raise, and what follows, is said in
broker_faults.py. Whatever a lost connection leaves unsettled is delivered again, and the store then
says what became of it, so nothing has to be repeated here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from oncekey.core.errors import OncekeyError
from oncekey.queues.consumer_settings import BrokerFacts
from oncekey.queues.disposition import Disposition
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import GoOn, to_the_end

RECEIVE_WAIT_S: Final = 5.0  # the longest that `receive` is asked to wait for a message

Settled = tuple[Message, Disposition]


class BrokerUnavailable(OncekeyError):
    """The broker did not answer as it should. Nothing was removed that it does not say."""

    status = 503


class LoginRefused(BrokerUnavailable):
    """The broker refuses the login: the user, the password or the virtual host is wrong. At the
    start this ends a consumer. Later it is tried again like any other failure, because a server
    whose directory of users is away refuses everybody."""


class Broker(Protocol):
    """A queue, from threads."""

    def facts(self) -> BrokerFacts:
        """Connect, and ask what the broker tells about the queue. Raises ConfigurationError if it
        cannot be consumed safely as it is set up."""

    def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]:
        """At most `most` messages, after waiting `wait` seconds for the first one. They are this
        consumer's for `lease` seconds, and longer if they are extended. With `most` 0 nothing is
        taken, but the consumer stays known to the broker (it must return at once)."""

    def settle(self, settled: Sequence[Settled]) -> None:
        """Do what the dispositions say, in this order for each order group:

        REMOVE       it is done; what cannot be removed is delivered again, and that is harmless
        HIDE, RETRY  deliver it again, not before `seconds` have passed, and do not lose it: what
                     takes its place is durable before the original is removed
        DEAD_LETTER  move it to the dead-letter queue with `redrive.headers_of`, durably, then
                     remove it
        PARK         move it to where operators see it, durably, then remove it
        GIVE_BACK    let it be delivered again, soon
        """

    def extend(self, messages: Sequence[Message], seconds: float) -> None:
        """Hold these messages for so many seconds more, from now."""

    def redrive(self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end) -> int:
        """Move at most `most` dead letters back into the queue, the oldest first, and say how many;
        for `oncekey redrive`. Each gets the header `oncekey-redrive: ID` (REDRIVE_HEADER) beside
        the marks it has, durably, before it is removed from the dead-letter queue. With `parked`
        the parked messages are moved instead, without that header, which would open a failed key.

        A call moves only what was there when it began: a message that fails again, or is parked
        again, meanwhile is not moved twice. `go_on` is called with the number so far, at least once
        for every 100 messages. Called on a broker that nobody receives from."""

    def close(self) -> None:
        """Leave the broker. What was not settled is delivered again."""

    # def interrupt(self) -> None, if there is one, lets a `receive` that waits return soon. `stop`
    # calls it, from any thread and from signal handlers.


class AsyncBroker(Protocol):
    """A queue, from tasks: see `Broker`."""

    async def facts(self) -> BrokerFacts: ...
    async def receive(self, most: int, wait: float, lease: float) -> Sequence[Message]: ...
    async def settle(self, settled: Sequence[Settled]) -> None: ...
    async def extend(self, messages: Sequence[Message], seconds: float) -> None: ...
    async def redrive(
        self, most: int, id: str, *, parked: bool = False, go_on: GoOn = to_the_end
    ) -> int: ...
    async def close(self) -> None: ...
