"""What a request's body says, whatever way it was written: the part of a fingerprint that needs
parsing.

JSON with its members in any order, form fields, and the parts of a multipart form (whose boundary
differs between retries) come out alike. What cannot be parsed strictly is compared byte by byte:
that may refuse a retry, it never takes two requests for one. Owns the limits on decoding.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import parse_qsl

from oncekey.http.extras import MissingDependency, needs

with needs("http"):
    import multipart
    import rfc8785

if not hasattr(multipart, "MultipartError"):
    # python-multipart had this name too, and still answers to it where the other is missing.
    raise MissingDependency(
        "the module 'multipart' that is installed here is python-multipart's, another package than "
        "oncekey's guards for HTTP need: pip install 'python-multipart>=0.0.18' 'oncekey[http]'",
        name="multipart",
    )

# Longer documents are compared byte by byte: putting them in order would stop everybody else.
CANONICAL_MAX_BYTES: Final = 256 * 1024
FORM_FIELDS_MAX: Final = 1_000
PARTS_MAX: Final = 128
CODINGS_MAX: Final = 3
GZIP_MEMBERS_MAX: Final = 16

Fields = Sequence[str]


class UnreadableBody(Exception):
    """The body is not what its headers say."""


class TooLarge(Exception):
    """Decoded, the body is longer than is allowed. `most` where that is not the rule's limit."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.most = most


class _NotStrictError(ValueError):
    """JSON that two readers may understand differently."""


# --- content codings ------------------------------------------------------------------------


def decoded(body: bytes, codings: bytes, limit: int) -> tuple[bytes, bytes]:
    """The body without its gzip and deflate, and the codings that are left on it.

    A compressed body tells when it was compressed, so retries may differ in it.
    """
    names = [name.strip().lower() for name in codings.split(b",") if name.strip()]
    if len(names) > CODINGS_MAX:
        raise UnreadableBody(f"it has {len(names)} codings; at most {CODINGS_MAX} are undone")
    while names and names[-1] in (b"gzip", b"x-gzip", b"deflate", b"identity"):
        name = names.pop()
        if name != b"identity":
            body = _inflated(body, name, limit)
    return body, b",".join(names)


def _inflated(body: bytes, name: bytes, limit: int) -> bytes:
    bits = zlib.MAX_WBITS if name == b"deflate" else zlib.MAX_WBITS | 16
    made = bytearray()
    members = 0
    while body:
        members += 1
        if members > (1 if name == b"deflate" else GZIP_MEMBERS_MAX):
            raise UnreadableBody(f"its {name.decode()} has too many parts")
        stream = zlib.decompressobj(bits)
        try:
            made += stream.decompress(body, limit + 1 - len(made))
        except zlib.error as error:
            raise UnreadableBody(f"its {name.decode()} cannot be decoded: {error}") from None
        if len(made) > limit:
            raise TooLarge
        if not stream.eof:
            raise UnreadableBody(f"its {name.decode()} is cut short")
        body = stream.unused_data  # gzip files may be joined
    return bytes(made)


# --- forms of content -----------------------------------------------------------------------


def canonical(
    body: bytes, media: bytes, boundary: str, ignore: Fields, only: Fields | None
) -> bytes:
    """Bytes that are the same for the same content; their first one tells the form."""
    if media == b"application/json" or media.endswith(b"+json"):
        return _json(body, ignore, only)
    if media == b"application/x-www-form-urlencoded":
        return _form(body, ignore, only)
    if media == b"multipart/form-data" and boundary:
        return _multipart(body, boundary, ignore, only)
    return b"r" + body


def _json(body: bytes, ignore: Fields, only: Fields | None) -> bytes:
    if len(body) > CANONICAL_MAX_BYTES:
        if ignore or only is not None:
            raise TooLarge(CANONICAL_MAX_BYTES)  # byte by byte it could not be compared
        return b"r" + body
    try:
        value = _strict(body.decode("utf-8"))
        if only is not None and (chosen := _chosen(value, only)) is not None:
            return b"o" + rfc8785.dumps(chosen)
        for path in ignore:
            _drop(value, path.split("."))
        return b"j" + rfc8785.dumps(value)
    except (ValueError, ArithmeticError, RecursionError):  # a CanonicalizationError is a ValueError
        return b"r" + body


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _NotStrictError("a member comes twice")
    return made


def _exact(text: str) -> float:
    """Only numbers that a float holds as they are written: 0.1, not 0.10000000000000001."""
    number = float(text)
    if Decimal(text) != Decimal(repr(number)):
        raise _NotStrictError(f"{text} is no float")
    return number


def _refuse(text: str) -> Any:
    raise _NotStrictError(f"{text} is no JSON")


# Made once: to make it costs more than to use it.
_strict = json.JSONDecoder(
    object_pairs_hook=_members, parse_float=_exact, parse_constant=_refuse
).decode


def _chosen(value: Any, only: Fields) -> list[Any] | None:
    """The chosen members by name; one that is not there is not the same as null. None where the
    document has none of them: then all of it counts, for a misspelt name must not turn the
    comparison off."""
    made: list[Any] = []
    for path in sorted(set(only)):
        here = value
        for name in path.split("."):
            if not isinstance(here, dict) or name not in here:
                made.append([path])
                break
            here = here[name]
        else:
            made.append([path, here])
    return made if any(len(pair) > 1 for pair in made) else None


def _drop(value: Any, path: list[str]) -> None:
    for name in path[:-1]:
        if not isinstance(value, dict) or name not in value:
            return
        value = value[name]
    if isinstance(value, dict):
        value.pop(path[-1], None)


def _wanted(names: Iterable[str], ignore: Fields, only: Fields | None) -> Callable[[str], bool]:
    """Which fields of a form count; all of them where it has none of the chosen ones."""
    if only is None or not any(name in only for name in names):
        return lambda name: name not in ignore
    return lambda name: name in only


def _form(body: bytes, ignore: Fields, only: Fields | None) -> bytes:
    try:
        pairs = parse_qsl(
            body.decode("utf-8"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=FORM_FIELDS_MAX,
        )
    except ValueError:
        return b"r" + body
    wanted = _wanted((name for name, _ in pairs), ignore, only)
    return b"f" + json.dumps([pair for pair in pairs if wanted(pair[0])]).encode()


def _multipart(body: bytes, boundary: str, ignore: Fields, only: Fields | None) -> bytes:
    try:
        parser = multipart.MultipartParser(
            io.BytesIO(body),
            boundary,
            content_length=len(body),
            strict=True,
            part_limit=PARTS_MAX,
            spool_limit=len(body) + 1,
            memory_limit=2 * len(body) + 1,
        )
        found = list(parser)
        wanted = _wanted((part.name for part in found), ignore, only)
        parts = [
            # All its headers as they are: frameworks differ in which of them they heed.
            [part.headerlist, blake2b(part.raw).hexdigest()]
            for part in found
            if wanted(part.name)
        ]
    except (multipart.MultipartError, ValueError, TypeError):
        return b"r" + body
    return b"m" + json.dumps(parts).encode()
