"""Encodes the responses that are stored in a key's record.

    2 bytes   the status
    1 byte    whether the body was omitted
    2 bytes   the number of headers, then for each of them the length of its name and of its value,
              4 bytes each
    the rest  names and values in the same order, then the body

The name of the codec is stored beside the bytes and contains the version of this format.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Any, Final

from oncekey.http.message import Headers, Response

_start = Struct(">H?H")
_HEADS_REMEMBERED: Final = 256


# The heads of most responses of an app are the same: they are remembered, encoded and decoded.


@lru_cache(_HEADS_REMEMBERED)
def _encoded_head(status: int, headers: Headers, omitted: bool) -> bytes:
    parts = [part for header in headers for part in header]
    lengths = Struct(f">{len(parts)}I").pack(*map(len, parts))
    return b"".join([_start.pack(status, omitted, len(headers)), lengths, *parts])


@lru_cache(_HEADS_REMEMBERED)
def _size_of_parts(lengths: bytes) -> int:
    """The size of all names and values, from the lengths that precede them."""
    return sum(Struct(f">{len(lengths) // 4}I").unpack(lengths))


@lru_cache(_HEADS_REMEMBERED)
def _decoded_head(head: bytes) -> tuple[int, Headers, bool]:
    status, omitted, count = _start.unpack_from(head)
    lengths = Struct(f">{2 * count}I")
    at = _start.size + lengths.size
    parts = []
    for length in lengths.unpack_from(head, _start.size):
        parts.append(head[at : at + length])
        at += length
    return status, tuple(zip(parts[::2], parts[1::2], strict=True)), omitted


class ResponseCodec:
    """The codec of `Response`."""

    name = "http1"
    exact = True

    def dump(self, value: Any, /) -> bytes:
        response: Response = value
        status, headers, body, omitted = response
        return _encoded_head(status, headers, omitted) + body

    def load(self, data: bytes, /) -> Response:
        _, _, count = _start.unpack_from(data)
        parts_at = _start.size + 8 * count
        body_at = parts_at + _size_of_parts(data[_start.size : parts_at])
        if body_at > len(data):
            raise ValueError("a stored response is cut short")
        status, headers, omitted = _decoded_head(data[:body_at])
        return Response(status, headers, data[body_at:], omitted)


CODEC: Final = ResponseCodec()
