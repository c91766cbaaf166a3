"""Codecs for dataclasses and pydantic, and how an option names a codec."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

import pydantic
import pytest

from oncekey.core.codec import JSON, Codec, JSONCodec
from oncekey.core.errors import ConfigurationError
from oncekey.core.typed_codecs import DataclassCodec, ModelCodec, codec_for


@dataclass(frozen=True)
class Money:
    cents: int
    currency: str = "CHF"


@dataclass
class Receipt:
    id: str
    price: Money
    lines: list[Money] = field(default_factory=list)
    tip: Money | None = None
    parts: tuple[Money, ...] = ()
    pair: tuple[str, Money] = ("", Money(0))
    by_name: dict[str, Money] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)
    nested: list[list[Money]] = field(default_factory=list)
    either: int | str = 0
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.total = self.price.cents + sum(line.cents for line in self.lines)


@dataclass(frozen=True)
class Dearer(Money):
    why: str = ""


class Payment(pydantic.BaseModel):
    to: str
    at: date
    amount: Decimal


FULL = Receipt(
    "r1",
    Money(500),
    lines=[Money(1), Money(2, "EUR")],
    tip=Money(50),
    parts=(Money(3), Money(4)),
    pair=("x", Money(5)),
    by_name={"a": Money(6)},
    plain={"a": {"b": [1, None]}},
    nested=[[Money(7)], []],
    either="text",
)


# --- dataclasses --------------------------------------------------------------------------------


@pytest.mark.parametrize("receipt", [FULL, Receipt("r2", Money(1))], ids=["full", "bare"])
def test_i3_a_dataclass_comes_back_equal(receipt: Receipt) -> None:
    codec = DataclassCodec(Receipt)
    again = codec.load(codec.dump(receipt))
    assert again == receipt
    assert type(again.price) is Money
    assert type(again.parts) is tuple


def test_fields_added_later_take_their_defaults_and_removed_ones_are_ignored() -> None:
    stored = b'{"id":"r","price":{"cents":5,"gone":1},"also_gone":2}'
    assert DataclassCodec(Receipt).load(stored) == Receipt("r", Money(5))


@pytest.mark.parametrize("stored", [b'{"id":"r"}', b"[]", b"1", b"{"])
def test_what_does_not_fit_the_dataclass_is_refused(stored: bytes) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        DataclassCodec(Receipt).load(stored)


@pytest.mark.parametrize("value", [Dearer(1), {"cents": 1}, None, Money])
def test_another_type_than_the_dataclass_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="expected a Money, got a"):
        DataclassCodec(Money).dump(value)


def test_a_dataclass_field_that_json_cannot_express_is_refused() -> None:
    with pytest.raises(TypeError, match="no plain JSON value"):
        DataclassCodec(Receipt).dump(Receipt("r", Money(1), plain={"at": date(2026, 1, 2)}))
    with pytest.raises(TypeError, match="would change in JSON"):
        DataclassCodec(Receipt).dump(Receipt("r", Money(1), plain={"a": {1: 2}}))


def test_a_tuple_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError):
        DataclassCodec(Receipt).load(b'{"id":"r","price":{"cents":1},"pair":["x"]}')


def test_only_a_dataclass_makes_a_dataclass_codec() -> None:
    with pytest.raises(ConfigurationError, match="is not a dataclass"):
        DataclassCodec(int)


# --- pydantic -----------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [Payment, pydantic.TypeAdapter(Payment)])
def test_i3_a_model_comes_back_equal(choice: Any) -> None:
    codec = ModelCodec(choice)
    payment = Payment(to="a", at=date(2026, 1, 2), amount=Decimal("1.50"))
    assert codec.load(codec.dump(payment)) == payment


def test_a_type_adapter_serves_any_type() -> None:
    codec = ModelCodec(pydantic.TypeAdapter(dict[str, list[date]]))
    value = {"days": [date(2026, 1, 2)]}
    assert codec.dump(value) == b'{"days":["2026-01-02"]}'
    assert codec.load(codec.dump(value)) == value


def test_what_does_not_fit_the_model_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError):
        ModelCodec(Payment).load(b'{"to": 1}')


@pytest.mark.parametrize("choice", [int, "json", object(), 5])
def test_what_is_no_model_is_refused(choice: Any) -> None:
    with pytest.raises(ConfigurationError, match="no pydantic model and no TypeAdapter"):
        ModelCodec(choice)


# --- codec_for ----------------------------------------------------------------------------------


class Upper:
    name = "upper"

    def dump(self, value: Any, /) -> bytes:
        return str(value).upper().encode()

    def load(self, data: bytes, /) -> Any:
        return data.decode()


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        (None, JSONCodec),
        (Money, DataclassCodec),
        (Payment, ModelCodec),
        (pydantic.TypeAdapter(int), ModelCodec),
        (JSONCodec(), JSONCodec),
        (Upper(), Upper),
        (DataclassCodec(Money), DataclassCodec),
    ],
)
def test_an_option_names_its_codec(choice: Any, kind: type[Codec]) -> None:
    assert type(codec_for(choice)) is kind


def test_no_option_is_the_one_json_codec_and_a_codec_is_itself() -> None:
    upper = Upper()
    assert codec_for(None) is JSON
    assert codec_for(upper) is upper


@pytest.mark.parametrize("choice", [int, "json", 5, Upper, object(), lambda value: b""])
def test_what_is_no_codec_is_refused_at_once(choice: Any) -> None:
    with pytest.raises(ConfigurationError):
        codec_for(choice)


def test_codecs_have_names_of_their_own() -> None:
    names = [JSON.name, DataclassCodec(Money).name, ModelCodec(Payment).name]
    assert names == ["json", "dataclass", "pydantic"]


@pytest.mark.parametrize("name", ["ä", "", "x" * 101, 5])
def test_a_codec_whose_name_cannot_be_stored_is_refused(name: Any) -> None:
    class Named(JSONCodec):
        pass

    codec = Named()
    codec.name = name
    with pytest.raises(ConfigurationError, match="codec's name"):
        codec_for(codec)
