"""Bodies of the requests library's requests and responses, read into memory as far as possible.

Bytes stay as they came, because the session decodes them. This module does not know what a body
means.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import requests
import urllib3
from urllib3.exceptions import ProtocolError

from oncekey.client.body_reader import BodyBuffer, ReadDeadline, declared_length
from oncekey.client.errors import NotSent
from oncekey.client.requests.urllib3_hooks import TrackedResponse

_PART_BYTES: Final = 65_536
_SHORTEST_SECONDS: Final = 0.001  # 0 would mean "do not wait at all"
_CUT_HEAD: Final = "the connection ended in the middle of the response's head"
_BODILESS: Final = frozenset({*range(100, 200), 204, 304})


# --- responses -----------------------------------------------------------------------------------


def read_response(
    response: requests.Response,
    limit: int,
    deadline: ReadDeadline,
    read_timeout: float | None,
    *,
    may_stream: bool,
) -> bytes | None:
    """Read the body of a response and return it; None if it has more than `limit` bytes.

    A body beyond the limit goes on streaming with the caller's `read_timeout`, or is closed unless
    it `may_stream`. No part is waited for beyond the deadline. If this raises, the response is
    closed.
    """
    if not limit:
        return None
    raw: urllib3.HTTPResponse = response.raw
    head_ended = getattr(raw._original_response, "head_ended", None)
    buffer = BodyBuffer(limit, deadline, raw.headers)
    try:
        if head_ended is False:
            raise ProtocolError(_CUT_HEAD)
        while part := _next_part(raw, deadline.seconds_left(_SHORTEST_SECONDS), read_timeout):
            if buffer.overflows_with(part):
                if may_stream:
                    if deadline.seconds_left(_SHORTEST_SECONDS) is not None:
                        _set_timeout(raw, read_timeout)
                    response.raw = _with_body(raw, _PartlyReadBody(buffer.content(), raw))
                else:
                    _drop_body(response)
                return None
        if head_ended is None and not buffer.parts and _may_be_cut(raw):
            raise ProtocolError(_CUT_HEAD)
    except BaseException:
        _drop_body(response)
        raise
    response.close()  # the body was read to its end, so this gives the connection back
    response.raw = _with_body(raw, io.BytesIO(buffer.content()))
    return buffer.content()


def _next_part(raw: urllib3.HTTPResponse, left: float | None, read_timeout: float | None) -> bytes:
    if left is not None:
        _set_timeout(raw, left if read_timeout is None else min(read_timeout, left))
    part: bytes = raw.read1(_PART_BYTES, decode_content=False)
    return part


def _set_timeout(raw: urllib3.HTTPResponse, seconds: float | None) -> None:
    """Set the timeout of the next read. If all has been read, nothing is set: the connection is in
    the pool again, and may be in use by another request."""
    tracked = raw._original_response
    if isinstance(tracked, TrackedResponse) and not tracked.isclosed():
        with suppress(OSError):
            tracked.socket.settimeout(seconds)


def _may_be_cut(raw: urllib3.HTTPResponse) -> bool:
    """True if a response without a body may have been cut in its head. It matters for responses
    from pools without our hooks, where nothing noticed the cut. A server that ends a body by
    closing the connection should say so."""
    framed = "Content-Length" in raw.headers or "Transfer-Encoding" in raw.headers
    closes = "close" in raw.headers.get("Connection", "").lower()
    return raw.version >= 11 and raw.status not in _BODILESS and not framed and not closes


def _with_body(raw: urllib3.HTTPResponse, body: Any) -> urllib3.HTTPResponse:
    """The same response, with another source of its bytes."""
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


def _drop_body(response: requests.Response) -> None:
    """Close a response, give it an empty body, and remove the headers that described the body it
    had, so that the rest of it can still be read."""
    response.close()
    for headers in (response.headers, response.raw.headers):
        for name in ("Content-Encoding", "Content-Length", "Transfer-Encoding"):
            headers.pop(name, None)
    response.raw = _with_body(response.raw, io.BytesIO())


class _PartlyReadBody(io.RawIOBase):
    """The part that was read of a body that is too large to hold, and then the rest as it comes."""

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


class _ConsumedBody:
    """Replaces a body that was read in part and cannot be read again: the rest of it would be sent
    as if it were the whole."""

    def __iter__(self) -> Iterator[bytes]:
        raise NotSent(
            "the request's body comes from an iterator or a stream, and some of it was read when "
            "the request was refused before. Make the request anew. Nothing was sent"
        )


def read_request(request: requests.PreparedRequest, limit: int) -> bytes:
    """Read the body of a request, so that it can be sent again. Raises NotSent if it has more than
    `limit` bytes."""
    body: Any = request.body
    if body is None:
        return b""
    if isinstance(body, str):
        content = body.encode()  # as urllib3 does; the request keeps its text
    elif isinstance(body, bytes):
        content = body
    else:
        if (declared_length(request.headers) or 0) > limit:
            raise _too_large(limit)
        content = _read_stream(request, body, limit)
    if len(content) > limit:
        raise _too_large(limit)
    return content


def _read_stream(request: requests.PreparedRequest, body: Any, limit: int) -> bytes:
    """Read a body that is not in memory, and put it into the request. If it is refused, it is
    rewound, or cannot be sent any more."""
    start = None
    with suppress(AttributeError, OSError, ValueError):  # a pipe, a socket, or not a file at all
        start = body.tell()
    try:
        content = _read_parts(body, limit)
    except BaseException:
        try:
            body.seek(start)
        except (AttributeError, TypeError, OSError, ValueError):
            request.body = _ConsumedBody()  # type: ignore[assignment]
        raise
    request.body = content
    request._body_position = None  # type: ignore[attr-defined]  # there is nothing to rewind
    return content


def _read_parts(body: Any, limit: int) -> bytes:
    parts: Iterable[Any] = body
    if hasattr(body, "read"):
        parts = iter(lambda: body.read(_PART_BYTES) or None, None)
    held = bytearray()
    for part in parts:
        held += part.encode() if isinstance(part, str) else part
        if len(held) > limit:
            raise _too_large(limit)
    return bytes(held)


def _too_large(limit: int) -> NotSent:
    return NotSent(
        f"the request's body has more than {limit} bytes; it must be held in memory to be sent "
        "again. Give the adapter a larger body_max=. Nothing was sent"
    )
