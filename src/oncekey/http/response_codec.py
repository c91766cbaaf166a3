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

from oncekey.http.message import Response

_head = Struct(">H?H")


@lru_cache(64)
def _head_with_lengths(headers: int) -> Struct:
    """The head of a response with so many headers, and the lengths of these."""
    return Struct(">H?H" + "II" * headers)


class ResponseCodec:
    """The codec of `Response`."""

    name = "http1"

    def dump(self, value: Any, /) -> bytes:
        response: Response = value
        status, headers, body, omitted = response
        parts = [part for header in headers for part in header]
        head = _head_with_lengths(len(headers)).pack(
            status, omitted, len(headers), *map(len, parts)
        )
        return b"".join([head, *parts, body])

    def load(self, data: bytes, /) -> Response:
        _, _, count = _head.unpack_from(data)
        head = _head_with_lengths(count)
        status, omitted, _, *lengths = head.unpack_from(data)
        at = head.size
        parts = []
        for length in lengths:
            parts.append(data[at : at + length])
            at += length
        if at > len(data):
            raise ValueError("a stored response is cut short")
        headers = tuple(zip(parts[::2], parts[1::2], strict=True))
        return Response(status, headers, data[at:], omitted)


CODEC: Final = ResponseCodec()
