"""Canonical bytes: equal for requests that mean the same, different for all others."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey.core.errors import InvalidKey
from oncekey.core.fingerprint import canonical


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Size(enum.IntEnum):
    SMALL = 1


class Kind(enum.StrEnum):
    CARD = "card"


@dataclasses.dataclass
class Money:
    cents: int
    currency: str = "CHF"


@dataclasses.dataclass
class Order:
    name: str
    price: Money
    tags: tuple[str, ...] = ()


class Payment(pydantic.BaseModel):
    to: str
    at: date
    amount: Decimal


Point = namedtuple("Point", "x y")


def test_plain_values_are_compact_sorted_ascii_json() -> None:
    assert canonical({"b": [1, 1.5, None, True], "a": "ä"}) == (
        b'{"a":"\\u00e4","b":[1,1.5,null,true]}'
    )


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, OrderedDict(a=1)),
        ({"a": 1}, MappingProxyType({"a": 1})),
        ([1, 2], (1, 2)),
        ([1, 2], Point(1, 2)),
        ({1, 2, 3}, {3, 2, 1}),
        ({1, 2}, frozenset({2, 1})),
        ([b"x"], [bytearray(b"x")]),
        pytest.param([b"x"], [memoryview(b"x")], id="a memoryview"),
        (1, Size.SMALL),
        ("card", Kind.CARD),
        ({"cents": 5, "currency": "CHF"}, Money(5)),
        ({"name": "n", "price": {"cents": 5, "currency": "CHF"}, "tags": []}, Order("n", Money(5))),
        (
            {"to": "a", "at": "2026-01-02", "amount": "1.50"},
            Payment(to="a", at=date(2026, 1, 2), amount=Decimal("1.50")),
        ),
    ],
    ids=repr,
)
def test_requests_that_mean_the_same_have_the_same_bytes(one: Any, same: Any) -> None:
    assert canonical(one) == canonical(same)


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
TAGGED: list[Any] = [
    Decimal("1"),
    Decimal("1.0"),
    "1",
    1,
    date(2026, 1, 2),
    datetime(2026, 1, 2),
    datetime(2026, 1, 2, tzinfo=UTC),
    NOON,
    time(12),
    "2026-01-02",
    "12:00:00",
    timedelta(seconds=1),
    timedelta(days=1),
    UUID(int=1),
    str(UUID(int=1)),
    PurePosixPath("a"),
    "a",
    b"a",
    b"",
    "",
    {"a"},
    {b"a"},
    set(),
    [],
    {"a", "b"},
    Colour.RED,
    Colour.BLUE,
    "RED",
    Money(1),
    Money(1, "EUR"),
]


@pytest.mark.parametrize("number", range(len(TAGGED)), ids=str)
def test_tagged_values_are_not_mistaken_for_each_other_or_for_plain_text(number: int) -> None:
    one, others = TAGGED[number], TAGGED[number + 1 :]
    assert canonical(one) not in [canonical(other) for other in others]
    assert canonical({"in": [one]}) not in [canonical({"in": [other]}) for other in others]


def test_a_set_is_sorted_by_the_bytes_of_its_members() -> None:
    """0, 8, 16 and 24 fall into one slot of a small set, which then keeps the order of entry."""
    orders = [set(order) for order in itertools.permutations([0, 8, 16, 24])]
    assert len({tuple(order) for order in orders}) > 1
    assert len({canonical(order) for order in orders}) == 1


def test_a_set_may_hold_values_that_cannot_be_compared() -> None:
    mixed: set[Any] = {"1", 1, None, Decimal("2"), (1, 2)}
    assert canonical(mixed) == canonical(frozenset(mixed))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"a": [x]}, Money])
def test_nan_and_infinities_are_refused_with_a_clear_error(bad: float, wrap: Any) -> None:
    with pytest.raises(InvalidKey, match="cannot be fingerprinted"):
        canonical(wrap(bad))


@pytest.mark.parametrize("bad", [object(), 1j, range(3), iter([]), len, Colour, {("a",): 1}])
def test_what_has_no_canonical_form_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidKey, match="give request= plain values"):
        canonical({"in": bad})


def test_keys_of_mixed_kinds_are_refused() -> None:
    with pytest.raises(InvalidKey, match="dicts with text keys"):
        canonical({1: "a", "b": "c"})


def test_cycles_are_refused() -> None:
    around: list[Any] = []
    around.append({"back": around})
    with pytest.raises(InvalidKey, match="cannot be fingerprinted"):
        canonical(around)


def test_an_error_names_its_cause() -> None:
    with pytest.raises(InvalidKey) as caught:
        canonical({"in": 1j})
    assert isinstance(caught.value.__cause__, TypeError)
    assert "a complex has no canonical form" in str(caught.value)


@given(text=st.text(st.characters(categories=("Cs", "L", "Nd"))))
def test_lone_surrogates_are_escaped(text: str) -> None:
    assert canonical(text).isascii()


@given(one=st.text(), two=st.text())
def test_different_texts_have_different_bytes(one: str, two: str) -> None:
    assert (canonical(one) == canonical(two)) is (one == two)


@given(number=st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_written_exactly(number: float) -> None:
    assert canonical(number) == repr(number).encode()


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
