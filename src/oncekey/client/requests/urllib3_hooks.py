"""Subclasses of urllib3's pools and responses that observe the deadline and detect a cut head.

http.client takes the end of a connection for the end of a response's head, and lets go of the
socket on which a timeout could be set. These classes remember both. They do not know what a
response means.
"""

from __future__ import annotations

import http.client
from functools import cache
from typing import Any

import urllib3
from urllib3.connectionpool import HTTPConnectionPool

from oncekey.core.errors import ConfigurationError


class TryTimeout(urllib3.Timeout):
    """The timeouts of one try. Its `total` also limits the wait for a free connection."""


class TrackedResponse(http.client.HTTPResponse):
    """A response that knows its socket, and whether its head came to its end."""

    head_ended = False

    def __init__(self, sock: Any, *args: Any, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        self.socket = sock

    def begin(self) -> None:
        whole: Any = self.fp
        lines: Any = _LineReader(whole)
        self.fp = lines
        try:
            super().begin()
        finally:
            if self.fp is lines:
                self.fp = whole
        self.head_ended = lines.last in (b"\r\n", b"\n")


class _LineReader:
    """A file that remembers the last line that was read."""

    def __init__(self, file: Any) -> None:
        self.last = b""
        self._file = file

    def readline(self, *limit: int) -> bytes:
        self.last = self._file.readline(*limit)
        return self.last

    def close(self) -> None:
        self._file.close()


class _PoolTimeoutMixin:
    """A pool whose wait for a free connection ends with the timeouts of a try."""

    def urlopen(self, *args: Any, **named: Any) -> Any:
        timeout = named.get("timeout")
        if isinstance(timeout, TryTimeout):
            named.setdefault("pool_timeout", timeout.total)
        return super().urlopen(*args, **named)  # type: ignore[misc]


@cache
def _hooked(pool: type[HTTPConnectionPool]) -> type[HTTPConnectionPool]:
    below = pool.ConnectionCls
    connection = type(below.__name__, (below,), {"response_class": TrackedResponse})
    return type(pool.__name__, (_PoolTimeoutMixin, pool), {"ConnectionCls": connection})


def _check_connections(pool: type[HTTPConnectionPool]) -> None:
    """Raise ConfigurationError if the responses of a pool are not those of http.client, as with
    urllib3-future: every request would be carried out, and then fail in this client."""
    connection: type = pool.ConnectionCls
    if not issubclass(connection, http.client.HTTPConnection):
        raise ConfigurationError(
            "the module urllib3 that is installed here does not use "
            "http.client, which IdempotentAdapter needs to tell whole responses from cut ones; "
            "urllib3-future is such a replacement. Uninstall it and install urllib3 again "
            "(pip install --force-reinstall urllib3), or use oncekey's transport for httpx"
        )


def install_hooks(manager: urllib3.PoolManager) -> None:
    """Make the manager use these classes for all pools that it makes from now on."""
    classes: dict[str, type[HTTPConnectionPool]] = manager.pool_classes_by_scheme
    for pool in classes.values():
        _check_connections(pool)
    manager.pool_classes_by_scheme = {
        scheme: pool if issubclass(pool, _PoolTimeoutMixin) else _hooked(pool)  # type: ignore[arg-type]
        for scheme, pool in classes.items()
    }
