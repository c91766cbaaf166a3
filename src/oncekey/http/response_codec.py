"""Responses as bytes in a record: the status, the headers with their lengths, the body as it is.

    2 bytes   the status
    1 byte    whether the body was left out
    2 bytes   how many headers, then for each 4 bytes of its name's length, 4 of its value's
    the rest  names and values in this order, then the body

The codec's name carries the version, so that a later form is told from this one.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from oncekey.http.message import Response

_head = Struct(">H?H")
_lengths = Struct(">II")


class ResponseCodec:
    """Takes and gives `Response`."""

    name = "http1"

    def dump(self, value: Any, /) -> bytes:
        response: Response = value
        headers = response.headers
        parts = [_head.pack(response.status, response.omitted, len(headers))]
        parts += [_lengths.pack(len(name), len(line)) for name, line in headers]
        for header in headers:
            parts += header
        parts.append(response.body)
        return b"".join(parts)

    def load(self, data: bytes, /) -> Response:
        status, omitted, count = _head.unpack_from(data)
        at = _head.size
        sizes = [_lengths.unpack_from(data, at + _lengths.size * i) for i in range(count)]
        at += _lengths.size * count
        headers = []
        for name, line in sizes:
            middle = at + name
            headers.append((data[at:middle], data[middle : middle + line]))
            at = middle + line
        if at > len(data):
            raise ValueError("a stored response is cut short")
        return Response(status, tuple(headers), data[at:], omitted)


CODEC: Final = ResponseCodec()
