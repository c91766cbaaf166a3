"""Bodies of httpx's requests and responses, read as far as they can be held.

Bytes stay as they came: decoding is for the client above. Owns reading in both colours; must not
know what a body means.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Final

import anyio
import httpx

from oncekey.client.body_reader import Incoming, Pace
from oncekey.client.errors import NotSent

# For what lies in the socket when the deadline has passed: an event loop has to get round to it.
LATE_SECONDS: Final = 0.1


class Held(httpx.ByteStream):
    """A body that is all there, for both colours, as often as it is wanted."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.body = body


class Rest(httpx.SyncByteStream):
    """What was read of a body that is too large to hold, and then the rest as it comes."""

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


class AsyncRest(httpx.AsyncByteStream):
    """The same for event loops."""

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


def take(response: httpx.Response, most: int, pace: Pace, *, flows_on: bool) -> bytes | None:
    """Read a response's body; None where there is more than `most`, which then flows on, or is
    given up. Not waited for beyond the deadline, between two parts; within one, httpx's own
    timeout holds, which it reads once per body. Whatever is raised, all is closed."""
    stream = response.stream
    assert isinstance(stream, httpx.SyncByteStream)
    if not most:
        return None
    seen = Incoming(most, pace, response.headers)
    parts = iter(stream)
    try:
        for part in parts:
            if seen.overflows(part):
                response.stream = Rest(seen.parts, parts, stream)
                if not flows_on:
                    response.stream.close()
                    _leave_empty(response)
                return None
        stream.close()
    except BaseException:
        with suppress(Exception):  # what it broke by says more
            Rest([], parts, stream).close()
        _leave_empty(response)
        raise
    response.stream = held = Held(seen.body())
    return held.body


async def take_async(
    response: httpx.Response, most: int, pace: Pace, *, flows_on: bool
) -> bytes | None:
    """The same for event loops, where a part is cut at the deadline too."""
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    if not most:
        return None
    seen = Incoming(most, pace, response.headers)
    parts = aiter(stream)
    try:
        while (part := await _next(parts, pace)) is not None:
            if seen.overflows(part):
                response.stream = AsyncRest(seen.parts, parts, stream)
                if not flows_on:
                    await response.stream.aclose()
                    _leave_empty(response)
                return None
        await stream.aclose()
    except BaseException:
        with anyio.CancelScope(shield=True), suppress(Exception):
            await AsyncRest([], parts, stream).aclose()
        _leave_empty(response)
        raise
    response.stream = held = Held(seen.body())
    return held.body


async def _next(parts: AsyncIterator[bytes], pace: Pace) -> bytes | None:
    """The next part, or None at the end. Cut from outside: the caller's own timeout for reading is
    left as it is, for a body that flows on."""
    with anyio.move_on_after(pace.left(LATE_SECONDS)):
        return await anext(parts, None)
    raise pace.cut()


def _leave_empty(response: httpx.Response) -> None:
    """A response whose body was given up, without what described that body."""
    response.stream = Held(b"")
    for name in ("Content-Encoding", "Content-Length", "Transfer-Encoding"):
        response.headers.pop(name, None)


# --- requests ------------------------------------------------------------------------------------


def load(request: httpx.Request, most: int) -> bytes:
    """Read a request's body, so that it can be sent again. Raises NotSent beyond `most` bytes."""
    _check_declared(request, most)
    if isinstance(request.stream, Held):
        return request.stream.body
    assert isinstance(request.stream, httpx.SyncByteStream)
    body = bytearray()
    for part in request.stream:
        body += part
        if len(body) > most:
            raise _too_large(most)
    request.stream = held = Held(bytes(body))
    return held.body


async def load_async(request: httpx.Request, most: int) -> bytes:
    _check_declared(request, most)
    if isinstance(request.stream, Held):
        return request.stream.body
    assert isinstance(request.stream, httpx.AsyncByteStream)
    body = bytearray()
    async for part in request.stream:
        body += part
        if len(body) > most:
            raise _too_large(most)
    request.stream = held = Held(bytes(body))
    return held.body


def _check_declared(request: httpx.Request, most: int) -> None:
    declared = request.headers.get("Content-Length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:18]) > most:
        raise _too_large(most)


def _too_large(most: int) -> NotSent:
    return NotSent(
        f"the request's body has more than {most} bytes; it must be held in memory to be sent "
        "again. Give the client a larger body_max=. Nothing was sent"
    )
