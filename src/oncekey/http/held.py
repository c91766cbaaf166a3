"""A blocking app's response body, held back until its outcome is durable.

Small ones stay in memory, larger ones go to a temporary file. One that grows past all bounds is
not read to its end before it is sent: what was read is held, and the rest flows behind it. Owns the
buffer and the iterable it came from; knows no framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from tempfile import SpooledTemporaryFile
from typing import Any, Final

from oncekey.http.message import Headers, Response
from oncekey.http.response_buffer import HOLD_MAX_BYTES, SPILL_BYTES

_CHUNK: Final = 64 * 1024


class Held:
    """The parts of a body, in order. One per run; iterate it once to send them.

    `status`, `headers` and `unhandled` are set by whoever holds the response.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.size = 0
        self.unhandled = False  # whether no handler has made it, see unhandled_requests.py
        self._file: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(max_size=SPILL_BYTES)  # noqa: SIM115
        self._source: Any = None
        self._rest: Iterator[bytes] | None = None  # what was not read yet of a very long one

    def add(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self.size += len(chunk)

    def fill(self, source: Iterable[bytes]) -> None:
        """Read all of it, and close it; or as much as is ever held back."""
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

    def response(self, most: int) -> Response:
        """The response as data; without its body where that is longer than `most`, or not over."""
        if self.size > most or self._rest is not None:
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
        """All is sent, or nobody wants it."""
        self._file.close()
        self._close_source()

    def _close_source(self) -> None:
        source, self._source = self._source, None
        close = getattr(source, "close", None)
        if close is not None:
            close()
