"""A body of `run`, and the function of a step, are stored by what they are annotated to return."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import BaseModel

from oncekey import AsyncOnce, ConfigurationError, NotReplayable, Once, StepResult
from oncekey.engine.body_check import body_codec

FIVE = Decimal("5.00")


@dataclass
class Receipt:
    amount: Decimal


class Invoice(BaseModel):
    amount: Decimal


class Handle:
    """Nothing can store it."""


def decimal(*args: Any) -> Decimal:
    runs.append(args)
    return FIVE


def receipt(*args: Any) -> Receipt:
    runs.append(args)
    return Receipt(FIVE)


def invoice(*args: Any) -> Invoice:
    runs.append(args)
    return Invoice(amount=FIVE)


def either(*args: Any) -> Invoice | None:
    runs.append(args)
    return Invoice(amount=FIVE)


def pair(*args: Any) -> tuple[Decimal, int]:
    runs.append(args)
    return (FIVE, 1)


def handle(*args: Any) -> Handle:
    runs.append(args)
    return Handle()


def unannotated(*args: Any):  # type: ignore[no-untyped-def]
    runs.append(args)
    return FIVE


def result(*args: Any) -> StepResult[Decimal]:
    runs.append(args)
    return StepResult(FIVE, external_id="ch_1")


runs: list[object] = []
VALUES: list[tuple[Callable[..., Any], object]] = [
    (decimal, FIVE),
    (receipt, Receipt(FIVE)),
    (invoice, Invoice(amount=FIVE)),
    (either, Invoice(amount=FIVE)),
    (pair, (FIVE, 1)),
]


@pytest.fixture(autouse=True)
def _no_runs() -> Iterator[None]:
    runs.clear()
    yield
    runs.clear()


def as_async(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, awaited."""

    @functools.wraps(fn)
    async def awaited(*args: Any) -> Any:
        return fn(*args)

    return awaited


class Awaited:
    """Runs bodies on an AsyncOnce, with the names of Once."""

    def __init__(self, **options: Any) -> None:
        self._once = AsyncOnce("memory://", **options)
        self._loop = asyncio.new_event_loop()

    def run(self, operation: str, key: str, body: Any, **options: Any) -> Any:
        return self._loop.run_until_complete(
            self._once.run(operation, key, as_async(body), **options)
        )

    def run_steps(self, key: str, fn: Any, fail: bool) -> Any:
        async def body(attempt: Any) -> None:
            values.append(await attempt.step("pay", as_async(fn)))
            if fail:
                raise ConnectionError

        values: list[object] = []
        work = self._once.run("order", key, body, retry_safe=True)
        try:
            self._loop.run_until_complete(work)
        except ConnectionError:
            pass
        return values[0]

    def close(self) -> None:
        self._loop.run_until_complete(self._once.close())
        self._loop.close()


class Blocking:
    def __init__(self, **options: Any) -> None:
        self._once = Once("memory://", **options)
        self.run, self.close = self._once.run, self._once.close

    def run_steps(self, key: str, fn: Any, fail: bool) -> Any:
        def body(attempt: Any) -> None:
            values.append(attempt.step("pay", fn))
            if fail:
                raise ConnectionError

        values: list[object] = []
        try:
            self.run("order", key, body, retry_safe=True)
        except ConnectionError:
            pass
        return values[0]


@pytest.fixture(
    params=[(Blocking, None), (Blocking, 0), (Awaited, None), (Awaited, 0)],
    ids=["sync", "sync-uncached", "async", "async-uncached"],
)
def once(request: pytest.FixtureRequest) -> Iterator[Any]:
    kind, cache = request.param
    made = kind(cache=cache)
    yield made
    made.close()


@pytest.mark.parametrize(("body", "value"), VALUES)
def test_what_a_body_is_annotated_to_return_comes_back(
    once: Any, body: Callable[..., Any], value: object
) -> None:
    first, again = once.run("charge", "a", body), once.run("charge", "a", body)
    assert (first.value, again.value, again.replayed) == (value, value, True)
    assert len(runs) == 1


@pytest.mark.parametrize(("fn", "value"), [*VALUES, (result, FIVE)])
def test_what_a_step_is_annotated_to_return_comes_back_when_its_body_runs_again(
    once: Any, fn: Callable[..., Any], value: object
) -> None:
    assert once.run_steps("a", fn, fail=True) == value
    assert once.run_steps("a", fn, fail=False) == value
    assert len(runs) == 1


def test_body_that_returns_what_cannot_be_stored_is_refused_before_it_runs(once: Any) -> None:
    with pytest.raises(ConfigurationError, match="the body of 'charge': it returns a Handle"):
        once.run("charge", "a", handle)
    assert runs == []
    assert once.run("charge", "a", decimal).value == FIVE  # its key is free


def test_step_that_returns_what_cannot_be_stored_is_refused_before_it_runs(once: Any) -> None:
    with pytest.raises(ConfigurationError, match="step 'pay': it returns a Handle"):
        once.run_steps("a", handle, fail=False)
    assert runs == []


def test_body_without_an_annotation_is_stored_as_json_as_before(once: Any) -> None:
    with pytest.raises(NotReplayable, match="cannot be stored") as caught:
        once.run("charge", "a", unannotated)
    assert caught.value.value == FIVE
    assert once.run("charge", "b", lambda attempt: (1, 2)).value == [1, 2]


class Charge:
    """It says what it returns by its `__call__`."""

    def __call__(self, *args: object) -> Decimal:
        return FIVE

    async def later(self, *args: object) -> Decimal:
        return FIVE


class Refund:
    def __call__(self, *args: object) -> Handle:
        runs.append(args)
        return Handle()


