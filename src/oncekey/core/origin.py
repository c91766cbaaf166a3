"""The origin of a run: by which surface it came in, and by which route.

A record's label is the text in its column `operation`: the operation's name, and for a run with an
origin also that, after tabs, which no name may contain. The label describes, and decides nothing.
Owns the format of the label. Pure.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

ROUTE_MAX_CHARS: Final = 200
NAME_MAX_CHARS: Final = 100
OWN_OPERATIONS: Final = "oncekey "  # how the names of operations begin that are oncekey's own
_TAB: Final = "\t"
_LABELS_REMEMBERED: Final = 1_024


class Origin(NamedTuple):
    """Where a run came in. `surface` is "function", "http" or "queue"; `route` is the method and
    the path, such as "POST /charges", or the queue; `name` is what the service's documentation
    calls that route."""

    surface: str
    route: str = ""
    name: str = ""


FUNCTION: Final = Origin("function")


@lru_cache(_LABELS_REMEMBERED)
def label_of(operation: str, origin: Origin | None) -> str:
    """The label of a run of this operation."""
    if origin is None or origin == FUNCTION:
        return operation
    return _TAB.join((operation, *origin))


@lru_cache(_LABELS_REMEMBERED)
def origin_of(label: str) -> Origin:
    """The origin in a label."""
    parts = label.split(_TAB)
    return Origin(*parts[1:4]) if len(parts) > 1 else FUNCTION


def operation_of(label: str) -> str:
    """The operation's name in a label."""
    return label.partition(_TAB)[0]


def is_own(label: str) -> bool:
    """True for what oncekey remembers for itself, such as the broker of a consumer: a few keys,
    which are kept longer than any of the user's."""
    return label.startswith(OWN_OPERATIONS)


def shown(text: str, most: int) -> str:
    """A text from outside as it may stand in a label: printable, and not longer than `most`."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= most else text[: most - 1] + "…"
