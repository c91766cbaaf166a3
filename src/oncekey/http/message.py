"""Requests and responses as plain data, the common form of all adapters; and the types of ASGI.

Header names are in lower case. A response's headers are in their original order, duplicates
included; of a request only single headers are read, so these are by name. A body is in memory while
it is small, else in a temporary file; it is hashed while it is written, so that comparing a large
one never reads it again. Whoever creates a body closes it. Knows no framework and no loop.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from hashlib import blake2b
from tempfile import TemporaryFile
from typing import IO, Any, Final, NamedTuple, Protocol

BODY_SPILL_BYTES: Final = 1024 * 1024  # a longer request is in a file, not in memory
SPILL_BYTES: Final = 1024 * 1024  # so is a longer response
HOLD_MAX_BYTES: Final = 64 * 1024 * 1024  # a longer response is not held back to its end
CHUNK_BYTES: Final = 64 * 1024  # what is read of a file at once

Headers = tuple[tuple[bytes, bytes], ...]
TextHeaders = list[tuple[str, str]]  # as WSGI and the frameworks have them
RequestHeaders = dict[bytes, list[bytes]]  # the values of all lines of a name, in their order

# ASGI's own types.
Scope = dict[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]


class Request(NamedTuple):
    """A client's request. `path` and `query` are not decoded. `template` is the path of the route
    that serves it, such as "/charges/{id}", and `name` that route's name, where they are known."""

    method: str
    path: bytes
    query: bytes
    headers: RequestHeaders
    body: bytes | Body = b""
    template: str = ""
    name: str = ""


class Response(NamedTuple):
    """A response. `omitted` means that its body is missing because it was too large to store."""

    status: int
    headers: Headers
    body: bytes = b""
    omitted: bool = False


def headers_by_name(lines: Iterable[tuple[bytes, bytes]]) -> RequestHeaders:
    """A request's headers, whose names are in lower case."""
    found: RequestHeaders = {}
    for name, value in lines:
        found.setdefault(name, []).append(value)
    return found


def encoded_headers(lines: Iterable[tuple[str, str]]) -> Headers:
    """The headers of a response, from those that an app or a framework gives."""
    return tuple((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in lines)


def text_headers(headers: Headers) -> TextHeaders:
    """The same headers as WSGI and the frameworks have them."""
    return [(header.decode("latin-1"), content.decode("latin-1")) for header, content in headers]


# --- bodies of requests ---------------------------------------------------------------------------


class UnreadableBody(Exception):
    """The body does not agree with its headers, or did not arrive whole."""


class TooLarge(Exception):
    """The decoded body exceeds a limit: `limit`, or the rule's max_request if that is None; in
    bytes, or in `unit`."""

    def __init__(self, limit: int | None = None, unit: str = "bytes") -> None:
        super().__init__()
        self.limit = limit
        self.unit = unit


class Body:
    """The body of a request. Write all of it, then read it any number of times, but not at once."""

    def __init__(self, data: bytes = b"") -> None:
        self.size = 0
        self._chunks: list[bytes] = []
        self._file: IO[bytes] | None = None  # replaces the chunks of a long body
        self._hash: blake2b | None = None
        if data:
            self.write(data)

    def write(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self._file is None:
            self._chunks.append(chunk)
            if self.size > BODY_SPILL_BYTES:
                self._spill()
            return
        assert self._hash is not None
        self._hash.update(chunk)
        self._file.write(chunk)

    def _spill(self) -> None:
        self._hash = blake2b(digest_size=32)
        self._file = TemporaryFile()  # noqa: SIM115
        for chunk in self._chunks:
            self._hash.update(chunk)
            self._file.write(chunk)
        self._chunks = []

    def read(self) -> bytes:
        """The whole body as bytes; for bodies that are known to be small."""
        if self._file is None:
            if len(self._chunks) > 1:
                self._chunks = [b"".join(self._chunks)]
            return self._chunks[0] if self._chunks else b""
        self._file.seek(0)
        return self._file.read()

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """The chunks of the body from `start` on, including those that are written meanwhile."""
        if self._file is None:
            rest = self.read()[start:]
            if rest:
                yield rest
            return
        while True:
            self._file.seek(start)
            chunk = self._file.read(CHUNK_BYTES)
            if not chunk:
                return
            start += len(chunk)
            yield chunk

    def part(self, start: int, size: int) -> bytes:
        """At most so many bytes of the body from `start` on; b"" at its end."""
        if self._file is None:
            return self.read()[start : start + size]
        self._file.seek(start)
        return self._file.read(size)

    def open_file(self) -> IO[bytes]:
        """A file with the whole body. Several of one body do not disturb each other."""
        if self._file is None:
            return io.BytesIO(self.read())
        return io.BufferedReader(PartsFile(self), CHUNK_BYTES)

    def digest(self) -> bytes:
        if self._hash is not None:
            return self._hash.digest()
        return blake2b(self.read(), digest_size=32).digest()

    def close(self) -> None:
        """Free the memory and the file."""
        if self._file is not None:
            self._file.close()
        self._chunks = []

    def __del__(self) -> None:
        # A run may outlive its request, and a request its run: the last reference closes the file.
        self.close()


def extended(body: bytes | Body, chunk: Any) -> bytes | Body:
    """What was read so far and its next chunk: bytes while it is a single short chunk."""
    if type(chunk) is not bytes:
        chunk = bytes(chunk)  # the server may use its buffer again
    if not body and len(chunk) <= BODY_SPILL_BYTES:
        return chunk  # type: ignore[no-any-return]
    if isinstance(body, bytes):
        body = Body(body)
    body.write(chunk)
    return body


def part_of(body: bytes | Body, start: int, size: int) -> bytes:
    """At most so many bytes of a body from `start` on."""
    return body[start : start + size] if isinstance(body, bytes) else body.part(start, size)


class Parts(Protocol):
    """A body that is read part by part."""

    @property
    def size(self) -> int: ...

    def part(self, start: int, size: int, /) -> bytes: ...


class PartsFile(io.RawIOBase):
    """A file with the bytes of a body. It has a position of its own, and the body stays open while
    somebody has the file."""

    def __init__(self, body: Parts) -> None:
        self._body = body
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._body.part(self._position, len(buffer))
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            offset += self._body.size
        self._position = max(0, offset)
        return self._position
