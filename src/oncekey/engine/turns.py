"""One operation at a time on a caller's connection.

A connection has one transaction and one stack of savepoints: were two operations to overlap on it,
undoing one would undo the other. An operation inside another's body is fine, it ends first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oncekey.core.errors import ConfigurationError

_lock = threading.Lock()
# By id, together with the connection itself: while it is held, no other object gets that id.
_held: dict[int, tuple[Any, object, int]] = {}


def depth(connection: Any) -> int:
    """How many operations, each in the body of the one before, are under way on it."""
    return _held.get(id(connection), (None, None, 0))[2]


@contextmanager
def turn(connection: Any, holder: object) -> Iterator[None]:
    """Hold the connection for this thread or task; refuse if another one does."""
    key = id(connection)
    before: tuple[Any, object, int] | None = None
    mine: tuple[Any, object, int] | None = None
    try:
        with _lock:
            before = _held.get(key)
            if before is not None and before[1] != holder:
                raise ConfigurationError(
                    "another operation is under way on this connection; one transaction cannot "
                    "hold two at once. Run them one after the other, or give each a connection of "
                    "its own"
                )
            mine = (connection, holder, 1 if before is None else before[2] + 1)
            _held[key] = mine
        yield
    finally:
        with _lock:
            # Also where a signal's handler raised just after it was taken.
            if mine is not None and _held.get(key) is mine:
                if before is None:
                    del _held[key]
                else:
                    _held[key] = before
