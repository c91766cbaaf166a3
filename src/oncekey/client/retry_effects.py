"""What the flow asks for, what it is answered, and what it comes to: frozen data.

A driver (httpx in both colours, requests, or a test) meets an ask, does it, and sends the answer
back. Times are microseconds.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, NamedTuple

from oncekey.client.delivery import ProgressKind

SECOND_US: Final = 1_000_000

# --- facts -----------------------------------------------------------------------------------


class Trouble(StrEnum):
    """How a try can break, in the words that messages use."""

    CONNECT = "could not connect"
    CONNECT_TIMEOUT = "connecting timed out"
    POOL_TIMEOUT = "no connection became free in time"
    NETWORK = "the connection broke"
    TIMEOUT = "no answer in time"
    CLOSED = "the server closed the connection without a whole answer"
    CERTIFICATE = "the server's certificate was not accepted"
    OTHER = "the request could not be sent as it is"


class Moment(NamedTuple):
    """When a try ended, on the caller's monotonic clock and on its calendar, and a random number
    from 0 up to 1 for what comes next."""

    at: int
    wall: int
    chance: float


class Answered(NamedTuple):
    """A response's head came. `broke` is what happened to its body, if that did not all come;
    `doubtful` says that the server itself warned of using a new key, `replayed` that this is the
    stored answer to what was sent under the key before."""

    status: int
    moment: Moment
    retry_after: str | None = None
    date: str | None = None
    broke: Trouble | None = None
    doubtful: bool = False
    replayed: bool = False


class Broke(NamedTuple):
    """No response came."""

    trouble: Trouble
    moment: Moment


# --- asks and their answers --------------------------------------------------------------------


class Begin(NamedTuple):
    """Make the key durable, if there is a journal. Answered by `Begun`."""


class Begun(NamedTuple):
    """Ready to send. `used`: the key may have been sent before, by whoever gave it."""

    at: int
    used: bool


class Send(NamedTuple):
    """Send it once, within what is `left` of the deadline (None: there is none). Answered by
    `Answered` or `Broke`."""

    attempt: int
    left: int | None


class Wait(NamedTuple):
    """Let time pass. Answered by the clock's reading at waking."""

    us: int


class Tell(NamedTuple):
    """Tell whoever wants to know. Answered by nothing."""

    kind: ProgressKind
    attempt: int
    status: int | None = None
    us: int = 0
    why: str = ""


class Leave(NamedTuple):
    """It is over; `settled`: the key has done its work and need not be kept. Answered by
    nothing."""

    settled: bool


Ask = Begin | Send | Wait | Tell | Leave
Answer = Begun | Answered | Broke | int | None

# --- what a request comes to ---------------------------------------------------------------------


class Ending(Enum):
    ANSWERED = 1  # give the caller the last response
    FAILED = 2  # raise the last error as it is
    EXHAUSTED = 3  # raise RetriesExhausted


class Verdict(NamedTuple):
    """How one logical request ended for its caller."""

    ending: Ending
    attempts: int
    waited: int
    elapsed: int
    settled: bool = False
    safe_new_key: bool = False
    why: str = ""
    last: str = ""
