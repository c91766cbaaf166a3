"""Reads a request's body and holds it: in memory while it is small, else in a temporary file.

A body is hashed while it is written, so that comparing a large one never reads it again. Owns the
file; whoever creates a body closes it. Knows no framework and no loop.
"""

from __future__ import annotations

import enum
import io
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from hashlib import blake2b
from tempfile import TemporaryFile
from typing import IO, Any, Final, Protocol

BODY_SPILL_BYTES: Final = 1024 * 1024  # a longer body is in a file, not in memory
_CHUNK: Final = 64 * 1024


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
            chunk = self._file.read(_CHUNK)
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
        return io.BufferedReader(PartsFile(self), _CHUNK)

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


class ReadResult(enum.Enum):
    """How the reading of a request ended."""

    WHOLE = "the body was read to its end"
    GONE = "the client went away"
    TOO_LARGE = "the body is longer than allowed"


_WHOLE: Final = ReadResult.WHOLE  # by itself, because to look a member up takes long


class BodyReader:
    """Reads the body of an ASGI request within a limit, keeps it, and gives it to the app.

    body        what was read so far; bytes while it is a single short part, as most bodies are
    is_whole    whether the body was read to its end and kept
    is_given    whether the app has got all of it
    """

    body: bytes | Body = b""
    is_whole = False
    is_given = False
    _size = 0
    _has_more = True  # of a body that is too large
    _passed_on = 0  # bytes that `pass_on` has given to the app
    _parts: Iterator[bytes] | None = None  # of the rest, once the app asks for it
    _next = b""

    def __init__(
        self, receive: Callable[[], Awaitable[MutableMapping[str, Any]]], max_bytes: int
    ) -> None:
        self._receive = receive
        self._max_bytes = max_bytes

    async def read(self, *, keep: bool) -> ReadResult:
        """Read the whole body, or what is left of it. A body that is not kept is read only because
        the connection's next request comes behind it."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return ReadResult.GONE
            chunk = message.get("body") or b""
            self._size += len(chunk)
            if self._size > self._max_bytes:
                self._has_more = message.get("more_body", False)
                return ReadResult.TOO_LARGE
            if keep:
                self.body = extended(self.body, chunk)
            if not message.get("more_body", False):
                self.is_whole = keep
                return _WHOLE

    async def discard(self, max_bytes: int) -> None:
        """Read so many more bytes at most of a body that is too large, and keep nothing."""
        while self._has_more and max_bytes > 0:
            message = await self._receive()
            is_gone = message["type"] == "http.disconnect"
            self._has_more = not is_gone and message.get("more_body", False)
            max_bytes -= len(message.get("body") or b"")

    async def pass_on(self) -> MutableMapping[str, Any] | ReadResult:
        """The client's next message, for an app that reads the body before we do. It is kept."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            return ReadResult.GONE
        chunk = message.get("body") or b""
        if self._size + len(chunk) > self._max_bytes:
            self._has_more = message.get("more_body", False)
            return ReadResult.TOO_LARGE
        self._size += len(chunk)
        self.body = extended(self.body, chunk)
        self._passed_on = self._size
        self.is_whole = self.is_given = not message.get("more_body", False)
        return message

    def next_part(self) -> MutableMapping[str, Any]:
        """The app's next message: what was read and not yet given to it, part by part."""
        if isinstance(self.body, bytes):
            self.is_given = True
            rest = self.body[self._passed_on :]
            return {"type": "http.request", "body": rest, "more_body": False}
        if self._parts is None:
            self._parts = self.body.chunks(self._passed_on)
            self._next = next(self._parts, b"")
        part, self._next = self._next, next(self._parts, b"")
        self.is_given = not self._next
        return {"type": "http.request", "body": part, "more_body": not self.is_given}

    async def receive(self) -> MutableMapping[str, Any]:
        """The `receive` of an app that is not held back: what was read, then what comes."""
        return await self._receive() if self.is_given else self.next_part()

    def close(self) -> None:
        """Free the memory and the file."""
        if isinstance(self.body, Body):
            self.body.close()
