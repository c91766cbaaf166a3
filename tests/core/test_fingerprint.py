"""Fingerprints: a version, then a digest. They decide what is a mismatch (I7)."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey.core.errors import InvalidKey
from oncekey.core.fingerprint import NO_REQUEST, VERSION, fingerprint, version_of

SECRET = b"0123456789abcdef"

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "digest"),
    [
        ({}, "c49614afae88dbbaac5b2a3c011124e528cbc01d87f50006789c990156e7379d"),
        (
            {"cents": 500, "to": "a"},
            "82a7223e9a64d937a1467586fd7aad709deebf80696b7477adfaf011b44b7602",
        ),
        (b"raw", "b741ef76a69b8acdc00c9cbeaf2933881f252c4747835114e97418d4c3d70941"),
        ("text", "0ffee9e17b3d06523378a562f9d91093034da903147b5a8b7bda1bf0ff772d3b"),
        (
            [1, 1.0, True, "1"],
            "2540901a50ebc0e1a5a6a09ccefb049408d90b233f1ec4f503c7cf259d6674e7",
        ),
    ],
    ids=repr,
)
def test_i7_version_1_never_changes(request_: Any, digest: str) -> None:
    """Golden: another digest for the same request would be called a mismatch."""
    assert fingerprint(request_).hex() == "01" + digest


def test_the_fingerprint_of_no_request_has_its_own_first_byte() -> None:
    digest = "c0383142d5fcef62c66cbe1abd859d4a5cb8bb40a75af900f402c5b2bc3ba005"
    assert fingerprint(None).hex() == "ff" + digest
    assert version_of(fingerprint(None)) == NO_REQUEST


def test_the_first_byte_of_a_fingerprint_is_its_version() -> None:
    made = fingerprint({"a": 1})
    assert (made[0], len(made)) == (VERSION, 33)
    assert version_of(made) == VERSION == 1
    assert version_of(b"\x09rest") == 9
    assert version_of(b"") == 0


def test_a_secret_changes_the_digest_but_not_the_version() -> None:
    plain, keyed = fingerprint({"a": 1}), fingerprint({"a": 1}, SECRET)
    assert plain != keyed
    assert version_of(keyed) == VERSION


@given(request_=_json)
def test_i7_the_same_request_has_the_same_fingerprint(request_: Any) -> None:
    assert fingerprint(request_) == fingerprint(request_)


@given(members=st.dictionaries(st.text(), _json, max_size=5), data=st.data())
def test_i7_the_order_of_members_does_not_matter(
    members: dict[str, Any], data: st.DataObject
) -> None:
    shuffled = dict(data.draw(st.permutations(list(members.items()))))
    assert fingerprint({"in": members}) == fingerprint({"in": shuffled})


def test_i7_the_order_of_a_list_does_matter() -> None:
    assert fingerprint([1, 2]) != fingerprint([2, 1])


DIFFERENT: list[Any] = [
    None,
    {},
    [],
    "",
    b"",
    0,
    1,
    1.0,
    -0.0,
    True,
    False,
    "1",
    b"1",
    "null",
    "{}",
    {"a": None},
    {"a": {}},
    {"a": 1},
    {"a": 1.0},
    {"a": True},
    {"a": "1"},
    {"a": b"1"},
    {"a": [1]},
    {"A": 1},
    {"a": Decimal("1")},
    [None],
    [[]],
]


@pytest.mark.parametrize("number", range(len(DIFFERENT)), ids=lambda n: repr(DIFFERENT[n]))
def test_i7_different_requests_have_different_fingerprints(number: int) -> None:
    one, others = DIFFERENT[number], DIFFERENT[number + 1 :]
    assert fingerprint(one) not in [fingerprint(other) for other in others]


def test_bytes_are_fingerprinted_as_they_are_and_not_as_text() -> None:
    assert fingerprint(b'"a"') != fingerprint("a")
    assert fingerprint(b"null") != fingerprint(None)


def test_a_request_without_a_canonical_form_is_refused() -> None:
    with pytest.raises(InvalidKey, match="a object has no canonical form"):
        fingerprint(object())
