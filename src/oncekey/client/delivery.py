"""What a caller is told: how an answer came about (`Delivery`), and what goes on (`Progress`).

Owns where a delivery hangs on a response, of either library. The raw key is in a `Delivery`, since
its caller may need it, but not in its repr, and never in a `Progress`, which ends up in logs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

EXTENSION: Final = "oncekey"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How one logical request came to its answer.

    `replayed`: the server has given a stored answer, nothing was carried out again. `settled`: the
    answer tells what became of the operation; where it is False (a 5xx, a 409, a 404 after a lost
    answer) send the request again under the same key, never under a new one. A failure (5xx) that
    is `replayed` is settled too: it is the only answer this key will ever get, so find out whether
    it had an effect before you use a new one. Times are in seconds.
    """

    key: str = field(repr=False)
    attempts: int
    replayed: bool
    settled: bool
    waited: float
    elapsed: float


class ProgressKind(StrEnum):
    """What a `Progress` tells of."""

    SENDING = "sending"
    ANSWERED = "answered"
    BROKE = "broke"
    WAITING = "waiting"
    GAVE_UP = "gave_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One moment of a logical request.

    `attempt` counts its tries from 1. `seconds` is how long it is going to wait, and 0 elsewhere;
    `why` says what broke, what it waits for, or why it gives up. `tag` is a short name of the key.
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
    """The delivery of a response of httpx or requests; None of one that was not guarded.

    Of a response that redirects have led to: that of the last request on the way that had a key.
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
