"""A JSON encoder that is made once, and a check for dict keys that JSON would silently change.

`json.JSONEncoder.encode` makes a C encoder on every call, which costs more than encoding a small
value. Pythons without that C encoder use `json.JSONEncoder` itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder as _json
from typing import Any, Final

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