def of_account(account: str, *args: object) -> Decimal:
    return FIVE


INDIRECT: list[Callable[..., Any]] = [
    functools.partial(of_account, "acct_1"),
    functools.partial(functools.partial(of_account, "acct_1"), 7),
    Charge(),
    Charge().__call__,
    functools.partial(Charge()),
]


@pytest.mark.parametrize("body", INDIRECT)
@pytest.mark.parametrize("cache", [None, 0])
def test_a_partial_and_a_callable_object_say_what_their_function_returns(
    body: Callable[..., Any], cache: int | None
) -> None:
    """They ran, and then NotReplayable came."""
    with Once("memory://", cache=cache) as once:
        assert [once.run("charge", "a", body).value for _ in range(2)] == [FIVE] * 2
        stepped: Any = lambda attempt: str(attempt.step("pay", body))  # noqa: E731
        assert [once.run("order", "a", stepped).value for _ in range(2)] == ["5.00"] * 2


def test_an_awaited_partial_says_what_its_function_returns() -> None:
    async def main() -> list[Decimal]:
        async with AsyncOnce("memory://", cache=0) as once:
            body = functools.partial(Charge().later)
            return [(await once.run("charge", "a", body)).value for _ in range(2)]

    assert asyncio.run(main()) == [FIVE] * 2


@pytest.mark.parametrize("body", [functools.partial(handle), Refund()])
def test_a_partial_or_object_that_returns_what_cannot_be_stored_is_refused_before_it_runs(
    body: Callable[..., Any],
) -> None:
    with Once("memory://") as once, pytest.raises(ConfigurationError, match="returns a Handle"):
        once.run("charge", "a", body)
    assert runs == []


def test_what_can_be_called_and_says_nothing_is_stored_as_json() -> None:
    for body in (functools.partial(unannotated), functools.partial(max), dict, Mock(), max):
        assert body_codec(body, "the body of", "charge") is None


def test_codec_of_the_call_goes_before_the_annotation(once: Any) -> None:
    def body(attempt: object) -> Handle:
        return Receipt(FIVE)  # type: ignore[return-value]

    assert [once.run("charge", "a", body, codec=Receipt).value for _ in range(2)] == [
        Receipt(FIVE)
    ] * 2


def test_codec_of_the_engine_goes_before_the_annotation() -> None:
    class Shout:
        name = "shout"

        def dump(self, value: object, /) -> bytes:
            return str(value).encode()

        def load(self, data: bytes, /) -> str:
            return data.decode() + "!"

    with Once("memory://", codec=Shout()) as once:
        assert once.run("charge", "a", decimal).value == "5.00!"
        body: Any = lambda attempt: attempt.step("pay", decimal)  # noqa: E731
        assert once.run("order", "a", body).value == "5.00!!"


def test_answer_that_was_stored_as_json_is_still_read_when_there_is_an_annotation(
    once: Any,
) -> None:
    def found(attempt: object) -> Decimal | None:
        raise AssertionError("it ran before")

    once.run("charge", "a", lambda attempt: None)
    assert once.run("charge", "a", found).value is None


def test_methods_say_what_they_return_as_functions_do() -> None:
    class Shop:
        def charge(self, attempt: object) -> Decimal:
            return FIVE

    with Once("memory://", cache=0) as once:
        assert [once.run("charge", "a", Shop().charge).value for _ in range(2)] == [FIVE] * 2


def test_bodies_of_one_code_may_return_different_types() -> None:
    """A function that makes bodies, and a decorator, give the same code to all of them."""

    def made(kind: Any) -> Any:
        def body(attempt: object) -> Any:
            return kind(FIVE)

        body.__annotations__["return"] = kind
        return body

    with Once("memory://", cache=0) as once:
        for kind in (Decimal, Receipt, Decimal, Receipt):
            assert once.run("charge", kind.__name__, made(kind)).value == kind(FIVE)
        for fn, value in VALUES * 2:
            awaited = functools.wraps(fn)(lambda *args, _value=value: _value)
            assert once.run("order", fn.__name__, awaited).value == value


def test_decorated_bodies_of_two_modules_may_call_their_types_by_one_name() -> None:
    """A decorator gives all its functions the same code, and here they have the same annotation."""

    def decorated(kind: Any) -> Any:
        module = {"Amount": kind, "value": kind(FIVE)}
        exec("def body(attempt) -> 'Amount': return value", module)
        made = module["body"]

        @functools.wraps(made)
        def around(attempt: object) -> Any:
            return made(attempt)

        return around

    with Once("memory://", cache=0) as once:
        for kind in (Decimal, Receipt):
            assert once.run("charge", kind.__name__, decorated(kind)).value == kind(FIVE)


def test_value_that_is_stored_and_cannot_be_read_back_is_in_the_error(once: Any) -> None:
    @dataclass
    class Rising:
        cents: int

        def __post_init__(self) -> None:
            self.cents += 1
            if self.cents > 1:
                raise ValueError("too high")

    def body(*args: Any) -> Any:
        return Rising(0)

    body.__annotations__["return"] = Rising

    def step(key: str, body: Any) -> Any:
        return once.run_steps(key, body, fail=False)

    def run(key: str, body: Any) -> Any:
        return once.run("charge", key, body)

    for call in (run, step):
        with pytest.raises(NotReplayable, match="too high") as caught:
            call("a", body)
        assert isinstance(caught.value.value, Rising)


def test_a_call_with_a_lambda_does_not_read_what_a_typed_body_has_stored(once: Any) -> None:
    once.run("charge", "a", decimal)
    with pytest.raises(NotReplayable, match="stored by codec 'typed', this operation uses 'json'"):
        once.run("charge", "a", lambda attempt: FIVE)
    assert len(runs) == 1
