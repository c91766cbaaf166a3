"""Bodies of httpx's requests and responses, read into memory as far as they can be held.

Bytes stay as they came, because the httpx client decodes them. This module does not know what a
body means.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Final

import anyio
import httpx

from oncekey.client.body_reader import BodyBuffer, ReadDeadline
from oncekey.client.errors import NotSent

# After the deadline an event loop still needs a moment to read what is already in the socket.
LATE_SECONDS: Final = 0.1


class BufferedBody(httpx.ByteStream):
    """A whole body in memory, which sync and async clients can read any number of times."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.content = body


class PartlyReadBody(httpx.SyncByteStream):
    """The part that was read of a body that is too large to hold, and then the rest as it comes."""

    def __init__(
        self, parts: list[bytes], rest: Iterator[bytes], stream: httpx.SyncByteStream
    ) -> None:
        self._parts = parts
        self._rest = rest
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        while self._parts:
            yield self._parts.pop(0)
        yield from self._rest

    def close(self) -> None:
        if hasattr(self._rest, "close"):
            self._rest.close()
        self._stream.close()


class AsyncPartlyReadBody(httpx.AsyncByteStream):
    """The same for async clients."""

    def __init__(
        self, parts: list[bytes], rest: AsyncIterator[bytes], stream: httpx.AsyncByteStream
    ) -> None:
        self._parts = parts
        self._rest = rest
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._parts:
            yield self._parts.pop(0)
        async for part in self._rest:
            yield part

    async def aclose(self) -> None:
        if hasattr(self._rest, "aclose"):
            await self._rest.aclose()
        await self._stream.aclose()


# --- responses -----------------------------------------------------------------------------------


def read_response(
    response: httpx.Response, limit: int, deadline: ReadDeadline, *, may_stream: bool
) -> bytes | None:
    """Read the body of a response and return it; None if it has more than `limit` bytes.

    A body beyond the limit goes on streaming to the caller, or is closed unless it `may_stream`. No
    part is begun after the deadline; within one, httpx's own timeout holds, which it reads once per
    body. If this raises, the response is closed.
    """
    stream = response.stream
    assert isinstance(stream, httpx.SyncByteStream)
    if not limit:
        return None
    buffer = BodyBuffer(limit, deadline, response.headers)
    parts = iter(stream)
    try:
        for part in parts:
            if buffer.overflows_with(part):
                response.stream = PartlyReadBody(buffer.parts, parts, stream)
                if not may_stream:
                    response.stream.close()
                    _drop_body(response)
                return None
        stream.close()
    except BaseException:
        with suppress(Exception):  # the exception under way says more
            PartlyReadBody([], parts, stream).close()
        _drop_body(response)
        raise
    response.stream = body = BufferedBody(buffer.content())
    return body.content


async def read_response_async(
    response: httpx.Response, limit: int, deadline: ReadDeadline, *, may_stream: bool
) -> bytes | None:
    """The same for async clients, where the deadline also cuts a part short."""
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    if not limit:
        return None
    buffer = BodyBuffer(limit, deadline, response.headers)
    parts = aiter(stream)
    try:
        while (part := await _next_part(parts, deadline)) is not None:
            if buffer.overflows_with(part):
                response.stream = AsyncPartlyReadBody(buffer.parts, parts, stream)
                if not may_stream:
                    await response.stream.aclose()
                    _drop_body(response)
                return None
        await stream.aclose()
    except BaseException:
        with anyio.CancelScope(shield=True), suppress(Exception):
            await AsyncPartlyReadBody([], parts, stream).aclose()
        _drop_body(response)
        raise
    response.stream = body = BufferedBody(buffer.content())
    return body.content


async def _next_part(parts: AsyncIterator[bytes], deadline: ReadDeadline) -> bytes | None:
    """The next part, or None at the end. The deadline is kept by a cancel scope, so that the
    caller's own read timeout stays in place for a body that goes on streaming."""
    with anyio.move_on_after(deadline.seconds_left(LATE_SECONDS)):
        return await anext(parts, None)
    raise deadline.error()


def _drop_body(response: httpx.Response) -> None:
    """Give a response an empty body, and remove the headers that described the body it had."""
    response.stream = BufferedBody(b"")
    for name in ("Content-Encoding", "Content-Length", "Transfer-Encoding"):
        response.headers.pop(name, None)


# --- requests ------------------------------------------------------------------------------------


def read_request(request: httpx.Request, limit: int) -> bytes:
    """Read the body of a request, so that it can be sent again. Raises NotSent if it has more than
    `limit` bytes."""
    _check_declared(request, limit)
    if isinstance(request.stream, BufferedBody):
        return request.stream.content
    assert isinstance(request.stream, httpx.SyncByteStream)
    body = bytearray()
    for part in request.stream:
        body += part
        if len(body) > limit:
            raise _too_large(limit)
    request.stream = buffered = BufferedBody(bytes(body))
    return buffered.content


async def read_request_async(request: httpx.Request, limit: int) -> bytes:
    """The same for async clients."""
    _check_declared(request, limit)
    if isinstance(request.stream, BufferedBody):
        return request.stream.content
    assert isinstance(request.stream, httpx.AsyncByteStream)
    body = bytearray()
    async for part in request.stream:
        body += part
        if len(body) > limit:
            raise _too_large(limit)
    request.stream = buffered = BufferedBody(bytes(body))
    return buffered.content


def _check_declared(request: httpx.Request, limit: int) -> None:
    declared = request.headers.get("Content-Length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:18]) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> NotSent:
    return NotSent(
        f"the request's body has more than {limit} bytes; it must be held in memory to be sent "
        "again. Give the client a larger body_max=. Nothing was sent"
    )
