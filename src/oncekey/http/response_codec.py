"""Encodes the responses that are stored in a key's record, in the format of core/answer.py.

The first version of the format, `http1`, is still read.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Any, Final

from oncekey.core.answer import HTTP_CODEC, NEWLINE, decode_head, encode_head
from oncekey.core.commands import from_fields
from oncekey.http.message import Response

_HEADS_REMEMBERED: Final = 256


# The heads of most responses of an app are the same: they are remembered, encoded and decoded.


_encoded_head: Final = lru_cache(_HEADS_REMEMBERED)(encode_head)
_decoded_head: Final = lru_cache(_HEADS_REMEMBERED)(decode_head)


_http1_start: Final = Struct(">H?H")


class Http1Codec:
    """Reads what the release before wrote: the status, whether the body was omitted, the number of
    headers, the lengths of their names and values, these themselves, and the body."""

    name = "http1"

    def dump(self, value: Any, /) -> bytes:
        raise TypeError("new responses are written as http2")

    def load(self, data: bytes, /) -> Response:
        status, omitted, count = _http1_start.unpack_from(data)
        lengths = Struct(f">{2 * count}I")
        at = _http1_start.size + lengths.size
        parts = []
        for length in lengths.unpack_from(data, _http1_start.size):
            parts.append(data[at : at + length])
            at += length
        if at > len(data):
            raise ValueError("a stored response is cut short")
        return Response(
            status, tuple(zip(parts[::2], parts[1::2], strict=True)), data[at:], omitted
        )


class ResponseCodec:
    """The codec of `Response`. Answers of the codecs in `older` are read too."""

    name = HTTP_CODEC
    exact = True
    older = (Http1Codec(),)

    def dump(self, value: Any, /) -> bytes:
        response: Response = value
        status, headers, body, omitted = response
        return _encoded_head(status, headers, omitted) + body

    def load(self, data: bytes, /) -> Response:
        body_at = data.index(NEWLINE) + 1
        status, headers, omitted = _decoded_head(data[:body_at])
        return from_fields(Response, (status, headers, data[body_at:], omitted))


CODEC: Final = ResponseCodec()
