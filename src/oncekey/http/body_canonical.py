"""What a request's body says, whatever way it was written: the part of a fingerprint that needs
parsing.

JSON with its members in any order, form fields, and the parts of a multipart form (whose boundary
differs between retries) come out alike. What cannot be parsed strictly is compared byte by byte:
that may refuse a retry, it never takes two requests for one. Owns the limits on decoding.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from hashlib import blake2b
from typing import IO, Any, Final
from urllib.parse import parse_qsl

from oncekey.http.missing_dependency import MissingDependency, needs
from oncekey.http.request_body import Body

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

# Longer documents are compared byte by byte: putting them in order takes too long.
CANONICAL_MAX_BYTES: Final = 256 * 1024
FORM_MAX_BYTES: Final = 1024 * 1024  # the same for the fields of a form, parts of a multipart aside
# Longer bodies than this are compared by a digest of theirs.
RAW_MAX_BYTES: Final = 64 * 1024
_INFLATED_AT_ONCE: Final = 64 * 1024
_PART_IN_MEMORY: Final = 64 * 1024
FORM_FIELDS_MAX: Final = 1_000
PARTS_MAX: Final = 128
CODINGS_MAX: Final = 3
GZIP_MEMBERS_MAX: Final = 16

_FORMS: Final = frozenset({b"application/x-www-form-urlencoded", b"multipart/form-data"})

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


def without_content_coding(body: Body, codings: bytes, limit: int) -> tuple[Body, bytes]:
    """The body without its gzip and deflate, and the codings that are left on it.

    A compressed body tells when it was compressed, so retries may differ in it. Where it had none,
    the body itself; else a new one, to be closed.
    """
    names = [name.strip().lower() for name in codings.split(b",") if name.strip()]
    if len(names) > CODINGS_MAX:
        raise UnreadableBody(f"it has {len(names)} codings; at most {CODINGS_MAX} are undone")
    given = body
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
            if coded is not given:
                coded.close()
    return body, b",".join(names)


def _inflate(body: Body, name: bytes, limit: int, made: Body) -> None:
    """Write what the body holds under its coding to `made`."""
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
            data = _decompress(stream, data, name, limit, made)
            if stream.eof:
                stream = None  # gzip files may be joined
    if stream is not None:
        raise UnreadableBody(f"its {name.decode()} is cut short")


def _decompress(stream: Any, data: bytes, name: bytes, limit: int, made: Body) -> bytes:
    """Take in these bytes; what is left of them belongs to the next part."""
    while True:
        try:
            out = stream.decompress(data, _INFLATED_AT_ONCE)
        except zlib.error as error:
            raise UnreadableBody(f"its {name.decode()} cannot be decoded: {error}") from None
        if out:
            made.write(out)
        if made.size > limit:
            raise TooLarge
        if stream.eof:
            rest: bytes = stream.unused_data
            return rest
        data = stream.unconsumed_tail
        if not data and len(out) < _INFLATED_AT_ONCE:
            return b""


# --- forms of content -----------------------------------------------------------------------


def is_parsed_type(media: bytes) -> bool:
    """Whether a body of this kind is looked into, which takes time."""
    return media == b"application/json" or media.endswith(b"+json") or media in _FORMS


def canonical_bytes(
    body: Body, media: bytes, boundary: str, ignore: Fields, only: Fields | None
) -> bytes:
    """Bytes that are the same for the same content; their first one tells the form."""
    if media == b"application/json" or media.endswith(b"+json"):
        return _json(body, ignore, only)
    if media == b"application/x-www-form-urlencoded":
        return _form(body, ignore, only)
    if media == b"multipart/form-data" and boundary:
        return _multipart(body, boundary, ignore, only)
    return raw_bytes(body)


def raw_bytes(body: Body) -> bytes:
    """The body as it is, or a digest of it."""
    if body.size <= RAW_MAX_BYTES:
        return b"r" + body.read()
    return b"d%d:" % body.size + body.digest()


def _too_long(body: Body, most: int, ignore: Fields, only: Fields | None) -> bool:
    if body.size <= most:
        return False
    if ignore or only is not None:
        raise TooLarge(most)  # byte by byte it could not be compared
    return True


def _json(body: Body, ignore: Fields, only: Fields | None) -> bytes:
    if _too_long(body, CANONICAL_MAX_BYTES, ignore, only):
        return raw_bytes(body)
    try:
        value = _strict(body.read().decode("utf-8"))
        if only is not None and (chosen := _chosen(value, only)) is not None:
            return b"o" + rfc8785.dumps(chosen)
        for path in ignore:
            _drop(value, path.split("."))
        return b"j" + rfc8785.dumps(value)
    except (ValueError, ArithmeticError, RecursionError):  # a CanonicalizationError is a ValueError
        return raw_bytes(body)


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


def _form(body: Body, ignore: Fields, only: Fields | None) -> bytes:
    if _too_long(body, FORM_MAX_BYTES, ignore, only):
        return raw_bytes(body)
    try:
        pairs = parse_qsl(
            body.read().decode("utf-8"),
            keep_blank_values=True,
            strict_parsing=body.size > 0,
            errors="strict",
            max_num_fields=FORM_FIELDS_MAX,
        )
    except ValueError:
        return raw_bytes(body)
    wanted = _wanted((name for name, _ in pairs), ignore, only)
    return b"f" + json.dumps([pair for pair in pairs if wanted(pair[0])]).encode()


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
        wanted = _wanted((part.name for part in found), ignore, only)
        # All its headers as they are: frameworks differ in which of them they heed.
        parts = [[part.headerlist, _digest(part.file)] for part in found if wanted(part.name)]
    except (multipart.MultipartError, ValueError, TypeError):
        return raw_bytes(body)
    finally:
        for part in found:
            part.close()
    return b"m" + json.dumps(parts).encode()


def _digest(file: IO[bytes]) -> str:
    made = blake2b()
    file.seek(0)
    while chunk := file.read(_PART_IN_MEMORY):
        made.update(chunk)
    return made.hexdigest()
