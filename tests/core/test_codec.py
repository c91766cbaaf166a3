"""The envelope of outcomes, and JSON, the default codec."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey import Once, OperationFailed
from oncekey.core.codec import (
    ENVELOPE_VERSION,
    ERROR_MESSAGE_MAX_CHARS,
    JSON,
    JSONCodec,
    Kind,
    StoredError,
    StoredValue,
    Tombstone,
    Unreadable,
    pack_error,
    pack_tombstone,
    pack_value,
    unpack,
)

_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=15,
)


class Reversed:
    """A custom codec."""

    name = "reversed"

    def dump(self, value: Any, /) -> bytes:
        return bytes(reversed(str(value).encode()))

    def load(self, data: bytes, /) -> Any:
        return bytes(reversed(data)).decode()


# --- the envelope -------------------------------------------------------------------------------


def test_i3_the_envelope_never_changes() -> None:
    """Golden: what an older release stored must be read for ever."""
    value = b'\x01\x01\x04json{"a":[1,"\xc3\xa4"]}'
    error = b'\x01\x02\x04json{"type": "ValueError", "message": "no"}'
    stone = b'\x01\x03\x04json{"reason": "big", "too_large": true}'
    assert pack_value(JSON, {"a": [1, "ä"]}) == value
    assert pack_error(ValueError("no")) == error
    assert pack_tombstone("big", too_large=True) == stone
    assert unpack(value) == StoredValue("json", b'{"a":[1,"\xc3\xa4"]}')
    assert unpack(error) == StoredError("ValueError", "no")
    assert unpack(stone) == Tombstone("big", True)


@given(value=_values)
def test_i3_what_is_packed_is_unpacked(value: Any) -> None:
    stored = unpack(pack_value(JSON, value))
    assert isinstance(stored, StoredValue)
    again = JSON.load(stored.data)
    assert again == value
    assert type(again) is type(value)


def test_the_envelope_has_the_name_of_a_custom_codec() -> None:
    packed = pack_value(Reversed(), "abc")
    assert packed == b"\x01\x01\x08reversedcba"
    assert unpack(packed) == StoredValue("reversed", b"cba")


def test_the_codecs_bytes_may_be_anything_or_nothing() -> None:
    class Raw(Reversed):
        name = "raw"

        def dump(self, value: Any, /) -> bytes:
            return bytes(value)

    assert unpack(pack_value(Raw(), b"\x00\xff\x01")) == StoredValue("raw", b"\x00\xff\x01")
    assert unpack(pack_value(Raw(), b"")) == StoredValue("raw", b"")


@given(body=st.binary(max_size=64))
def test_random_bytes_are_never_more_than_unreadable(body: bytes) -> None:
    assert isinstance(unpack(body), (StoredValue, StoredError, Tombstone, Unreadable))


@given(kind=st.integers(0, 255), length=st.integers(0, 8), rest=st.binary(max_size=40))
def test_random_envelopes_are_never_more_than_unreadable(
    kind: int, length: int, rest: bytes
) -> None:
    stored = unpack(bytes([ENVELOPE_VERSION, kind, length]) + rest)
    assert isinstance(stored, StoredValue) <= (kind == Kind.VALUE)
    assert isinstance(stored, StoredError) <= (kind == Kind.ERROR)
    assert isinstance(stored, Tombstone) <= (kind == Kind.TOMBSTONE)


@given(info=_values, kind=st.sampled_from([Kind.ERROR, Kind.TOMBSTONE]))
def test_json_of_another_shape_is_damaged(info: Any, kind: Kind) -> None:
    stored = unpack(bytes([1, kind, 4]) + b"json" + json.dumps(info).encode())
    assert stored == Unreadable("the stored outcome is damaged")


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x01\x01"])
def test_an_empty_or_cut_envelope_is_unreadable(body: bytes) -> None:
    stored = unpack(body)
    assert isinstance(stored, Unreadable)
    assert "empty or cut short" in stored.reason


@pytest.mark.parametrize("version", [0, 2, 255])
def test_an_envelope_of_another_version_is_unreadable(version: int) -> None:
    stored = unpack(bytes([version]) + pack_value(JSON, 1)[1:])
    assert isinstance(stored, Unreadable)
    assert f"has format {version}, this version reads 1" in stored.reason


@pytest.mark.parametrize("kind", [0, 4, 255])
def test_an_envelope_of_unknown_kind_is_unreadable(kind: int) -> None:
    stored = unpack(bytes([1, kind, 4]) + b"json{}")
    assert stored == Unreadable(f"the stored outcome is of unknown kind {kind}")


@pytest.mark.parametrize(
    "rest",
    [
        b"\x02\x04json",
        b"\x02\x04json{",
        b"\x02\x04json[]",
        b'\x02\x04json{"type": "E"}',
        b'\x03\x04json{"reason": "x"}',
        b"\x03\x04json\xff\xfe\xff",
        b"\x01\x02\xff\xfe{}",
        b"\x02\xffjson{}",
    ],
)
def test_a_damaged_envelope_is_unreadable(rest: bytes) -> None:
    assert unpack(b"\x01" + rest) == Unreadable("the stored outcome is damaged")


# --- errors and tombstones ------------------------------------------------------------------------


def test_an_error_keeps_type_and_message_only() -> None:
    class CardDeclined(Exception):
        def __init__(self, code: int) -> None:
            super().__init__(f"declined with {code}")
            self.secret = "4111"

    packed = pack_error(CardDeclined(51))
    assert unpack(packed) == StoredError("CardDeclined", "declined with 51")
    assert b"4111" not in packed


def test_an_errors_message_is_cut_at_its_limit() -> None:
    def kept(length: int) -> str:
        stored = unpack(pack_error(ValueError("x" * length)))
        assert isinstance(stored, StoredError)
        return stored.message

    assert len(kept(ERROR_MESSAGE_MAX_CHARS)) == ERROR_MESSAGE_MAX_CHARS
    assert len(kept(ERROR_MESSAGE_MAX_CHARS + 1)) == ERROR_MESSAGE_MAX_CHARS
    assert len(kept(ERROR_MESSAGE_MAX_CHARS - 1)) == ERROR_MESSAGE_MAX_CHARS - 1


@given(message=st.text(st.characters()))
def test_any_message_can_be_stored(message: str) -> None:
    assert unpack(pack_error(KeyboardInterrupt(message))) == StoredError(
        "KeyboardInterrupt", message
    )


@pytest.mark.parametrize("too_large", [True, False])
def test_tombstones_keep_their_reason(too_large: bool) -> None:
    packed = pack_tombstone("warum: zu groß", too_large=too_large)
    assert unpack(packed) == Tombstone("warum: zu groß", too_large)


# --- JSON ---------------------------------------------------------------------------------------


def test_json_is_compact_utf8_in_the_order_given() -> None:
    assert JSON.dump({"b": "ä", "a": [1, None]}) == '{"b":"ä","a":[1,null]}'.encode()


def test_tuples_come_back_as_lists() -> None:
    assert JSON.load(JSON.dump((1, (2, [3])))) == [1, [2, [3]]]


@pytest.mark.parametrize(
    "value",
    [
        {1: "a"},
        {None: "a"},
        {True: "a"},
        {1.5: "a"},
        {"a": {1: "b"}},
        [{"a": [{1: "b"}]}],
        ({2: 3},),
        {"a": ({"b": {1: 2}},)},
    ],
    ids=repr,
)
def test_keys_that_json_would_change_are_refused_at_any_depth(value: Any) -> None:
    with pytest.raises(TypeError, match="is not text and would change in JSON"):
        JSON.dump(value)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": -float("inf")}])
def test_nan_and_infinities_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        JSON.dump(value)


@pytest.mark.parametrize("value", [b"x", {1}, object(), 1j, [b"x"], {"a": {2}}, {"a": object()}])
def test_what_is_no_json_is_refused_with_advice(value: Any) -> None:
    with pytest.raises(TypeError, match="no plain JSON value; return text, numbers"):
        JSON.dump(value)


def test_lone_surrogates_are_refused_as_they_are_no_utf8() -> None:
    with pytest.raises(ValueError):
        JSON.dump("\ud800")


def test_cycles_are_refused() -> None:
    around: list[Any] = []
    around.append(around)
    with pytest.raises((RecursionError, ValueError)):
        JSON.dump(around)


@pytest.mark.parametrize("data", [b"", b"{", b"1 2", b"[1]x", b"nul", b"\xff", b" 1"])
def test_damaged_json_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        JSONCodec().load(data)


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I cannot say")


def test_keys_of_a_dict_subclass_are_checked_too() -> None:
    with pytest.raises(TypeError, match="not text"):
        JSONCodec().dump(OrderedDict({1: "a"}))


def test_a_deeply_nested_outcome_is_unreadable_not_an_error() -> None:
    assert isinstance(unpack(b"\x01\x02\x04json" + b"[" * 100_000), Unreadable)


def test_an_error_whose_str_raises_is_stored_by_its_type() -> None:
    assert b"Speechless" in pack_error(Speechless())
    with Once("memory://") as once:

        def body(attempt: Any) -> None:
            raise Speechless

        with pytest.raises(Speechless):
            once.run("op", "k", body)
        with pytest.raises(OperationFailed, match="Speechless"):
            once.run("op", "k", body)
