"""The types of the functions that `guard` decorates, and of its results. Nothing here runs.

A guarded function keeps its parameters, except that callers leave out its attempt:

    def charge(order: Order, cents: int) -> Charge              called as charge(order, cents)
    def checkout(attempt: Attempt, cart: Cart) -> Receipt       called as checkout(cart)
    def checkout(cart: Cart, *, attempt: Attempt) -> Receipt    called as checkout(cart)

Type checkers cannot remove the parameter of the last form and keep the others, so only the result
of such a call is checked. Put `attempt` first to have the arguments checked too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from oncekey.engine.attempts.async_attempt import AsyncAttempt
from oncekey.engine.attempts.attempt import Attempt

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
A_contra = TypeVar("A_contra", contravariant=True)
S_contra = TypeVar("S_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)


class AttemptFirst(Protocol[A_contra, P, T_co]):
    """A function whose first parameter is its attempt."""

    def __call__(self, attempt: A_contra, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


class AttemptAfterSelf(Protocol[S_contra, A_contra, P, T_co]):
    """A method whose first parameter is its attempt."""

    def __call__(
        self, instance: S_contra, /, attempt: A_contra, *args: P.args, **kwargs: P.kwargs
    ) -> T_co: ...


# A function that takes its attempt by name, after none to five others. There is one protocol for
# each number, because no protocol can express "any number".


class AttemptOnly(Protocol[A_contra, T_co]):
    def __call__(self, *, attempt: A_contra) -> T_co: ...


class AttemptAfter1(Protocol[A_contra, T_co]):
    def __call__(self, a: Any, /, *, attempt: A_contra) -> T_co: ...


class AttemptAfter2(Protocol[A_contra, T_co]):
    def __call__(self, a: Any, b: Any, /, *, attempt: A_contra) -> T_co: ...


class AttemptAfter3(Protocol[A_contra, T_co]):
    def __call__(self, a: Any, b: Any, c: Any, /, *, attempt: A_contra) -> T_co: ...


class AttemptAfter4(Protocol[A_contra, T_co]):
    def __call__(self, a: Any, b: Any, c: Any, d: Any, /, *, attempt: A_contra) -> T_co: ...


class AttemptAfter5(Protocol[A_contra, T_co]):
    def __call__(self, a: Any, b: Any, c: Any, d: Any, e: Any, /, *, attempt: A_contra) -> T_co: ...


class Guard(Protocol):
    """The decorator that `Once.guard(...)` returns."""

    @overload
    def __call__(self, fn: AttemptFirst[Attempt, P, T], /) -> Callable[P, T]: ...
    @overload
    def __call__(
        self, fn: AttemptAfterSelf[S, Attempt, P, T], /
    ) -> Callable[Concatenate[S, P], T]: ...
    @overload
    def __call__(self, fn: AttemptOnly[Attempt, T], /) -> Callable[..., T]: ...
    @overload
    def __call__(self, fn: AttemptAfter1[Attempt, T], /) -> Callable[..., T]: ...
    @overload
    def __call__(self, fn: AttemptAfter2[Attempt, T], /) -> Callable[..., T]: ...
    @overload
    def __call__(self, fn: AttemptAfter3[Attempt, T], /) -> Callable[..., T]: ...
    @overload
    def __call__(self, fn: AttemptAfter4[Attempt, T], /) -> Callable[..., T]: ...
    @overload
    def __call__(self, fn: AttemptAfter5[Attempt, T], /) -> Callable[..., T]: ...
    @overload
    def __call__(self, fn: Callable[P, T], /) -> Callable[P, T]: ...


class AsyncGuard(Protocol):
    """The decorator of coroutine functions that `AsyncOnce.guard(...)` returns."""

    @overload
    def __call__(
        self, fn: AttemptFirst[AsyncAttempt, P, Awaitable[T]], /
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(
        self, fn: AttemptAfterSelf[S, AsyncAttempt, P, Awaitable[T]], /
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(
        self, fn: AttemptOnly[AsyncAttempt, Awaitable[T]], /
    ) -> Callable[..., Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(
        self, fn: AttemptAfter1[AsyncAttempt, Awaitable[T]], /
    ) -> Callable[..., Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(
        self, fn: AttemptAfter2[AsyncAttempt, Awaitable[T]], /
    ) -> Callable[..., Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(
        self, fn: AttemptAfter3[AsyncAttempt, Awaitable[T]], /
    ) -> Callable[..., Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(
        self, fn: AttemptAfter4[AsyncAttempt, Awaitable[T]], /
    ) -> Callable[..., Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(
        self, fn: AttemptAfter5[AsyncAttempt, Awaitable[T]], /
    ) -> Callable[..., Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, fn: Callable[P, Awaitable[T]], /) -> Callable[P, Coroutine[Any, Any, T]]: ...
