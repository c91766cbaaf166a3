"""Plain JSON has the bytes of the rfc8785 library; other documents are left to the library (I7).

Fingerprints of stored records depend on these bytes.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncekey.http.body_comparison import _any_json, _json
from oncekey.http.canonical_json import (
    NOT_PLAIN,
    PLAIN_MAX_BYTES,
    Slices,
    canonical_json,
    encode_plain,
    parse_plain,
)
from oncekey.http.message import Body

# Characters whose order or escape is special: beside the surrogates, and beyond them.
TEXTS = st.text(
    st.one_of(
        st.sampled_from('ab"\\/\x00\x1f\x7f\x80é\n\t\b\f\r\ud7ff\ue000\uffff\U00010000\U0010ffff'),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=6,
)
NUMBERS = st.one_of(
    st.integers(),
    st.integers(2**53 - 2, 2**53 + 2),
    st.integers(-(2**53) - 2, -(2**53) + 2),
    st.floats(allow_nan=True, allow_infinity=True),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)
# Pieces of JSON in any order: nearly all of it is broken.
WORDS = r'{ } [ ] , : " "a" "b":1 "a":2 1 - -0 00 1e2 0.1 NaN null true \u0041 "\ud800" ä'
PIECES = st.lists(
    st.sampled_from([*WORDS.split(), " ", "\n", "\ufeff", "9" * 16]), max_size=12
).map("".join)


def same_as_the_library(data: bytes, ignore: tuple[str, ...] = ()) -> None:
    assert _json(data, ignore, None) == _any_json(Body(data), ignore, None)
    assert _json(Body(data), ignore, None) == _any_json(Body(data), ignore, None)


@settings(max_examples=500, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_any_document_has_the_bytes_of_the_library(
    value: Any, ensure_ascii: bool, indent: int | None
) -> None:
    data = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent).encode()
    same_as_the_library(data)
    same_as_the_library(data, ("a", "a.b"))


@settings(max_examples=500, deadline=None)
@given(PIECES)
@example('{"a":1,"a":2}')
@example('{"a":"\\ud800"}')
@example('{"\U00010000":1,"\uffff":2}')
@example('{"a":-9007199254740992}')
@example('{"a":01}')
@example('["\x1f"]')
def test_broken_and_doubtful_documents_are_left_to_the_library(text: str) -> None:
    same_as_the_library(text.encode("utf-8", "surrogatepass"))


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_have_the_form_that_the_library_gives(data: bytes) -> None:
    same_as_the_library(data)


@pytest.mark.parametrize("depth", [1, 99, 100, 101, 500, 5_000])
def test_a_deep_document_has_the_form_that_the_library_gives(depth: int) -> None:
    same_as_the_library(b"[" * depth + b"]" * depth)
    same_as_the_library(b'{"a":' * depth + b"1" + b"}" * depth)


PLAIN: list[Any] = [
    {},
    [],
    {"cents": 500, "currency": "EUR"},
    {"card": "4242424242424242", "name": "Müller", "ok": True, "note": None, "lines": [1, -2, {}]},
    {"b\n": '"\\', "a": "\x7f", "ﬀ": ["日本"], "\uffff": 2**49},
]


@pytest.mark.parametrize("value", PLAIN)
def test_a_plain_document_needs_no_library(value: Any) -> None:
    """Otherwise the other tests would compare the library with itself."""
    data = json.dumps(value, ensure_ascii=False).encode()
    parsed = parse_plain(b" " + data + b"\r\n")
    assert parsed == value
    assert encode_plain(parsed) == rfc8785.dumps(value)


def canonical_or_refused(write: Any, value: Any) -> bytes | None:
    try:
        written: bytes = write(value)
    except ValueError:
        return None
    return written


@settings(max_examples=1_000, deadline=None)
@given(VALUES)
@example([0.0, -0.0, 1.0, -1.0, 1e15, 1e16, 1e20, 1e21, 1e22, 1e-4, 1e-5, 1e-6, 1e-7, 5e-324])
@example([123456789012345.67, -1e-7, 1.7976931348623157e308, 2**53 - 1, -(2**53) + 1])
@example([2**53])
@example(["\ud800"])
@example({"\ud800": 1})
@example({"\U00010000": 1, "\uffff": [{}, [], "", '\x00\x1f\x7f\u2028"\\/']})
def test_writer_of_any_document_has_the_bytes_of_the_library(value: Any) -> None:
    library = canonical_or_refused(rfc8785.dumps, value)
    assert canonical_or_refused(lambda one: canonical_json(one, Slices()), value) == library


@settings(max_examples=2_000, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_writer_of_numbers_has_the_bytes_of_the_library(number: float) -> None:
    assert canonical_json(number, Slices()) == rfc8785.dumps(number)


NOT_PLAIN_DOCUMENTS = [
    b"",
    b"1",
    b'"a"',
    b'{"a":1.0}',
    b'{"a":1e2}',
    b'{"a":NaN}',
    b'{"a":1,"a":1}',
    b'{"a":9007199254740991}',
    b'{"a": -9007199254740991}',
    b"[1,9007199254740991]",
    b'{"a":"\\u00e4"}',
    '{"\U00010000":1}'.encode(),
    b'{"a":"\xff"}',
    b'{"a":1} 2',
    b"[" * 101 + b"]" * 101,
    b'{"a":"' + b"x" * PLAIN_MAX_BYTES + b'"}',
]


@pytest.mark.parametrize("data", NOT_PLAIN_DOCUMENTS)
def test_what_is_not_plain_is_left_to_the_library(data: bytes) -> None:
    assert parse_plain(data) is NOT_PLAIN
