"""A registered operation: one that somebody else can finish.

Owns how its caller runs it, in either colour. Its arguments are kept with its key before it begins,
so that a completer can run it to its end should nobody come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from oncekey.core.identity import KeyLike
from oncekey.engine.completer_base import Registered

R = TypeVar("R", covariant=True)


class _Run(Protocol[R]):
    def __call__(self, registered: Registered, key: KeyLike, request: Any, scope: str, /) -> R: ...


class Operation(Generic[R]):
    """What `@once.operation(...)` makes of a function `fn(attempt, request)`; R is a Result, or
    of an AsyncOnce what is awaited for one."""

    def __init__(self, fn: Callable[..., Any], registered: Registered, run: _Run[R]) -> None:
        self.fn = fn
        self.name = registered.operation
        self._registered = registered
        self._run = run

    def run(self, key: KeyLike, request: Any = None, *, scope: str = "") -> R:
        """Run it at most once for this key, or replay what it answered. `request` must be plain
        values: `fn` is given them as JSON gives them back."""
        return self._run(self._registered, key, request, scope)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: called like the function it was made from, it would have no key."""
        raise TypeError(
            f"the operation {self.name!r} is not called but run, under a key: "
            f"{getattr(self.fn, '__name__', 'operation')}.run(key, request). The plain function is "
            "its .fn"
        )

    def __repr__(self) -> str:
        return f"<operation {self.name!r}>"
