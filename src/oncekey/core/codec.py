"""Outcomes as bytes: a versioned envelope around what a codec wrote, and the codec of JSON.

    byte 0      envelope version
    byte 1      kind: value, error or tombstone
    byte 2      length n of the codec's name
    n bytes     the codec's name
    the rest    the codec's bytes; JSON written here for errors and tombstones

A codec turns one value into bytes and back: `name`, `dump(value) -> bytes`, `load(bytes) -> value`.
An outcome of unknown version, kind or codec is refused (NotReplayable): nothing is guessed, and the
operation is not run again.

The encoder of JSON is made once: `json.JSONEncoder.encode` makes a C encoder on every call, which
costs more than encoding a small value. Pythons without that C encoder use `json.JSONEncoder`
itself. Keys of dicts that JSON would silently change are refused. The codecs of types are in
typed_codecs.py. This module knows no store and no HTTP.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from json import encoder as _json
from typing import Any, Final, NamedTuple, Protocol

from oncekey.core.errors import NotReplayable

Encode = Callable[[Any], str]

# What JSON gives back unchanged, and nobody can change meanwhile.
SCALARS: Final = frozenset((str, int, float, bool, type(None)))


def make_encode(*, sort_keys: bool, ensure_ascii: bool, default: Callable[[Any], Any]) -> Encode:
    """A function that encodes compactly and refuses NaN and infinities."""
    plain = json.JSONEncoder(
        sort_keys=sort_keys,
        ensure_ascii=ensure_ascii,
        default=default,
        separators=(",", ":"),
        allow_nan=False,
    ).encode
    text = _json.encode_basestring_ascii if ensure_ascii else _json.encode_basestring
    try:
        # Without a table of visited containers (None) one encoder may be used by many threads; a
        # cycle then ends in a RecursionError.
        make: Any = vars(_json)["c_make_encoder"]
        chunks = make(None, default, text, None, ":", ",", sort_keys, False, False)
        works = "".join(chunks({"b": [1, "ä"], "a": None}, 0))
    except (KeyError, TypeError):
        return plain
    if works != plain({"b": [1, "ä"], "a": None}):
        return plain
    join = "".join

    def encode(value: Any) -> str:
        return join(chunks(value, 0))

    return encode


def refuse_nontext_keys(value: Any) -> None:
    """Raise TypeError for a dict key that is not text: JSON would turn the key 1 into "1"."""
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str and not isinstance(key, str):
                raise TypeError(f"dict key {key!r} is not text and would change in JSON")
            if type(item) not in SCALARS:
                refuse_nontext_keys(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            if type(item) not in SCALARS:
                refuse_nontext_keys(item)


ENVELOPE_VERSION = 1
ERROR_MESSAGE_MAX_CHARS = 4_000
NAME_MAX_CHARS = 100
_PLAIN_NAME = b"json"


class Codec(Protocol):
    """Turns results into bytes and back. A codec with a true attribute `exact` promises that its
    values cannot be changed and that `load` gives one equal to that which was dumped: then a first
    run returns its own value, and nothing is read back."""

    @property
    def name(self) -> str: ...
    def dump(self, value: Any, /) -> bytes: ...
    def load(self, data: bytes, /) -> Any: ...


class Kind(enum.IntEnum):
    """What an envelope holds."""

    VALUE = 1
    ERROR = 2
    TOMBSTONE = 3


class StoredValue(NamedTuple):
    """A value, as the bytes of the codec of that name."""

    codec: str
    data: bytes


class StoredError(NamedTuple):
    """The type and the message of an error."""

    type: str
    message: str


class Tombstone(NamedTuple):
    """The operation ran, and its value was not stored: it is too large, or no codec takes it."""

    reason: str
    too_large: bool


class Unreadable(NamedTuple):
    """Bytes that this version does not understand."""

    reason: str


Stored = StoredValue | StoredError | Tombstone | Unreadable


class JSONCodec:
    """Plain JSON values. Tuples come back as lists; anything else that would change is refused."""

    name = "json"

    def __init__(self) -> None:
        self._encode = make_encode(sort_keys=False, ensure_ascii=False, default=_refuse)
        self._scan: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]

    def dump(self, value: Any, /) -> bytes:
        text = self._encode(value)
        refuse_nontext_keys(value)
        return text.encode("utf-8")

    def pack_and_load(self, value: Any) -> tuple[bytes, Any]:
        """The value in its envelope, and what reading that gives. Of a dict or a list that is a
        copy: whoever holds the first one may change it before it is returned."""
        text = self._encode(value)
        if type(value) not in SCALARS:
            refuse_nontext_keys(value)
            value = self._scan(text, 0)[0]
        return PLAIN_HEAD + text.encode("utf-8"), value

    def load(self, data: bytes, /) -> Any:
        text = data.decode("utf-8")
        try:
            value, end = self._scan(text, 0)
        except StopIteration as error:
            raise ValueError("there is no value") from error
        if end != len(text):
            raise ValueError("something follows the stored value")
        return value


def pack_value(codec: Codec, value: Any) -> bytes:
    """A value in its envelope. Raises what the codec raises (TypeError, ValueError)."""
    return head_of(codec) + codec.dump(value)


def pack_bytes(name: str, data: bytes) -> bytes:
    """Bytes that the codec of this name would have written, in their envelope."""
    return _head(Kind.VALUE, name.encode()) + data


def head_of(codec: Codec) -> bytes:
    """What stands before every value that this codec has written."""
    name = codec.name
    return _heads.get(name) or _add_head(name)


def _add_head(name: str) -> bytes:
    if len(_heads) >= _HEADS_MAX:
        _heads.clear()
    head = _heads[name] = _head(Kind.VALUE, name.encode())
    return head


def pack_error(error: BaseException) -> bytes:
    """An error's type and message; never its traceback or attributes."""
    try:
        message = str(error)
    except Exception:  # it is the user's class, and its __str__ may raise
        message = "(this error has no readable message)"
    info = {"type": type(error).__name__, "message": message[:ERROR_MESSAGE_MAX_CHARS]}
    return _head(Kind.ERROR, _PLAIN_NAME) + json.dumps(info).encode()


