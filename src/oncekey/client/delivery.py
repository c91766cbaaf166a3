"""What a caller learns about a request: how its response came about, and its progress meanwhile.

`Delivery` hangs on a response of httpx or requests and is found by `delivery_of`. A `Delivery` has
the key, because its caller may need it, but does not show it in its repr. A `Progress` never has
it, because it ends up in logs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

# The name under which both libraries carry it: an extension of httpx, an attribute of requests.
EXTENSION: Final = "oncekey"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How one logical request came to its response. Times are in seconds.

    `replayed` is True if the server sent a stored response, so that nothing was carried out again.

    `conclusive` is True if the response tells what became of the operation. If it is False (a 5xx,
    a 409, a 404 after a lost response), send the request again under the same key, never under a
    new one. A replayed failure (5xx) is conclusive too: this key will never get another response,
    so find out whether the operation had an effect before you use a new key.
    """

    key: str = field(repr=False)
    attempts: int
    replayed: bool
    conclusive: bool
    waited: float
    elapsed: float


class ProgressKind(StrEnum):
    """What happened, or is about to happen, to a logical request."""

    SENDING = "sending"
    ANSWERED = "answered"
    FAILED = "failed"
    WAITING = "waiting"
    GAVE_UP = "gave_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One event in the life of a logical request.

    `attempt` counts its tries from 1. `seconds` is the length of a wait that begins, else 0. `why`
    says what failed, what is waited for, or why the client gives up. `tag` is a short name of the
    key.
    """

    kind: ProgressKind
    method: str
    url: str
    tag: str
    attempt: int
    status: int | None = None
    seconds: float = 0.0
    why: str = ""


def delivery_of(response: Any) -> Delivery | None:
    """The delivery of a response of httpx or requests; None if its request got no key.

    After redirects it is the delivery of the last request on the way that had a key.
    """
    for one in (response, *reversed(getattr(response, "history", ()))):
        extensions = getattr(one, "extensions", None)
        if isinstance(extensions, dict):
            found = extensions.get(EXTENSION)
        else:
            found = getattr(one, EXTENSION, None)
        if isinstance(found, Delivery):
            return found
    return None
