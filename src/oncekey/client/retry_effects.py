"""The effects that the retry flow yields, their results, and its outcome: frozen data.

A driver (sync, async, or a test) carries out an effect and sends its result back into the flow.
Times are microseconds.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, NamedTuple

from oncekey.client.delivery import ProgressKind

SECOND_US: Final = 1_000_000

# --- effects -------------------------------------------------------------------------------------


class SendRequest(NamedTuple):
    """Send the request once, and stop at the deadline (None: there is none), a monotonic time. The
    result is `ResponseReceived` or `NoResponse`."""

    attempt: int
    deadline: int | None


class Sleep(NamedTuple):
    """Let time pass. The result is the monotonic time at waking."""

    us: int


class Notify(NamedTuple):
    """Report progress to the caller's hook. It has no result."""

    kind: ProgressKind
    attempt: int
    status: int | None = None
    us: int = 0
    why: str = ""


Effect = SendRequest | Sleep | Notify

# --- results of effects --------------------------------------------------------------------------


class TransportFailure(StrEnum):
    """How sending a request or reading its response can fail, in the words of error messages."""

    CONNECT = "could not connect"
    CONNECT_TIMEOUT = "connecting timed out"
    POOL_TIMEOUT = "no connection became free in time"
    NETWORK = "the connection broke"
    TIMEOUT = "no answer in time"
    CLOSED = "the server closed the connection without a whole answer"
    CERTIFICATE = "the server's certificate was not accepted"
    OTHER = "the request could not be sent as it is"


class ClockReading(NamedTuple):
    """The clocks at the end of a try: `now` is monotonic, `wall` counts from 1970. `chance` is a
    random number from 0 up to 1, for the jitter of the next pause."""

    now: int
    wall: int
    chance: float


class ResponseHead(NamedTuple):
    """What the head of a response says.

    `replayed`: the server marks it as the stored response to an earlier request with the key.
    `retried`: the head alone calls for another try, whatever the body says.
    """

    status: int
    retry_after: str | None
    date: str | None
    replayed: bool
    retried: bool


class ResponseReceived(NamedTuple):
    """A response came. `failure` is why its body did not come to its end, if it did not. `warned`:
    its body says, or may have said, that a new key is not safe."""

    head: ResponseHead
    reading: ClockReading
    failure: TransportFailure | None = None
    warned: bool = False


class NoResponse(NamedTuple):
    """No response came. `unsent`: the library refused to send the request at all."""

    failure: TransportFailure
    reading: ClockReading
    unsent: bool = False


TryResult = ResponseReceived | NoResponse
EffectResult = TryResult | int | None

# --- the outcome ---------------------------------------------------------------------------------


class OutcomeKind(Enum):
    """What the caller gets."""

    RESPONSE = 1  # the last response
    ERROR = 2  # the last error, raised as it is
    EXHAUSTED = 3  # RetriesExhausted


class EntryState(Enum):
    """What is known of the operation at the end, as far as a journal's entry for its key goes."""

    OPEN = 1  # it may have been carried out: the key must be kept
    UNSENT = 2  # nothing that was sent can have had an effect
    REFUSED = 3  # the server refused it for good: it may come again, corrected
    DONE = 4  # it was carried out


class RequestOutcome(NamedTuple):
    """How a logical request ended.

    `maybe_carried_out`: something sent under the key may have had an effect; of a response, that
    means something sent before it. `conclusive`: the response tells what became of the operation.
    `why` is the reason for giving up, `last` what the last try came to.
    """

    kind: OutcomeKind
    attempts: int
    waited: int
    elapsed: int
    entry: EntryState
    maybe_carried_out: bool
    conclusive: bool = False
    why: str = ""
    last: str = ""