def pack_tombstone(reason: str, *, too_large: bool) -> bytes:
    """An envelope that says why the value was not stored."""
    info = {"reason": reason, "too_large": too_large}
    return _head(Kind.TOMBSTONE, _PLAIN_NAME) + json.dumps(info).encode()


def unpack(body: bytes) -> Stored:
    """What an envelope holds. Never raises: bytes that cannot be read give an Unreadable."""
    if len(body) < 3:
        return Unreadable("the stored outcome is empty or cut short")
    if body.startswith(PLAIN_HEAD):
        return StoredValue("json", body[len(PLAIN_HEAD) :])
    if body[0] != ENVELOPE_VERSION:
        return Unreadable(
            f"the stored outcome has format {body[0]}, this version reads {ENVELOPE_VERSION}; "
            "it was written by another release of oncekey"
        )
    end = 3 + body[2]
    data = body[end:]
    try:
        name = body[3:end].decode("ascii")
        if body[1] == Kind.VALUE:
            return StoredValue(name, data)
        info = json.loads(data)
        if body[1] == Kind.ERROR:
            return StoredError(str(info["type"]), str(info["message"]))
        if body[1] == Kind.TOMBSTONE:
            return Tombstone(str(info["reason"]), bool(info["too_large"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Unreadable("the stored outcome is damaged")
    return Unreadable(f"the stored outcome is of unknown kind {body[1]}")


def value_of(stored: StoredValue, codec: Codec) -> Any:
    """The decoded value; raises NotReplayable if it cannot be decoded."""
    if stored.codec != codec.name:
        codec = _older(codec, stored.codec)
    try:
        return codec.load(stored.data)
    except Exception as error:  # the codec may be the user's
        raise NotReplayable(undecodable(error)) from error


def _older(codec: Codec, name: str) -> Codec:
    """The codec of this name among those that `codec` has replaced."""
    for older in getattr(codec, "older", ()):
        if older.name == name:
            found: Codec = older
            return found
    raise NotReplayable(
        f"the answer was stored by codec {name!r}, this operation uses {codec.name!r}"
    )


def undecodable(error: Exception) -> str:
    """What an error says whose cause is that a codec could not read a stored answer."""
    return f"the stored answer cannot be decoded: {type(error).__name__}: {error}"


def _head(kind: Kind, name: bytes) -> bytes:
    return bytes([ENVELOPE_VERSION, kind, len(name)]) + name


PLAIN_HEAD = _head(Kind.VALUE, _PLAIN_NAME)
_HEADS_MAX = 1_000
_heads = {"json": PLAIN_HEAD}


def _refuse(value: Any) -> Any:
    raise TypeError(
        f"a {type(value).__name__} is no plain JSON value; return text, numbers, lists and dicts, "
        "or give codec= a dataclass, a pydantic model or a codec of your own"
    )


JSON = JSONCodec()
