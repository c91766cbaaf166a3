"""A wrong body is refused before its key is claimed; one that gives what has not run is
not run again."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from oncekey import (
    AsyncOnce,
    ConfigurationError,
    MissingKey,
    NotReplayable,
    Once,
    OperationFailed,
)
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore

ran: list[object] = []


def plain(attempt: Any) -> str:
    ran.append(attempt)
    return "plain"


async def later(attempt: Any) -> str:
    ran.append(attempt)
    return "later"


def generator(attempt: Any) -> Iterator[int]:
    ran.append(attempt)
    yield 1


async def async_generator(attempt: Any) -> AsyncIterator[int]:
    ran.append(attempt)
    yield 1


def no_argument() -> None:
    ran.append(None)


def two_arguments(attempt: Any, request: Any) -> None:
    ran.append(attempt)


def untyped(fn: Any) -> Any:
    return fn


class Shop:
    """Methods and callable objects as bodies."""

    def charge(self, attempt: Any) -> str:
        return "plain"

    def charge_nothing(self) -> None: ...

    async def charge_later(self, attempt: Any) -> str:
        return "later"

    def __call__(self, attempt: Any) -> str:
        return "plain"


class LaterShop:
    async def __call__(self, attempt: Any) -> str:
        return "later"


@functools.wraps(later)
def wrapping_later(*args: Any) -> Awaitable[str]:
    return later(*args)


@functools.wraps(two_arguments)
def giving_the_second(attempt: Any) -> None:
    two_arguments(attempt, 2)


BLOCKING_REFUSED: list[tuple[Any, str]] = [
    (None, "cannot be called"),
    ("charge", "cannot be called"),
    (later("never"), "cannot be called"),
    (no_argument, r"no_argument\(\) cannot take"),
    (two_arguments, r"two_arguments\(\) cannot take"),
    (lambda: 1, "<lambda> cannot take"),
    (lambda attempt, *, request: 1, "<lambda> cannot take"),
    (Shop().charge_nothing, r"charge_nothing\(\) cannot take"),
    (functools.partial(plain, 1), r"plain\(\) cannot take"),
    (functools.partial(untyped(two_arguments), other=1), "cannot take"),
    (later, "async.*run it with AsyncOnce"),
    (functools.partial(Shop.charge_later, Shop()), "run it with AsyncOnce"),
    (LaterShop(), "run it with AsyncOnce"),
    (generator, "generator function"),
    (async_generator, "generator function"),
]
BLOCKING_TAKEN: list[Any] = [
    plain,
    Shop(),
    Shop().charge,
    functools.partial(Shop.charge, Shop()),
    functools.partial(two_arguments, request=1),
    giving_the_second,
    lambda *args: "plain",
    lambda attempt, request=1, *, more=2: "plain",
    str,
    repr,
]
ASYNC_REFUSED: list[tuple[Any, str]] = [
    *(row for row in BLOCKING_REFUSED if "AsyncOnce" not in row[1]),
    (plain, r"plain\(\) is a plain function.*run it with Once"),
    (Shop().charge, "run it with Once"),
    (Shop(), "run it with Once"),
    (functools.partial(plain), "run it with Once"),
]
ASYNC_TAKEN: list[Any] = [
    later,
    LaterShop(),
    Shop().charge_later,
    functools.partial(Shop.charge_later, Shop()),
    wrapping_later,
    lambda attempt: wrapping_later(attempt, *()),
    lambda attempt: asyncio.ensure_future(later(attempt)),
]


class Counted(MemoryStore):
    claims = 0

    def apply(self, commands: Any, /) -> Any:
        self.claims += 1
        return super().apply(commands)


@pytest.mark.parametrize(("body", "message"), BLOCKING_REFUSED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_once_refuses_a_wrong_body_before_the_claim(body: Any, message: str) -> None:
    ran.clear()
    store = Counted()
    with Once(store) as once, pytest.raises(ConfigurationError, match=message):
        once.run("charge", "k", body)
    assert (store.claims, ran) == (0, [])


@pytest.mark.parametrize(("body", "message"), ASYNC_REFUSED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_async_once_refuses_a_wrong_body_before_the_claim(body: Any, message: str) -> None:
    ran.clear()
    store = Counted()

    async def main() -> None:
        async with AsyncOnce(AsyncMemoryStore(store)) as once:
            with pytest.raises(ConfigurationError, match=message):
                await once.run("charge", "k", body)

    asyncio.run(main())
    assert (store.claims, ran) == (0, [])


def test_anything_that_can_be_called_with_an_attempt_is_a_body() -> None:
    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            for number, body in enumerate(ASYNC_TAKEN):
                assert (await once.run("op", f"k{number}", body)).value == "later"

    with Once("memory://") as once:
        for number, body in enumerate(BLOCKING_TAKEN):
            once.run("op", f"k{number}", body)
    asyncio.run(main())


async def unstarted(attempt: Any) -> Any:
    return later(attempt)


async def waited_first(attempt: Any) -> Any:
    await asyncio.sleep(0)
    return later(attempt)


UNSTARTED: list[Callable[[Any], Any]] = [
    lambda attempt: generator(*[attempt]),
    lambda attempt: async_generator(*[attempt]),
    lambda attempt: unstarted(*[attempt]),
    unstarted,
]


@pytest.mark.parametrize("body", UNSTARTED)
def test_i1_a_body_that_returns_an_unstarted_coroutine_or_generator_is_not_run_again(
    body: Any,
) -> None:
    """What it did before cannot be seen, so its key is not free: somebody has to decide."""
    ran.clear()

    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            with pytest.raises(ConfigurationError, match="has not run"):
                await once.run("charge", "k", body, retry_safe=True)
            assert ran == []
            with pytest.raises(OperationFailed, match="free it by `release`"):
                await once.run("charge", "k", later)

    asyncio.run(main())


@pytest.mark.parametrize("gives", [lambda: later(None), lambda: generator(None)])
def test_i1_an_effect_before_an_unstarted_coroutine_or_generator_happens_once(gives: Any) -> None:
    effects: list[str] = []

    def charge(*arguments: Any) -> Any:
        effects.append("charged")
        return gives()

    with Once("memory://") as once:
        guarded = once.guard("guarded", key=lambda order: order, retry_safe=True)(charge)
        for failure in (ConfigurationError, OperationFailed):
            with pytest.raises(failure):
                once.run("charge", "k", charge, retry_safe=True)
            with pytest.raises(failure):
                guarded("o-1")
    assert effects == ["charged"] * 2


@pytest.mark.filterwarnings("ignore:coroutine 'later'")
def test_i1_a_body_that_waited_and_then_returned_a_coroutine_is_not_run_again() -> None:
    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            with pytest.raises(NotReplayable) as caught:
                await once.run("charge", "k", waited_first)
            caught.value.value.close()  # type: ignore[attr-defined]
            with pytest.raises(NotReplayable):
                await once.run("charge", "k", later)

    asyncio.run(main())


def test_a_lambda_that_returns_nothing_to_await_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    body: Any = lambda attempt: 5  # noqa: E731

    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            assert (await once.run("blocks the loop", "k", body)).value == 5

    asyncio.run(main())
    assert "blocked the event loop" in caplog.text


@pytest.mark.parametrize("key", [None, ""])
def test_a_missing_key_raises_missing_key(key: Any) -> None:
    with Once("memory://") as once:
        with pytest.raises(MissingKey, match="none came"):
            once.run("charge", key, plain)

        @once.guard("charge", key=lambda order: order.get("id"))
        def charge(order: dict[str, str]) -> str:
            return "charged"

        with pytest.raises(MissingKey, match="charge: a key is required"):
            charge({})


def test_calling_a_registered_operation_raises_with_how_to_run_it() -> None:
    with Once("memory://") as once:

        @once.operation("checkout")
        def checkout(attempt: Any, request: Any) -> str:
            return "done"

        with pytest.raises(TypeError, match=r"checkout\.run\(key, request\)"):
            checkout("cart-1", {})
        assert checkout.run("cart-1").value == "done"
