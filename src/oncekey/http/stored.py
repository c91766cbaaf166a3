"""Responses as bytes in a record: four bytes of length, a JSON head, the body as it is.

The codec's name carries the version, so that a later form is told from this one.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Any, Final

from oncekey.http.message import Response

_length = Struct(">I")


class ResponseCodec:
    """Takes and gives `Response`."""

    name = "http1"

    def dump(self, value: Any, /) -> bytes:
        response: Response = value
        head = json.dumps(
            {
                "status": response.status,
                "headers": [
                    [n.decode("latin-1"), v.decode("latin-1")] for n, v in response.headers
                ],
                "omitted": response.omitted,
            },
            separators=(",", ":"),
        ).encode()
        return b"".join((_length.pack(len(head)), head, response.body))

    def load(self, data: bytes, /) -> Response:
        (size,) = _length.unpack_from(data)
        start = _length.size
        head = json.loads(data[start : start + size])
        headers = tuple((n.encode("latin-1"), v.encode("latin-1")) for n, v in head["headers"])
        return Response(head["status"], headers, data[start + size :], bool(head["omitted"]))


CODEC: Final = ResponseCodec()
