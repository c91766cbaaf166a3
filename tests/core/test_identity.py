"""Identities: framing, limits and secrets. No outcome may cross scopes (I8)."""

from __future__ import annotations

import enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey.core.errors import ConfigurationError, InvalidKey
from oncekey.core.identity import (
    KEY_MAX_CHARS,
    OPERATION_MAX_CHARS,
    SCOPE_MAX_CHARS,
    SECRET_MAX_BYTES,
    SECRET_MIN_BYTES,
    STEP_NAME_MAX_CHARS,
    Identities,
    child_key,
)

SECRET = b"0123456789abcdef"
PLAIN, KEYED = Identities(), Identities(SECRET)

_text = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=12)
_triples = st.tuples(_text | st.just(""), _text, _text)
# Texts made of delimiters and digits only: where joined parts would meet, these do.
_tricky = st.text(st.sampled_from("a:/|,1"), min_size=1, max_size=4)
_tricky_triples = st.tuples(_tricky | st.just(""), _tricky, _tricky)


def id_of(*triple: str) -> bytes:
    scope, operation, key = triple
    return PLAIN.identify(scope, operation, key).id


# --- ids --------------------------------------------------------------------------------------


@given(one=_triples | _tricky_triples, two=_triples | _tricky_triples)
def test_i8_ids_are_equal_exactly_when_all_three_parts_are(
    one: tuple[str, str, str], two: tuple[str, str, str]
) -> None:
    assert (id_of(*one) == id_of(*two)) is (one == two)


@given(text=st.text(st.sampled_from("ab:/"), min_size=3, max_size=10), data=st.data())
def test_i8_where_the_parts_are_cut_matters(text: str, data: st.DataObject) -> None:
    """The same text, cut into parts at different places, is different identities."""

    def cut() -> tuple[str, str, str]:
        first = data.draw(st.integers(0, len(text) - 2))
        second = data.draw(st.integers(first + 1, len(text) - 1))
        return text[:first], text[first:second], text[second:]

    one, two = cut(), cut()
    assert (id_of(*one) == id_of(*two)) is (one == two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("a", "b", "c"), ("ab", "b", "c")),
        (("a:b", "c", "d"), ("a", "b:c", "d")),
        (("", "ab", "c"), ("a", "b", "c")),
        (("a", "b", "c"), ("c", "b", "a")),
        (("é", "op", "k"), ("e\u0301", "op", "k")),
    ],
)
def test_i8_keys_that_look_alike_have_different_ids(
    one: tuple[str, str, str], two: tuple[str, str, str]
) -> None:
    assert id_of(*one) != id_of(*two)


@pytest.mark.parametrize(
    ("triple", "plain", "keyed"),
    [
        (
            ("", "charge", "k"),
            "9edfec97ca606e2fcc6820e2130713e4",
            "46df78179f1899a00cba7aa312be23fe",
        ),
        (
            ("acct_1", "charge", "order-17"),
            "b1e5b95fdce82c9851b9db0332f39a3c",
            "003446a5d72ff73f8d6cb5ab71ac2c2d",
        ),
        (
            ("zürich", "op", "ключ 1"),
            "25bb7979676eb5ac0620c13649577e85",
            "f651d4352a0a62b04d0e8e382db2b477",
        ),
    ],
)
def test_the_format_of_ids_never_changes(
    triple: tuple[str, str, str], plain: str, keyed: str
) -> None:
    """Golden: other ids under the same keys would run everything again."""
    assert PLAIN.identify(*triple).id.hex() == plain
    assert KEYED.identify(*triple).id.hex() == keyed


def test_an_identity_keeps_its_parts_and_shows_a_tag_without_the_key() -> None:
    identity = PLAIN.identify("acct_1", "charge", "order-17")
    assert identity[:3] == ("acct_1", "charge", "order-17")
    assert len(identity.id) == 16
    assert identity.tag == "b1e5b95fdce8"


# --- keys -------------------------------------------------------------------------------------


class _Name(str):
    """A key of a subclass of str."""


class _Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("k", "k"),
        (17, "17"),
        (-1, "-1"),
        (0, "0"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (_Name("k"), "k"),
        (_Colour.RED, "red"),
    ],
)
def test_keys_may_be_text_ints_and_uuids(key: Any, text: str) -> None:
    identity = PLAIN.identify("", "op", key)
    assert identity.key == text
    assert type(identity.key) is str
    assert identity.id == id_of("", "op", text)


@pytest.mark.parametrize("key", [True, False, 1.5, b"k", ("k",), ["k"], object()])
def test_other_kinds_of_keys_are_refused(key: Any) -> None:
    with pytest.raises(InvalidKey, match=f"not {type(key).__name__}"):
        PLAIN.identify("", "op", key)


