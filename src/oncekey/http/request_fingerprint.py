"""What a request asks, as bytes: method, path, query, content type and content.

Credentials, cookies, tracing and the way a body travelled are not part of it. Every part is
preceded by its length, so no two different requests give the same bytes.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from oncekey.http.body_canonical import (
    canonical_bytes,
    is_parsed_type,
    raw_bytes,
    without_content_coding,
)
from oncekey.http.message import Headers, Request, header_values
from oncekey.http.request_body import BODY_SPILL_BYTES, Body
from oncekey.http.rules import Rule

# Bodies up to here are looked into at once, longer ones in a thread.
INLINE_MAX_BYTES: Final = 16 * 1024
_lengths = Struct(">6I").pack

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER: Final = re.compile(rf"""[ \t]*;[ \t]*({_TOKEN})=({_TOKEN}|"[^"\\]*")""")
_MEDIA: Final = re.compile(rf"[ \t]*({_TOKEN}/{_TOKEN})((?:{_PARAMETER.pattern})*)[ \t]*")


def fingerprint_bytes(request: Request, rule: Rule) -> bytes:
    """The bytes to compare. Raises bodies.UnreadableBody and bodies.TooLarge."""
    given = request.body if isinstance(request.body, Body) else Body(request.body)
    body, left = without_content_coding(
        given, _joined(request.headers, b"content-encoding"), rule.max_request
    )
    try:
        return _described(request, rule, body, left)
    finally:
        if body is not given:
            body.close()


def is_slow_to_compare(request: Request) -> bool:
    """Whether `described` would hold up an event loop."""
    size = request.body.size if isinstance(request.body, Body) else len(request.body)
    if header_values(request.headers, b"content-encoding"):
        return size > 0  # nobody knows how much is in it
    if size <= INLINE_MAX_BYTES:
        return False
    media = _content_type(_joined(request.headers, b"content-type")).media
    return size > BODY_SPILL_BYTES or is_parsed_type(media)


def _described(request: Request, rule: Rule, body: Body, left: bytes) -> bytes:
    line = _joined(request.headers, b"content-type")
    content_type = _content_type(line)
    if left:
        content = raw_bytes(body)  # under a coding that we do not know
    else:
        content = canonical_bytes(
            body, content_type.media, content_type.boundary, rule.ignore, rule.only
        )
    # The boundary of a form counts where its parts could not be told.
    is_form = content[:1] == b"m"
    kind = content_type.kind if is_form or not content_type.boundary else line
    method = request.method.upper().encode("ascii", "backslashreplace")
    parts = (method, request.path, _query(request.query), kind, left, content)
    told = _lengths(*map(len, parts)) + b"".join(parts)
    return told + _chosen(request.headers, rule.compared) if rule.compared else told


def _chosen(headers: Headers, names: tuple[bytes, ...]) -> bytes:
    """The headers that a rule wants compared. One that is missing is not an empty one; several
    lines are one, as servers may have joined them."""
    found = [(name, [value.strip() for value in header_values(headers, name)]) for name in names]
    told = [[n.decode("latin-1"), b", ".join(v).decode("latin-1") if v else None] for n, v in found]
    return json.dumps(told).encode()


def _joined(headers: Headers, name: bytes) -> bytes:
    """All lines of a header as one, as HTTP has it."""
    return b",".join(header_values(headers, name))


def _query(query: bytes) -> bytes:
    """Parameters by name; several of one name stay in their order."""
    if b"&" not in query:
        return query
    parts: list[bytes] = query.split(b"&")
    ordered = sorted(parts, key=_name)
    return b"&".join(ordered)


def _name(part: bytes) -> bytes:
    """However it was written: an app sees the same parameter."""
    return unquote_to_bytes(part.partition(b"=")[0].replace(b"+", b" "))


class _ContentType(NamedTuple):
    media: bytes = b""
    boundary: str = ""
    kind: bytes = b""  # all of it but the boundary, in one form


@lru_cache(256)
def _content_type(line: bytes) -> _ContentType:
    """What can be read in one way only; anything else counts as it was written."""
    text = line.decode("latin-1")
    found = _MEDIA.fullmatch(text)
    if found is None:
        return _ContentType(kind=line)
    media = found[1].lower()
    pairs = [(n.lower(), value) for n, value in _PARAMETER.findall(found[2])]
    options = dict(pairs)
    if len(options) != len(pairs):
        return _ContentType(kind=line)
    boundary = options.pop("boundary", "") if media.startswith("multipart/") else ""
    if options.get("charset", "").strip('"').lower().replace("-", "") == "utf8":
        del options["charset"]  # the default of all that we parse
    rest = "".join(f";{name}={options[name]}" for name in sorted(options))
    kind = (media + rest).encode("latin-1")
    return _ContentType(media.encode("latin-1"), boundary.strip('"'), kind)
