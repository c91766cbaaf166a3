"""The queues that a consumer of RabbitMQ needs beside its own: their names and declarations.

A message that has to wait is moved to a delay queue, from which RabbitMQ itself moves it back when
its time is over. There is one delay queue for each step of time, because RabbitMQ looks only at the
first message of a queue: in one queue for all, a message that waits for long would hold up those
behind it. The steps are powers of two seconds, so there are few queues however many delays are
asked for. Pure.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

DELAY_MIN_S: Final = 0.125
DELAY_MAX_S: Final = 4096.0
# From 3.10 on a quorum queue hands an expired message over with confirms; a classic one may lose it
# if the node dies at that moment.
SAFE_DELAYS_SINCE: Final = (3, 10)

Arguments = dict[str, Any]


class QueueNames(NamedTuple):
    """The consumed queue, and where its messages go that are dead letters, or that are parked."""

    queue: str
    dead_letters: str
    parked: str

    def delay_queue(self, seconds: float) -> str:
        """The name of the delay queue of one step."""
        return f"{self.queue}.delay.{round(seconds * 1000)}ms"


def names_of(queue: str, dead_letters: str | None, parked: str | None) -> QueueNames:
    return QueueNames(queue, dead_letters or f"{queue}.dead", parked or f"{queue}.parked")


def delay_step(seconds: float) -> float:
    """The shortest step that is not shorter than what is asked for; the longest for anything
    beyond it, after which the message is delivered and, if need be, delayed again."""
    if seconds <= DELAY_MIN_S:
        return DELAY_MIN_S
    if seconds >= DELAY_MAX_S:
        return DELAY_MAX_S
    return 2.0 ** math.ceil(math.log2(seconds))


def delay_arguments(names: QueueNames, seconds: float, version: tuple[int, ...]) -> Arguments:
    """How the delay queue of one step is declared."""
    back = _to(names.queue) | {"x-message-ttl": round(seconds * 1000)}
    if version < SAFE_DELAYS_SINCE:
        return back
    return back | _QUORUM | _HANDED_OVER


def queue_arguments(names: QueueNames) -> Arguments:
    """How the consumed queue is declared: what the broker itself gives up, because consumers died
    too often with it, is a dead letter instead of being dropped."""
    return _QUORUM | _to(names.dead_letters) | _HANDED_OVER


def store_arguments(version: tuple[int, ...]) -> Arguments:
    """How the queues of dead letters and of parked messages are declared."""
    return _QUORUM if version >= SAFE_DELAYS_SINCE else {}


STREAM: Final[Arguments] = {"x-queue-type": "stream"}
_QUORUM: Final[Arguments] = {"x-queue-type": "quorum"}
# A message is removed from one queue only after the other has confirmed it. RabbitMQ asks for the
# second line wherever it is told the first.
_HANDED_OVER: Final[Arguments] = {
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


def _to(queue: str) -> Arguments:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
