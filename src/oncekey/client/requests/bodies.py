"""Bodies of the requests library's requests and responses, read as far as they can be held.

Bytes stay as they came: decoding is for the session above. Must not know what a body means.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import requests
import urllib3
from urllib3.exceptions import ProtocolError

from oncekey.client.body_reader import Incoming, Pace, declared_length
from oncekey.client.errors import NotSent
from oncekey.client.requests.urllib3_hooks import Head

_PART_BYTES: Final = 65_536
_SHORTEST_SECONDS: Final = 0.001  # 0 would mean "do not wait at all"
_CUT: Final = "the connection ended in the middle of the response's head"
_BODILESS: Final = frozenset({*range(100, 200), 204, 304})


# --- responses -----------------------------------------------------------------------------------


def take(
    response: requests.Response, most: int, pace: Pace, own: float | None, *, flows_on: bool
) -> bytes | None:
    """Read a response's body; None where there is more than `most`, which then flows on with the
    caller's `own` timeout for reading, or is given up. No part is waited for beyond the deadline.
    Whatever is raised, all is closed."""
    if not most:
        return None
    raw: urllib3.HTTPResponse = response.raw
    head_ended = getattr(raw._original_response, "head_ended", None)
    seen = Incoming(most, pace, raw.headers)
    try:
        if head_ended is False:
            raise ProtocolError(_CUT)
        while part := _next(raw, pace.left(_SHORTEST_SECONDS), own):
            if seen.overflows(part):
                if flows_on:
                    if pace.left(_SHORTEST_SECONDS) is not None:
                        _set_timeout(raw, own)
                    response.raw = _again(raw, _Rest(seen.body(), raw))
                else:
                    _leave_empty(response)
                return None
        if head_ended is None and not seen.parts and _may_be_cut(raw):
            raise ProtocolError(_CUT)
    except BaseException:
        _leave_empty(response)
        raise
    response.close()  # all of it was read, so this gives the connection back
    response.raw = _again(raw, io.BytesIO(seen.body()))
    return seen.body()


def _next(raw: urllib3.HTTPResponse, left: float | None, own: float | None) -> bytes:
    if left is not None:
        _set_timeout(raw, left if own is None else min(own, left))
    part: bytes = raw.read1(_PART_BYTES, decode_content=False)
    return part


def _set_timeout(raw: urllib3.HTTPResponse, seconds: float | None) -> None:
    """For what is read of it next. Not where all has been read: its connection is in the pool
    again, and perhaps somebody else's."""
    head = raw._original_response
    if isinstance(head, Head) and not head.isclosed():
        with suppress(OSError):
            head.socket.settimeout(seconds)


def _may_be_cut(raw: urllib3.HTTPResponse) -> bool:
    """Whether a response without a body may have been cut in its head, where nobody has noticed
    if it was: in a pool that is not of ours. A server that means to end a body by closing should
    say so."""
    framed = "Content-Length" in raw.headers or "Transfer-Encoding" in raw.headers
    closes = "close" in raw.headers.get("Connection", "").lower()
    return raw.version >= 11 and raw.status not in _BODILESS and not framed and not closes


def _again(raw: urllib3.HTTPResponse, body: Any) -> urllib3.HTTPResponse:
    """The same response over another source of the same bytes."""
    return urllib3.HTTPResponse(
        body=body,
        headers=raw.headers,
        status=raw.status,
        version=raw.version,
        version_string=raw.version_string,
        reason=raw.reason,
        preload_content=False,
        decode_content=False,
        original_response=raw._original_response,  # where cookies are read from
        retries=raw.retries,
        request_url=raw.geturl(),
    )


def _leave_empty(response: requests.Response) -> None:
    """Close it. Without what described the body, what is left can still be looked at."""
    response.close()
    for headers in (response.headers, response.raw.headers):
        for name in ("Content-Encoding", "Content-Length", "Transfer-Encoding"):
            headers.pop(name, None)
    response.raw = _again(response.raw, io.BytesIO())


class _Rest(io.RawIOBase):
    """What was read of a body that is too large to hold, and then the rest as it comes."""

    def __init__(self, begun: bytes, raw: urllib3.HTTPResponse) -> None:
        self._begun = io.BytesIO(begun)
        self._raw = raw

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return self._begun.read() + (self._raw.read(decode_content=False) or b"")
        return self._begun.read(size) or self._raw.read(size, decode_content=False) or b""

    def read1(self, size: int = _PART_BYTES) -> bytes:
        return self._begun.read(size) or self._raw.read1(size, decode_content=False) or b""

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
            self._raw.release_conn()
        super().close()


# --- requests ------------------------------------------------------------------------------------


class _HalfRead:
    """In place of a body that was read in part and cannot be read again: what is left of it would
    be sent for the whole."""

    def __iter__(self) -> Iterator[bytes]:
        raise NotSent(
            "the request's body comes from an iterator or a stream, and some of it was read when "
            "the request was refused before. Make the request anew. Nothing was sent"
        )


def load(request: requests.PreparedRequest, most: int) -> bytes:
    """Read a request's body, so that it can be sent again. Raises NotSent beyond `most` bytes."""
    body: Any = request.body
    if body is None:
        return b""
    if isinstance(body, str):
        content = body.encode()  # as urllib3 does; the request keeps its text
    elif isinstance(body, bytes):
        content = body
    else:
        if (declared_length(request.headers) or 0) > most:
            raise _too_large(most)
        content = _load(request, body, most)
    if len(content) > most:
        raise _too_large(most)
    return content


def _load(request: requests.PreparedRequest, body: Any, most: int) -> bytes:
    start = None
    with suppress(AttributeError, OSError, ValueError):  # a pipe, a socket, not a file at all
        start = body.tell()
    try:
        content = _read(body, most)
    except BaseException:
        try:
            body.seek(start)
        except (AttributeError, TypeError, OSError, ValueError):
            request.body = _HalfRead()  # type: ignore[assignment]
        raise
    request.body = content
    request._body_position = None  # type: ignore[attr-defined]  # there is nothing to rewind
    return content


def _read(body: Any, most: int) -> bytes:
    parts: Iterable[Any] = body
    if hasattr(body, "read"):
        parts = iter(lambda: body.read(_PART_BYTES) or None, None)
    held = bytearray()
    for part in parts:
        held += part.encode() if isinstance(part, str) else part
        if len(held) > most:
            raise _too_large(most)
    return bytes(held)


def _too_large(most: int) -> NotSent:
    return NotSent(
        f"the request's body has more than {most} bytes; it must be held in memory to be sent "
        "again. Give the adapter a larger body_max=. Nothing was sent"
    )
