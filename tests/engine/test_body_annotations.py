"""Which annotations of a function say how its value is stored, and which leave it to JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Annotated, Any, Never, TypedDict

import pytest
from pydantic import BaseModel

from oncekey import StepResult
from oncekey.engine import body_check
from oncekey.engine.body_check import body_codec

FIVE = Decimal("5.00")


@dataclass
class Receipt:
    amount: Decimal


class Invoice(BaseModel):
    amount: Decimal


class Sums(TypedDict):
    amount: Decimal


class Colour(IntEnum):
    RED = 1


class ApiObject(dict[str, Any]):
    """As clients of some services give them."""


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_check, "_known", {})


@pytest.mark.parametrize(
    "annotation",
    [None, Any, Never, ApiObject, StepResult, StepResult[Any], StepResult[str] | str, "Missing"],
)
def test_annotation_that_says_nothing_leaves_it_to_json(annotation: Any) -> None:
    def body(attempt: object) -> Any: ...

    body.__annotations__["return"] = annotation
    assert body_codec(body, "the body of", "charge") is None


@pytest.mark.parametrize(
    "annotation", [Awaitable[Decimal], Coroutine[Any, Any, Decimal], Awaitable[StepResult[Decimal]]]
)
def test_annotation_of_a_plain_function_that_gives_an_awaitable_is_what_that_gives(
    annotation: Any,
) -> None:
    def fn(key: str) -> Any: ...

    fn.__annotations__["return"] = annotation
    codec = body_codec(fn, "step", "pay")
    assert codec is not None
    assert codec.load(codec.dump(FIVE)) == FIVE


@pytest.mark.parametrize("annotation", [Colour, Sums])
def test_own_kinds_of_numbers_and_dicts_come_back_as_their_type(annotation: Any) -> None:
    def body(attempt: object) -> Any: ...

    body.__annotations__["return"] = annotation
    codec = body_codec(body, "the body of", "charge")
    assert codec is not None
    value = Colour.RED if annotation is Colour else {"amount": FIVE}
    assert codec.load(codec.dump(value)) == value


def test_codecs_that_were_found_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_check, "_KNOWN_MAX", 3)

    def made() -> Any:
        def body(attempt: object) -> Decimal:
            return FIVE

        return body

    assert body_codec(made(), "the body of", "a") is body_codec(made(), "the body of", "a")
    for kind in (Receipt, Invoice, Sums, Colour):
        body = made()
        body.__annotations__["return"] = kind
        assert body_codec(body, "the body of", "a") is not None
        assert len(body_check._known) <= 3


def test_annotation_that_cannot_be_hashed_is_looked_at_each_time() -> None:
    def body(attempt: object) -> Any: ...

    body.__annotations__["return"] = Annotated[Decimal, []]
    codec = body_codec(body, "the body of", "charge")
    assert codec is not None
    assert codec.load(codec.dump(FIVE)) == FIVE
    assert body_check._known == {}


def test_generator_function_is_left_to_the_check_of_bodies() -> None:
    def many(*args: Any) -> Iterator[int]:
        yield 1

    assert body_codec(many, "the body of", "charge") is None