@pytest.mark.parametrize(
    "bad", ["a\x00b", "\x00", "a\nb", "a\tb", "\x7f", "\ud800", "\u200b", "\x85"]
)
@pytest.mark.parametrize("part", [0, 1, 2])
def test_what_cannot_be_printed_is_refused_in_every_part(bad: str, part: int) -> None:
    triple = ["s", "o", "k"]
    triple[part] = bad
    with pytest.raises(InvalidKey, match="cannot be printed"):
        id_of(*triple)


@pytest.mark.parametrize(
    ("part", "low", "high"),
    [(0, 0, SCOPE_MAX_CHARS), (1, 1, OPERATION_MAX_CHARS), (2, 1, KEY_MAX_CHARS)],
    ids=["scope", "operation", "key"],
)
def test_each_part_is_accepted_up_to_its_limit(part: int, low: int, high: int) -> None:
    def with_length(length: int) -> bytes:
        triple = ["s", "o", "k"]
        triple[part] = "ä" * length  # limits count characters, not bytes
        return id_of(*triple)

    assert with_length(low) != with_length(high)
    for length in {low - 1, high + 1} - {-1}:
        with pytest.raises(
            InvalidKey, match=f"has {length} characters(; allowed are {low} to {high})?"
        ):
            with_length(length)


def test_the_limits_are_what_the_documentation_says() -> None:
    assert (KEY_MAX_CHARS, SCOPE_MAX_CHARS) == (255, 255)
    assert (OPERATION_MAX_CHARS, STEP_NAME_MAX_CHARS) == (100, 100)


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("bad", [1, b"x"])
def test_scope_and_operation_must_be_text(part: int, bad: Any) -> None:
    triple: list[Any] = ["s", "o", "k"]
    triple[part] = bad
    with pytest.raises(InvalidKey, match="must be text"):
        PLAIN.identify(*triple)


# --- secrets ----------------------------------------------------------------------------------


def test_a_secret_changes_ids_fingerprints_and_child_keys() -> None:
    parent = PLAIN.identify("s", "o", "k")
    assert parent.id != KEYED.identify("s", "o", "k").id
    assert PLAIN.child_key(parent, "step") != KEYED.child_key(parent, "step")
    assert PLAIN.child_uuid(parent, "step") != KEYED.child_uuid(parent, "step")
    assert PLAIN.fingerprint({"a": 1}) != KEYED.fingerprint({"a": 1})
    assert PLAIN.fingerprint(None) != KEYED.fingerprint(None)
    assert PLAIN.check_value() != KEYED.check_value()


def test_a_secret_may_be_text() -> None:
    assert Identities(SECRET.decode()).check_value() == KEYED.check_value()


def test_the_check_value_depends_on_the_secret_and_does_not_contain_it() -> None:
    assert Identities(SECRET).check_value() == KEYED.check_value()
    assert PLAIN.check_value().hex() == "34498c668c76f6db158cb09a1de36561"
    assert KEYED.check_value().hex() == "62b2186136d739f0b427cd367ee95780"
    assert Identities(b"another secret, 24 bytes").check_value() != KEYED.check_value()


@pytest.mark.parametrize("length", [SECRET_MIN_BYTES, SECRET_MAX_BYTES])
def test_secrets_at_their_limits(length: int) -> None:
    assert len(Identities(b"x" * length).check_value()) == 16


@pytest.mark.parametrize(
    "secret", [b"", "", b"x" * (SECRET_MIN_BYTES - 1), b"x" * (SECRET_MAX_BYTES + 1), 5, ["x" * 20]]
)
def test_other_secrets_are_refused(secret: Any) -> None:
    with pytest.raises(ConfigurationError, match="16 to 64 bytes"):
        Identities(secret)


def test_no_request_has_the_fingerprint_of_none() -> None:
    assert PLAIN.fingerprint(None).hex().startswith("ffc0383142d5fcef")
    assert KEYED.fingerprint(None).hex().startswith("ffd9c0974d8fb8f3")


class Colour(str, enum.Enum):  # noqa: UP042 - the old spelling is the one that could go wrong
    RED = "red"


@pytest.mark.parametrize("scope", [None, b"", 0, []])
def test_a_scope_that_is_no_text_is_refused(scope: Any) -> None:
    with pytest.raises(InvalidKey, match="scope must be text"):
        Identities().identify(scope, "op", "k")
    with pytest.raises(InvalidKey, match="scope must be text"):
        child_key("k", "step", scope=scope)


@pytest.mark.parametrize("operation", [None, [], 5])
def test_an_operation_that_is_no_text_is_refused(operation: Any) -> None:
    with pytest.raises(InvalidKey, match="operation must be text"):
        Identities().identify("", operation, "k")


def test_a_number_too_large_to_print_is_refused_as_a_key() -> None:
    with pytest.raises(InvalidKey, match="too large"):
        Identities().identify("", "op", 10**5000)


def test_a_text_enum_is_the_same_key_as_its_text() -> None:
    """Renaming the enum must not run operations again."""
    identities = Identities()
    assert identities.identify("", "op", Colour.RED) == identities.identify("", "op", "red")
