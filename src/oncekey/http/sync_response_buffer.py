"""Holds the response of a sync app back until its outcome is durable.

A small response stays in memory, a larger one goes to a temporary file. A response that grows past
`HOLD_MAX_BYTES` is not read to its end before it is sent: what was read is held, and the rest is
read while it is sent. Owns the buffer and the iterable that fills it. Knows no framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from tempfile import SpooledTemporaryFile
from typing import Any, Final

from oncekey.http.message import Headers, Response
from oncekey.http.response_buffer import HOLD_MAX_BYTES, SPILL_BYTES

_CHUNK: Final = 64 * 1024


class SyncResponseBuffer:
    """The response of one run of a sync app. Iterate it once to send the body.

    `status`, `headers` and `unhandled` are set by the adapter that fills it.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.size = 0
        self.unhandled = False  # True if no handler made it, see unhandled_requests.py
        self._file: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(max_size=SPILL_BYTES)  # noqa: SIM115
        self._source: Any = None
        self._rest: Iterator[bytes] | None = None  # the unread part of one too long to be held

    def add(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self.size += len(chunk)

    def fill(self, source: Iterable[bytes]) -> None:
        """Read the body to its end and close it; of one too long to be held, read the beginning."""
        self._source = source
        try:
            parts = iter(source)
            for chunk in parts:
                self.add(chunk)
                if self.size > HOLD_MAX_BYTES:
                    self._rest = parts
                    return
        except BaseException:
            self.close()
            raise
        self._close_source()

    @property
    def is_cut(self) -> bool:
        """Whether it is too long to be held: only its beginning was read."""
        return self._rest is not None

    def response(self, body_max: int) -> Response:
        """The response as data; without its body if that is longer than `body_max` or unread."""
        if self.size > body_max or self.is_cut:
            return Response(self.status, self.headers, b"", omitted=True)
        self._file.seek(0)
        return Response(self.status, self.headers, self._file.read())

    def __iter__(self) -> Iterator[bytes]:
        try:
            self._file.seek(0)
            while chunk := self._file.read(_CHUNK):
                yield chunk
            if self._rest is not None:
                yield from self._rest
        finally:
            self.close()

    def close(self) -> None:
        """Free the buffer and close the source, because the response was sent or is not needed."""
        self._file.close()
        self._close_source()

    def _close_source(self) -> None:
        source, self._source = self._source, None
        close = getattr(source, "close", None)
        if close is not None:
            close()
