"""Reads a request from the environ of WSGI.

A body is read within a limit, and never further than the server allows. It ends after its
Content-Length, or where the server ends it (`wsgi.input_terminated`). A body of which neither is
known is refused: to take it for an empty one would make it equal to every other such body. Nothing
is read before somebody asks for it. What was read is kept, in a file if it is long, and can be read
again.

Knows no engine and decides nothing.
"""

from __future__ import annotations

import io
from contextlib import suppress
from functools import lru_cache
from typing import IO, Any, Final
from urllib.parse import quote

from oncekey.http.message import (
    CHUNK_BYTES,
    Body,
    PartsFile,
    Request,
    RequestHeaders,
    TooLarge,
    UnreadableBody,
    extended,
    headers_by_name,
    part_of,
)

Environ = dict[str, Any]

_UNPREFIXED: Final = {"CONTENT_TYPE": b"content-type", "CONTENT_LENGTH": b"content-length"}
CUT_SHORT: Final = "The request ended before all of its body was here."
NO_CHUNKS: Final = "Send a Content-Length: this server passes no chunked bodies on."
_NO_LENGTH: Final = "Its Content-Length is no number."
_LENGTH_DIGITS: Final = 18  # a Content-Length with more digits is too large in any case


# --- requests -------------------------------------------------------------------------------------


def path_of(environ: Environ) -> str:
    """The path within the app, with which rules are matched."""
    path: str = environ.get("PATH_INFO", "")
    return path.encode("latin-1").decode("utf-8", "replace") or "/"


def headers_of(environ: Environ) -> RequestHeaders:
    """The request's headers. The server has joined headers of one name by commas, and may have
    taken `Idempotency_Key` for the same name, so that two keys are one malformed key here."""
    headers = []
    for name, value in environ.items():
        header = _header_name(name)
        if header is not None and (value or name not in _UNPREFIXED):
            headers.append((header, value.encode("latin-1")))
    return headers_by_name(headers)


@lru_cache(1_000)
def _header_name(name: str) -> bytes | None:
    """The name of the header that an item of the environ holds, or None."""
    if name.startswith("HTTP_"):
        return name[5:].replace("_", "-").lower().encode("latin-1")
    return _UNPREFIXED.get(name)


def request_of(environ: Environ, headers: RequestHeaders, body: bytes | Body) -> Request:
    # Servers do not agree on where the undecoded path is, so the decoded one is encoded again:
    # paths that are equal for the app are equal here.
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return Request(
        environ["REQUEST_METHOD"],
        quote(path.encode("latin-1")).encode("ascii"),
        environ.get("QUERY_STRING", "").encode("latin-1"),
        headers,
        body,
    )


# --- bodies of requests ---------------------------------------------------------------------------


def declared_length(environ: Environ) -> int | None:
    """The Content-Length; None if there is none. Raises UnreadableBody if it is malformed."""
    line: str = environ.get("CONTENT_LENGTH") or ""
    if not line:
        return None
    if not (line.isascii() and line.isdigit()):
        raise UnreadableBody(_NO_LENGTH)
    digits = line.lstrip("0") or "0"
    return int(digits) if len(digits) <= _LENGTH_DIGITS else int("9" * _LENGTH_DIGITS)


def _length(environ: Environ) -> int | None:
    """The length of the body; None if it ends where the server ends it."""
    is_ended = bool(environ.get("wsgi.input_terminated"))
    if environ.get("HTTP_TRANSFER_ENCODING"):
        if not is_ended:
            raise UnreadableBody(NO_CHUNKS)  # uWSGI and wsgiref do not decode them
        return None
    length = declared_length(environ)
    return length if length is not None or is_ended else 0


class WSGIBody:
    """The body of one request, which must not be longer than `limit`.

    Its methods raise UnreadableBody and TooLarge, each time if they do so once. A body whose
    Content-Length is over the limit is not read at all.
    """

    def __init__(self, environ: Environ, limit: int) -> None:
        self._source = environ["wsgi.input"]
        self._limit = limit
        self._kept: bytes | Body = b""
        self._size = 0  # of what was read
        self._length: int | None = None  # None if the server ends the body
        self._error: Exception | None = None
        try:
            self._length = _length(environ)
        except UnreadableBody as error:
            self._error = error
        if self._length is not None and self._length > limit:
            self._error = TooLarge()
        self._is_whole = self._error is None and self._length == 0

    def read(self) -> bytes | Body:
        """The whole body."""
        while not self._is_whole:
            self._read_on()
        return self._kept

    def discard(self) -> None:
        """Read what is left of the body and keep nothing, because the connection's next request
        comes behind it; but not if it is too large, or cannot be read."""
        with suppress(UnreadableBody, TooLarge):
            while not self._is_whole:
                self._read_on(keep=False)

    def close(self) -> None:
        """Free the memory and the file."""
        if isinstance(self._kept, Body):
            self._kept.close()

    @property
    def size(self) -> int:
        self.read()
        return self._size

    def part(self, start: int, size: int) -> bytes:
        """At most so many bytes of the body from `start` on; b"" at its end."""
        while not self._is_whole and (self._size <= start or self._error is not None):
            self._read_on()
        return part_of(self._kept, start, size)

    def open_file(self) -> IO[bytes]:
        """A file with the whole body, which is read when somebody reads the file."""
        return io.BufferedReader(PartsFile(self), CHUNK_BYTES)

    def _read_on(self, *, keep: bool = True) -> None:
        """Read the next bytes."""
        if self._error is not None:
            raise self._error
        try:
            chunk = self._next_chunk()
        except (UnreadableBody, TooLarge) as error:
            self.close()
            self._error = error
            raise
        if chunk and keep:
            self._kept = extended(self._kept, chunk)

    def _next_chunk(self) -> bytes:
        most = self._limit + 1 if self._length is None else self._length
        try:
            chunk: bytes = self._source.read(min(most - self._size, CHUNK_BYTES))
        except OSError as error:  # a reset, a timeout, a broken chunk
            raise UnreadableBody(CUT_SHORT) from error
        self._size += len(chunk)
        if self._size > self._limit:
            raise TooLarge
        if not chunk and self._length is not None:
            raise UnreadableBody(CUT_SHORT)
        self._is_whole = not chunk or self._size == self._length
        return chunk


def put_body_back(environ: Environ, body: bytes | Body) -> None:
    """Let the app read a body that was read already."""
    if isinstance(body, bytes):
        environ["wsgi.input"] = io.BytesIO(body)
        mark_read(environ, len(body))
    else:
        environ["wsgi.input"] = body.open_file()
        mark_read(environ, body.size)


def mark_read(environ: Environ, size: int) -> None:
    """Declare a body that has been read: its length is known, and its file ends by itself."""
    environ["wsgi.input_terminated"] = True
    environ["CONTENT_LENGTH"] = str(size)
    environ.pop("HTTP_TRANSFER_ENCODING", None)
