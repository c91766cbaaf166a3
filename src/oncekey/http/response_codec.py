"""Encodes the responses that are stored in a key's record.

    2 bytes   the status
    1 byte    whether the body was omitted
    2 bytes   the number of headers, then for each of them the length of its name and of its value,
              4 bytes each
    the rest  names and values in the same order, then the body

The name of the codec is stored beside the bytes and contains the version of this format.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from oncekey.http.message import Response

_head = Struct(">H?H")
_lengths = Struct(">II")


class ResponseCodec:
    """The codec of `Response`."""

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
