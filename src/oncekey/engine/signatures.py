"""Declares the types of what `guard` decorates and of what it makes of it. Nothing here runs.

A guarded function keeps its parameters. One that is given its attempt is called without it:

    def charge(order: Order, cents: int) -> Charge              called as charge(order, cents)
    def checkout(attempt: Attempt, cart: Cart) -> Receipt       called as checkout(cart)
    def checkout(cart: Cart, *, attempt: Attempt) -> Receipt    called as checkout(cart)

Of the last form type checkers cannot take the parameter away and keep the others, so its calls are
not checked, only its result is; put `attempt` first where they should be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from oncekey.engine.aio.attempt import AsyncAttempt
from oncekey.engine.blocking.attempt import Attempt

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


# A function that takes its attempt by name, after none to five others. One for each number: no
# protocol can say "however many".


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
    """What `Once.guard(...)` gives: a decorator."""

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
    """What `AsyncOnce.guard(...)` gives: a decorator of coroutine functions."""

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
