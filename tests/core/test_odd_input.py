"""Odd input gets one of our errors, loses nothing, and is never taken for something else."""

from __future__ import annotations

import enum
from collections import OrderedDict
from decimal import Decimal
from typing import Any

import pytest

from oncekey import ConfigurationError, InvalidKey, Once, OperationFailed, Policy, child_key
from oncekey.core.canonical import canonical
from oncekey.core.codec import JSONCodec, Unreadable, codec_for, pack_error, unpack
from oncekey.core.identity import Identities


class Colour(str, enum.Enum):  # noqa: UP042 - the old spelling is the one that could go wrong
    RED = "red"


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I cannot say")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Decimal("1"), ["Decimal", "1"]),
        ({1, 2}, ["set", ["1", "2"]]),
        (b"a", ["bytes", "61"]),
        (Decimal("1"), '!Decimal"1"'),
        ([Decimal("1"), ["Decimal", "1"]], [["Decimal", "1"], Decimal("1")]),
    ],
)
def test_i7_tagged_values_never_equal_plain_values(one: Any, other: Any) -> None:
    assert canonical(one) != canonical(other)


@pytest.mark.parametrize(
    "value", [{1: "a"}, {None: 1}, {True: 1}, [{"a": {2.5: 1}}], {"d": {1: Decimal(1)}}]
)
def test_i7_keys_that_json_would_change_are_refused(value: Any) -> None:
    with pytest.raises(InvalidKey, match="not text"):
        canonical(value)


def test_keys_of_a_dict_subclass_are_checked_too() -> None:
    with pytest.raises(TypeError, match="not text"):
        JSONCodec().dump(OrderedDict({1: "a"}))


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


def test_a_duration_of_too_many_digits_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a duration"):
        Policy(lease="9" * 5000 + "s")


def test_a_text_enum_is_the_same_key_as_its_text() -> None:
    """Renaming the enum must not run operations again."""
    identities = Identities()
    assert identities.identify("", "op", Colour.RED) == identities.identify("", "op", "red")


def test_a_deeply_nested_outcome_is_unreadable_not_an_error() -> None:
    assert isinstance(unpack(b"\x01\x02\x04json" + b"[" * 100_000), Unreadable)


@pytest.mark.parametrize("name", ["ä", "", "x" * 101, 5])
def test_a_codec_whose_name_cannot_be_stored_is_refused(name: Any) -> None:
    class Named(JSONCodec):
        pass

    codec = Named()
    codec.name = name
    with pytest.raises(ConfigurationError, match="codec's name"):
        codec_for(codec)


def test_an_error_whose_str_raises_is_stored_by_its_type() -> None:
    assert b"Speechless" in pack_error(Speechless())
    with Once("memory://") as once:

        def body(attempt: Any) -> None:
            raise Speechless

        with pytest.raises(Speechless):
            once.run("op", "k", body)
        with pytest.raises(OperationFailed, match="Speechless"):
            once.run("op", "k", body)


def test_a_guard_with_a_bad_operation_or_codec_is_refused_when_it_is_made() -> None:
    with Once("memory://") as once:
        with pytest.raises(InvalidKey, match="operation"):
            once.guard("", key=str)
        with pytest.raises(ConfigurationError, match="no pydantic model"):
            once.guard("op", key=str, codec=5)
