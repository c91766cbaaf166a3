"""urllib3's pools, told to keep what is needed later and to wait no longer than the deadline.

http.client takes the end of a connection for the end of a head, and lets go of the socket that a
timeout could be set on. Owns the classes that do better; must not know what an answer means.
"""

from __future__ import annotations

import http.client
from functools import cache
from typing import Any

import urllib3
from urllib3.connectionpool import HTTPConnectionPool


class Within(urllib3.Timeout):
    """The timeouts of one try: `total` is for waiting for a free connection too."""


class Head(http.client.HTTPResponse):
    """A response that knows its socket, and whether its head has come to its end."""

    head_ended = False

    def __init__(self, sock: Any, *args: Any, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        self.socket = sock

    def begin(self) -> None:
        whole: Any = self.fp
        lines: Any = _Lines(whole)
        self.fp = lines
        try:
            super().begin()
        finally:
            if self.fp is lines:
                self.fp = whole
        self.head_ended = lines.last in (b"\r\n", b"\n")


class _Lines:
    """A file that remembers the last line that was read."""

    def __init__(self, file: Any) -> None:
        self.last = b""
        self._file = file

    def readline(self, *limit: int) -> bytes:
        self.last = self._file.readline(*limit)
        return self.last

    def close(self) -> None:
        self._file.close()


class _Waits:
    """Of a pool: with the timeouts of a try, no wait for a connection outlasts them."""

    def urlopen(self, *args: Any, **named: Any) -> Any:
        timeout = named.get("timeout")
        if isinstance(timeout, Within):
            named.setdefault("pool_timeout", timeout.total)
        return super().urlopen(*args, **named)  # type: ignore[misc]


@cache
def _attentive(pool: type[HTTPConnectionPool]) -> type[HTTPConnectionPool]:
    below = pool.ConnectionCls
    connection = type(below.__name__, (below,), {"response_class": Head})
    return type(pool.__name__, (_Waits, pool), {"ConnectionCls": connection})


def attend(manager: urllib3.PoolManager) -> None:
    """Have all pools that the manager makes from now on be of our classes."""
    classes: dict[str, type[HTTPConnectionPool]] = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {
        scheme: pool if issubclass(pool, _Waits) else _attentive(pool)  # type: ignore[arg-type]
        for scheme, pool in classes.items()
    }
