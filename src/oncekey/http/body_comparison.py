"""Gives a request's body a comparable form, so that retries may write the same content differently.

Bodies are equal if they have the same JSON members in any order, the same form fields, or the same
parts of a multipart form, whose boundary differs between retries. A body that cannot be parsed
strictly is compared byte by byte: that may refuse a retry, but never takes two different requests
for one. Owns the limits on decoding.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import IO, Any, Final
from urllib.parse import unquote_to_bytes

from oncekey.http.canonical_json import (
    NOT_PLAIN,
    Slices,
    canonical_json,
    encode_plain,
    parse_plain,
    parse_strict,
)
from oncekey.http.message import Body, TooLarge, UnreadableBody
from oncekey.http.missing_dependency import MissingDependency, needs

with needs("http"):
    import multipart

if not hasattr(multipart, "MultipartError"):
    # python-multipart once had this module name too, and still has it where multipart is missing.
    raise MissingDependency(
        "the module 'multipart' that is installed here is python-multipart's, another package than "
        "oncekey's guards for HTTP need: pip install 'python-multipart>=0.0.18' 'oncekey[http]'",
        name="multipart",
    )

# Longer JSON documents are compared byte by byte, because sorting them takes too long.
CANONICAL_MAX_BYTES: Final = 256 * 1024
FORM_MAX_BYTES: Final = 1024 * 1024  # the same limit for URL-encoded forms
# So are short documents that take long all the same: a few hundred bytes of gzip hold 65,000
# floats. Counted are the commas and the beginnings of objects and arrays; the escapes of JSON's
# texts, and those of a form.
VALUES_MAX: Final = 5_000
ESCAPES_MAX: Final = 30_000
RAW_MAX_BYTES: Final = 64 * 1024  # longer bodies are compared by their digest
_INFLATED_AT_ONCE: Final = 64 * 1024
_PART_IN_MEMORY: Final = 64 * 1024
FORM_FIELDS_MAX: Final = 1_000
_SLICE_ESCAPES: Final = 1_000  # of a form; half a millisecond
PARTS_MAX: Final = 128
CODINGS_MAX: Final = 3
GZIP_MEMBERS_MAX: Final = 16

_FORMS: Final = frozenset({b"application/x-www-form-urlencoded", b"multipart/form-data"})

Fields = Sequence[str]


# --- content codings ------------------------------------------------------------------------------


def without_content_coding(body: Body, codings: bytes, limit: int) -> tuple[Body, bytes]:
    """Undo gzip and deflate. Returns the decoded body, and the unknown codings still on it.

    The bytes of a compressed body may differ between retries, since gzip has a timestamp. Returns
    `body` itself if it has no coding, else a new Body, which the caller closes.
    """
    names = [name.strip().lower() for name in codings.split(b",") if name.strip()]
    if len(names) > CODINGS_MAX:
        raise UnreadableBody(f"it has {len(names)} codings; at most {CODINGS_MAX} are undone")
    sent = body
    while names and names[-1] in (b"gzip", b"x-gzip", b"deflate", b"identity"):
        name = names.pop()
        if name == b"identity":
            continue
        coded, body = body, Body()
        try:
            _inflate(coded, name, limit, body)
        except BaseException:
            body.close()
            raise
        finally:
            if coded is not sent:
                coded.close()
    return body, b",".join(names)


def _inflate(body: Body, name: bytes, limit: int, decoded: Body) -> None:
    """Write the decoded content of `body` to `decoded`."""
    bits = zlib.MAX_WBITS if name == b"deflate" else zlib.MAX_WBITS | 16
    members = 0
    stream: Any = None
    for chunk in body.chunks():
        data = chunk
        while data:
            if stream is None:
                members += 1
                if members > (1 if name == b"deflate" else GZIP_MEMBERS_MAX):
                    raise UnreadableBody(f"its {name.decode()} has too many parts")
                stream = zlib.decompressobj(bits)
            data = _decompress(stream, data, name, limit, decoded)
            if stream.eof:
                stream = None  # another gzip member may follow
    if stream is not None:
        raise UnreadableBody(f"its {name.decode()} is cut short")


def _decompress(stream: Any, data: bytes, name: bytes, limit: int, decoded: Body) -> bytes:
    """Decompress these bytes. Returns those that belong to the next gzip member."""
    while True:
        try:
            out = stream.decompress(data, _INFLATED_AT_ONCE)
        except zlib.error as error:
            raise UnreadableBody(f"its {name.decode()} cannot be decoded: {error}") from None
        if out:
            decoded.write(out)
        if decoded.size > limit:
            raise TooLarge
        if stream.eof:
            rest: bytes = stream.unused_data
            return rest
        data = stream.unconsumed_tail
        if not data and len(out) < _INFLATED_AT_ONCE:
            return b""


# --- comparable forms -----------------------------------------------------------------------------


def is_parsed_type(media: bytes) -> bool:
    """Whether bodies of this media type are parsed, which takes time."""
    return media == b"application/json" or media.endswith(b"+json") or media in _FORMS


def comparable_bytes(
    body: bytes | Body, media: bytes, boundary: str, ignore: Fields, only: Fields | None
) -> bytes:
    """Bytes that are equal for equal content; the first one says which form they have."""
    if media == b"application/json" or media.endswith(b"+json"):
        return _json(body, ignore, only)
    if isinstance(body, bytes):
        body = Body(body)
    if media == b"application/x-www-form-urlencoded":
        return _form(body, ignore, only)
    if media == b"multipart/form-data" and boundary:
        return _multipart(body, boundary, ignore, only)
    return raw_bytes(body)


def raw_bytes(body: Body) -> bytes:
    """The body as it is, or its digest."""
    if body.size <= RAW_MAX_BYTES:
        return b"r" + body.read()
    return b"d%d:" % body.size + body.digest()


def _is_too_long(body: Body, limit: int, ignore: Fields, only: Fields | None) -> bool:
    """Whether a body is too long to be parsed. Raises TooLarge if a rule compares parts of it,
    which is impossible without parsing."""
    return body.size > limit and _is_raw(limit, "bytes", ignore, only)


def _is_raw(limit: int, unit: str, ignore: Fields, only: Fields | None) -> bool:
    """Compare a body that exceeds a limit byte by byte; raises TooLarge where that is no way."""
    if ignore or only is not None:
        raise TooLarge(limit, unit)
    return True


def _has_too_many(counted: int, limit: int, unit: str, ignore: Fields, only: Fields | None) -> bool:
    """Whether a body has more of something than is looked into. Raises like _is_too_long."""
    return counted > limit and _is_raw(limit, unit, ignore, only)


def _json(body: bytes | Body, ignore: Fields, only: Fields | None) -> bytes:
    if isinstance(body, Body) and _is_too_long(body, CANONICAL_MAX_BYTES, ignore, only):
        return raw_bytes(body)
    data = body if isinstance(body, bytes) else body.read()
    if only is None and (value := parse_plain(data)) is not NOT_PLAIN:
        for path in ignore:
            _drop(value, path.split("."))
        return b"j" + encode_plain(value)
    return _any_json(body if isinstance(body, Body) else Body(data), ignore, only)


def _any_json(body: Body, ignore: Fields, only: Fields | None) -> bytes:
    """The same for documents that are not plain."""
    if _is_too_long(body, CANONICAL_MAX_BYTES, ignore, only):
        return raw_bytes(body)
    data = body.read()
    if _has_too_many(_values_in(data), VALUES_MAX, "JSON values", ignore, only):
        return raw_bytes(body)
    escapes = data.count(b"\\") - data.count(b"\\u")  # those by number are quick to undo
    if _has_too_many(escapes, ESCAPES_MAX, "escapes", ignore, only):
        return raw_bytes(body)
    try:
        slices = Slices()
        value = parse_strict(data.decode("utf-8"), slices)
        if only is not None and (selected := _selected(value, only)) is not None:
            return b"o" + canonical_json(selected, slices)
        for path in ignore:
            _drop(value, path.split("."))
        return b"j" + canonical_json(value, slices)
    except (ValueError, ArithmeticError, RecursionError):  # a CanonicalizationError is a ValueError
        return raw_bytes(body)


# A text, or what looks like one: it always matches from a quote on, so it takes linear time.
_json_text = re.compile(rb'"[^"\\]*(?:\\.?[^"\\]*)*(?:"|\Z)', re.DOTALL)


def _values_in(data: bytes) -> int:
    """How many values a JSON document has, nearly. It need not be JSON."""
    values = _beginnings_in(data)
    if values <= VALUES_MAX:
        return values
    texts = (data.count(b'"') - data.count(b'\\"')) // 2  # names of members and values
    if texts > 2 * VALUES_MAX:
        return texts
    return _beginnings_in(_json_text.sub(b"", data))  # without those in texts


def _beginnings_in(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def _selected(value: Any, only: Fields) -> list[Any] | None:
    """The members that `only` names; a missing one differs from null. None if the document has
    none of them: it is then compared whole, so that a misspelt name does not turn the comparison
    off."""
    selected: list[Any] = []
    for path in sorted(set(only)):
        member = value
        for name in path.split("."):
            if not isinstance(member, dict) or name not in member:
                selected.append([path])
                break
            member = member[name]
        else:
            selected.append([path, member])
    return selected if any(len(pair) > 1 for pair in selected) else None


def _drop(value: Any, path: list[str]) -> None:
    for name in path[:-1]:
        if not isinstance(value, dict) or name not in value:
            return
        value = value[name]
    if isinstance(value, dict):
        value.pop(path[-1], None)


def _is_compared(
    names: Iterable[str], ignore: Fields, only: Fields | None
) -> Callable[[str], bool]:
    """A function that says which fields of a form are compared: all of them if the form has none
    that `only` names."""
    if only is None or not any(name in only for name in names):
        return lambda name: name not in ignore
    return lambda name: name in only


def _form(body: Body, ignore: Fields, only: Fields | None) -> bytes:
    if _is_too_long(body, FORM_MAX_BYTES, ignore, only):
        return raw_bytes(body)
    data = body.read()
    if _has_too_many(data.count(b"%"), ESCAPES_MAX, "escapes", ignore, only):
        return raw_bytes(body)
    try:
        pairs = _form_pairs(data.decode("utf-8"))
    except ValueError:
        return raw_bytes(body)
    is_compared = _is_compared((name for name, _ in pairs), ignore, only)
    return b"f" + json.dumps([pair for pair in pairs if is_compared(pair[0])]).encode()


def _form_pairs(text: str) -> list[tuple[str, str]]:
    """The fields of a form: what parse_qsl gives if it is strict and keeps blank values."""
    if not text:
        return []
    fields = text.split("&", FORM_FIELDS_MAX)
    if len(fields) > FORM_FIELDS_MAX:
        raise ValueError("it has too many fields")
    slices = Slices()
    pairs = []
    for field in fields:
        name, equals, value = field.partition("=")
        if not equals:
            raise ValueError("a field has no value")
        slices.count()
        pairs.append((_unescaped(name, slices), _unescaped(value, slices)))
    return pairs


def _unescaped(text: str, slices: Slices) -> str:
    """A name or a value of a form, decoded in slices. Raises ValueError if it is no UTF-8."""
    first, *rest = text.replace("+", " ").encode("utf-8").split(b"%")
    decoded = [first]
    for begin in range(0, len(rest), _SLICE_ESCAPES):
        if begin:
            slices.pause()
        decoded.append(unquote_to_bytes(b"%" + b"%".join(rest[begin : begin + _SLICE_ESCAPES])))
    return b"".join(decoded).decode("utf-8")


def _multipart(body: Body, boundary: str, ignore: Fields, only: Fields | None) -> bytes:
    found: list[Any] = []
    try:
        parser = multipart.MultipartParser(
            body.open_file(),
            boundary,
            content_length=body.size,
            strict=True,
            part_limit=PARTS_MAX,
            spool_limit=_PART_IN_MEMORY,
            memory_limit=(PARTS_MAX + 1) * _PART_IN_MEMORY,
            disk_limit=body.size + 1,
        )
        for part in parser:
            found.append(part)
        is_compared = _is_compared((part.name for part in found), ignore, only)
        # All headers of a part count, because frameworks differ in which of them they use.
        parts = [[part.headerlist, _digest(part.file)] for part in found if is_compared(part.name)]
    except (multipart.MultipartError, ValueError, TypeError):
        return raw_bytes(body)
    finally:
        for part in found:
            part.close()
    return b"m" + json.dumps(parts).encode()


def _digest(file: IO[bytes]) -> str:
    digest = blake2b()
    file.seek(0)
    while chunk := file.read(_PART_IN_MEMORY):
        digest.update(chunk)
    return digest.hexdigest()
