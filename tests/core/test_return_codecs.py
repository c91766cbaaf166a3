"""The codec that a function's annotation asks for: found, or refused, when it is decorated."""

from __future__ import annotations

import asyncio
import datetime
import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import pydantic
import pytest

from oncekey import AsyncOnce, ConfigurationError, Once
from oncekey.core.typed_codecs import return_codec

UTC = datetime.UTC
MOMENT = datetime.datetime(2026, 11, 18, 3, 4, 5, 678, tzinfo=UTC)
T = TypeVar("T")
Number = NewType("Number", Decimal)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: Decimal
    y: int = 0


class Line(TypedDict):
    price: Decimal
    name: str


class Plain(TypedDict):
    name: str


@dataclass(frozen=True)
class Part:
    price: Decimal
    colour: Colour = Colour.RED


@dataclass(frozen=True)
class Order:
    id: UUID
    at: datetime.datetime
    parts: tuple[Part, ...] = ()
    note: str | None = None
    by_name: dict[str, Part] = field(default_factory=dict)


class Payment(pydantic.BaseModel):
    amount: Decimal


class Session:
    """Nothing that could be stored."""


def returning(hint: Any) -> Any:
    def fn(order: str) -> None: ...

    fn.__annotations__["return"] = hint
    return fn


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Decimal, Decimal("1.10")),
        (Number, Decimal("1.10")),
        (Decimal | None, None),
        (Decimal | None, Decimal("-0.5")),
        (UUID, UUID(int=7)),
        (bytes, b"\x00\xff"),
        (datetime.datetime, MOMENT),
        (datetime.date, MOMENT.date()),
        (datetime.time, MOMENT.time()),
        (datetime.timedelta, datetime.timedelta(days=-1, microseconds=3)),
        (Colour, Colour.BLUE),
        (Point, Point(Decimal(1))),
        (Line, {"price": Decimal("2.50"), "name": "tea"}),
        (tuple[int, Decimal], (1, Decimal(2))),
        (tuple[Decimal, ...], (Decimal(1), Decimal(2))),
        (set[Decimal], {Decimal(1)}),
        (frozenset[str], frozenset("ab")),
        (list[Part], [Part(Decimal(1)), Part(Decimal(2), Colour.BLUE)]),
        (dict[str, Decimal], {"a": Decimal(1)}),
        (Part, Part(Decimal("9.99"))),
        (
            Order,
            Order(UUID(int=1), MOMENT, (Part(Decimal(1)),), None, {"a": Part(Decimal(3))}),
        ),
        (Payment, Payment(amount=Decimal("1.10"))),
        (list[Payment], [Payment(amount=Decimal(1))]),
        (Payment | None, None),
        (Annotated[Decimal, "cents"], Decimal(5)),
    ],
)
def test_what_an_annotation_says_comes_back_as_it_was(hint: Any, value: Any) -> None:
    codec = return_codec(returning(hint), "guard('charge')")
    assert codec is not None
    found = codec.load(codec.dump(value))
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "hint",
    [
        None, str, int, dict, list, Any, object, T, "NotDefinedAnywhere", Plain, bool | None,
        dict[str, Any], list[dict[str, int]], Literal["paid", "refused"], str | int,
    ],
)  # fmt: skip
def test_plain_values_and_what_says_nothing_need_no_codec(hint: Any) -> None:
    assert return_codec(returning(hint), "guard('charge')") is None


@pytest.mark.parametrize(
    "hint",
    [Session, list[Session], Session | None, Iterator[int], Decimal | Part, dict[int, Decimal]],
)
def test_what_could_not_be_stored_is_refused_before_anything_runs(hint: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"guard\('charge'\): it returns a .*give codec="):
        return_codec(returning(hint), "guard('charge')")


def test_a_guarded_function_replays_the_type_that_it_is_annotated_with() -> None:
    once = Once("memory://", cache=0)

    @once.guard("charge", key=lambda order: order)
    def charge(order: str) -> Part:
        return Part(Decimal("1.10"))

    assert charge("a") == charge("a") == Part(Decimal("1.10"))
    status = once.get("charge", "a")
    assert status is not None
    assert status.value == Part(Decimal("1.10"))

    with pytest.raises(ConfigurationError, match="it returns a Session"):

        @once.guard("open", key=lambda order: order)
        def open_it(order: str) -> Session:
            return Session()

    once.close()


def test_an_async_function_and_an_operation_are_looked_at_too() -> None:
    async def scenario() -> None:
        once = AsyncOnce("memory://", cache=0)

        @once.guard("charge", key=lambda order: order)
        async def charge(order: str) -> Decimal:
            return Decimal("1.10")

        @once.operation("refund")
        async def refund(attempt: Any, request: Any) -> Decimal:
            return Decimal("-1.10")

        assert await charge("a") == await charge("a") == Decimal("1.10")
        for replayed in (False, True):
            result = await refund.run("a", {})
            assert (result.value, result.replayed) == (Decimal("-1.10"), replayed)
        await once.close()

    asyncio.run(scenario())


def test_a_codec_that_was_given_is_used_whatever_the_annotation_says() -> None:
    class Pickles:
        name = "pickles"

        def dump(self, value: Any) -> bytes:
            return b"one"

        def load(self, data: bytes) -> Any:
            return data

    once = Once("memory://", codec=Pickles())

    @once.guard("open", key=lambda order: order)
    def open_it(order: str) -> Session:
        return Session()

    found: Any = open_it("a")
    assert found == b"one"
    once.close()
