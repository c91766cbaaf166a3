"""What `guard` and `operation` check of a function when they decorate it, and how it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oncekey.core.errors import ConfigurationError, NotStarted
from oncekey.core.identity import KeyLike
from oncekey.engine.attempts.runner_base import whole_call

Picker = Callable[..., Any]


class NeverCalled(NotStarted, TypeError):
    """The arguments do not fit the function: it was not entered, so its key stays free."""


def call(fn: Callable[..., Any], arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """Call a guarded function. A call that never reached it must not be stored as its failure."""
    args, kwargs = arguments
    whole = whole_call(fn, *args, **kwargs)
    try:
        return whole[0]
    except TypeError as error:
        here = error.__traceback__
        if here is not None and here.tb_next is None and inspect.isroutine(fn):
            raise NeverCalled(str(error)) from error
        raise


@dataclass(frozen=True, slots=True)
class Guarded:
    """A guarded function: how to run it under a key that is taken from the call's arguments.

    `attempt_at` is the position of its parameter `attempt`, if it has a positional one.
    """

    fn: Callable[..., Any]
    operation: str
    key: Picker
    scope: str | Picker
    request: Picker | None
    codec: Any
    options: Mapping[str, Any]
    wants_attempt: bool
    attempt_at: int | None = None

    def run(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `run`, which is that of Once or AsyncOnce, for a call with these arguments."""
        key, scope, request = self.pick(args, kwargs)
        return run(
            self.operation,
            key,
            lambda attempt: call(self.fn, self.arguments(args, kwargs, attempt)),
            scope=scope,
            request=request,
            codec=self.codec,
            **self.options,
        )

    def pick(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[KeyLike, str, Any]:
        """Key, scope and request of a call with these arguments."""
        key: KeyLike = self.key(*args, **kwargs)
        scope = self.scope if isinstance(self.scope, str) else self.scope(*args, **kwargs)
        request = self.request(*args, **kwargs) if self.request is not None else None
        return key, scope, request

    def arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], attempt: object
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the function with: the call's own arguments, and its attempt."""
        if not self.wants_attempt:
            return args, kwargs
        at = self.attempt_at
        if at is None or len(args) <= at:
            return args, {**kwargs, "attempt": attempt}
        return (*args[:at], attempt, *args[at:]), kwargs


def guarded(
    fn: Callable[..., Any],
    operation: str,
    *,
    key: Picker,
    scope: str | Picker,
    request: Picker | None,
    codec: Any,
    codec_of: Callable[..., Any],
    options: Mapping[str, Any],
    is_async: bool,
) -> Guarded:
    """Check a function and its pickers; mistakes show at import time, not on the first call."""
    if not callable(key):
        raise ConfigurationError(f"guard({operation!r}): key must be a function of the arguments")
    if not isinstance(scope, str) and not callable(scope):
        raise ConfigurationError(f"guard({operation!r}): scope must be text or a function")
    if request is not None and not callable(request):
        raise ConfigurationError(f"guard({operation!r}): request must be a function")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(
            f"guard({operation!r}): a generator has no one answer to store; guard a function"
        )
    if _is_async(fn) is not is_async:
        right, kind = ("Once", "plain") if is_async else ("AsyncOnce", "async")
        name = getattr(fn, "__name__", repr(fn))  # a partial has no name
        raise ConfigurationError(f"guard({operation!r}): {name} is {kind}; guard it with {right}")
    parameters = inspect.signature(fn).parameters
    parameter = parameters.get("attempt")
    wants = parameter is not None and parameter.kind is not parameter.POSITIONAL_ONLY
    at = None
    if parameter is not None and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
        at = list(parameters).index("attempt")
    codec = codec_of(fn, operation, codec, f"guard({operation!r})")
    return Guarded(fn, operation, key, scope, request, codec, options, wants, at)


def check_operation(fn: Callable[..., Any], operation: str, *, is_async: bool) -> None:
    """Raise ConfigurationError unless the function can be that of a registered operation."""
    what = f"operation({operation!r})"
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(f"{what}: a generator has no one answer to store")
    if _is_async(fn) is not is_async:
        right, kind = ("Once", "plain") if is_async else ("AsyncOnce", "async")
        raise ConfigurationError(f"{what}: it is {kind}; register it with {right}")
    try:
        inspect.signature(fn).bind("attempt", "request")
    except TypeError as error:
        raise ConfigurationError(
            f"{what}: it is called as fn(attempt, request), which it cannot take ({error})"
        ) from error


def check_recover(recover: Any, operation: str) -> None:
    """Raise ConfigurationError for an async `recover`, which Once cannot await."""
    if callable(recover) and _is_async(recover):
        raise ConfigurationError(
            f"operation({operation!r}): its recover= is async; register it with AsyncOnce"
        )


def _is_async(fn: Callable[..., Any]) -> bool:
    """Also true of an object with an async `__call__`."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
