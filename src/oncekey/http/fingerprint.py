"""What a request asks, as bytes: method, path, query, content type and content.

Credentials, cookies, tracing and the way a body travelled are not part of it. Every part is
preceded by its length, so no two different requests give the same bytes.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

import multipart

from oncekey.http.bodies import canonical, decoded
from oncekey.http.message import Request, first
from oncekey.http.rules import Rule

_lengths = Struct(">6I").pack


def described(request: Request, rule: Rule) -> bytes:
    """The bytes to compare. Raises bodies.UnreadableBody and bodies.TooLarge."""
    codings = first(request.headers, b"content-encoding")
    body, left = decoded(request.body, codings, rule.max_request)
    media, boundary, kind = _content_type(first(request.headers, b"content-type"))
    if left:
        content = b"r" + body  # under a coding that we do not know
    else:
        content = canonical(body, media, boundary, rule.ignore, rule.only)
    parts = (
        request.method.encode("ascii"),
        request.path,
        _query(request.query),
        kind,
        left,
        content,
    )
    return _lengths(*map(len, parts)) + b"".join(parts)


def _query(query: bytes) -> bytes:
    """Parameters by name; several of one name stay in their order."""
    if b"&" not in query:
        return query
    parts: list[bytes] = query.split(b"&")
    ordered = sorted(parts, key=_name)
    return b"&".join(ordered)


def _name(part: bytes) -> bytes:
    return part.partition(b"=")[0]


@lru_cache(256)
def _content_type(line: bytes) -> tuple[bytes, str, bytes]:
    """The media type, the boundary of its parts, and all of it but that boundary, in one form."""
    if not line:
        return b"", "", b""
    try:
        media, options = multipart.parse_options_header(line.decode("latin-1"))
    except ValueError:
        return b"", "", line
    media = media.strip().lower()
    boundary = options.pop("boundary", "") if media.startswith("multipart/") else ""
    if options.get("charset", "").lower().replace("-", "") == "utf8":
        del options["charset"]  # the default of all that we parse
    rest = "".join(f";{name}={options[name]}" for name in sorted(options))
    return media.encode("latin-1"), boundary, (media + rest).encode("latin-1")
