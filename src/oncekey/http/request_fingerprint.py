"""Turns a request into the bytes that are compared between retries.

They consist of method, path, query, content type and content, but not of credentials, cookies,
tracing headers or transfer codings. Every part is preceded by its length, so that different
requests never have the same bytes.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from oncekey.http.body_comparison import (
    comparable_bytes,
    is_parsed_type,
    raw_bytes,
    without_content_coding,
)
from oncekey.http.message import BODY_SPILL_BYTES, Body, Request, RequestHeaders
from oncekey.http.rules import Rule

# Bodies up to this size are parsed on the event loop, longer ones in a thread.
INLINE_MAX_BYTES: Final = 16 * 1024
# So are those with more commas: 16 KiB hold 4,000 floats, which take ten times as long as a text.
INLINE_MAX_COMMAS: Final = 500
_SURELY_FEW_BYTES: Final = 2 * INLINE_MAX_COMMAS
_lengths = Struct(">6I").pack

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER: Final = re.compile(rf"""[ \t]*;[ \t]*({_TOKEN})=({_TOKEN}|"[^"\\]*")""")
_MEDIA: Final = re.compile(rf"[ \t]*({_TOKEN}/{_TOKEN})((?:{_PARAMETER.pattern})*)[ \t]*")


def fingerprint_bytes(request: Request, rule: Rule) -> bytes:
    """Return the bytes to compare. Raises UnreadableBody and TooLarge."""
    lines = request.headers.get(b"content-encoding")
    if lines is None:
        return _joined_parts(request, rule, request.body, b"")
    sent = request.body if isinstance(request.body, Body) else Body(request.body)
    body, codings = without_content_coding(sent, b",".join(lines), rule.max_request)
    try:
        return _joined_parts(request, rule, body, codings)
    finally:
        if body is not sent:
            body.close()


def is_slow_to_compare(request: Request) -> bool:
    """Whether `fingerprint_bytes` would block the event loop for too long."""
    body = request.body
    size = body.size if isinstance(body, Body) else len(body)
    if b"content-encoding" in request.headers:
        return size > 0  # its decoded size is unknown
    if size <= _SURELY_FEW_BYTES:
        return False
    if size <= INLINE_MAX_BYTES:
        data = body.read() if isinstance(body, Body) else body
        return data.count(b",") > INLINE_MAX_COMMAS and _is_parsed(request)
    return size > BODY_SPILL_BYTES or _is_parsed(request)


def _is_parsed(request: Request) -> bool:
    media = _content_type(_joined(request.headers, b"content-type")).media
    return is_parsed_type(media)


def _joined_parts(request: Request, rule: Rule, body: bytes | Body, codings: bytes) -> bytes:
    method, path, query, headers = request[:4]
    line = _joined(headers, b"content-type")
    media, boundary, normalized = _content_type(line)
    if codings:  # unknown ones are left on the body
        content = raw_bytes(body if isinstance(body, Body) else Body(body))
    else:
        content = comparable_bytes(body, media, boundary, rule.ignore, rule.only)
    # A boundary matters only if the parts could not be parsed.
    kind = normalized if not boundary or content[:1] == b"m" else line
    if query:
        query = _query(query)
    parts = (
        _verb(method),
        path,
        query,
        kind,
        codings,
        content,
    )
    joined = _lengths(*map(len, parts)) + b"".join(parts)
    names = rule.compared_header_names
    return joined + _compared_headers(headers, names) if names else joined


@lru_cache(16)
def _verb(method: str) -> bytes:
    return method.upper().encode("ascii", "backslashreplace")


def _compared_headers(headers: RequestHeaders, names: tuple[bytes, ...]) -> bytes:
    """The headers that a rule compares. A missing header differs from an empty one; several lines
    of a header are joined, as a server may have done."""
    compared: list[tuple[str, str | None]] = []
    for name in names:
        values = [value.strip() for value in headers.get(name, ())]
        joined = b", ".join(values).decode("latin-1") if values else None
        compared.append((name.decode("latin-1"), joined))
    return json.dumps(compared).encode()


def _joined(headers: RequestHeaders, name: bytes) -> bytes:
    """All lines of a header, joined by commas."""
    lines = headers.get(name)
    if lines is None:
        return b""
    return lines[0] if len(lines) == 1 else b",".join(lines)


def _query(query: bytes) -> bytes:
    """The parameters sorted by name; those of one name stay in their order."""
    if b"&" not in query:
        return query
    parts: list[bytes] = query.split(b"&")
    ordered = sorted(parts, key=_name)
    return b"&".join(ordered)


def _name(part: bytes) -> bytes:
    """A parameter's decoded name, as the app sees it."""
    return unquote_to_bytes(part.partition(b"=")[0].replace(b"+", b" "))


class _ContentType(NamedTuple):
    media: bytes = b""
    boundary: str = ""
    normalized: bytes = b""  # all of it but the boundary


@lru_cache(256)
def _content_type(line: bytes) -> _ContentType:
    """Parse a Content-Type; one that is malformed or ambiguous is compared as it was written."""
    text = line.decode("latin-1")
    found = _MEDIA.fullmatch(text)
    if found is None:
        return _ContentType(normalized=line)
    media = found[1].lower()
    pairs = [(n.lower(), value) for n, value in _PARAMETER.findall(found[2])]
    options = dict(pairs)
    if len(options) != len(pairs):
        return _ContentType(normalized=line)
    boundary = options.pop("boundary", "") if media.startswith("multipart/") else ""
    if options.get("charset", "").strip('"').lower().replace("-", "") == "utf8":
        del options["charset"]  # the default of every type that is parsed
    rest = "".join(f";{name}={options[name]}" for name in sorted(options))
    normalized = (media + rest).encode("latin-1")
    return _ContentType(media.encode("latin-1"), boundary.strip('"'), normalized)
