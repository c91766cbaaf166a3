"""Decorators between a guard and its route: one that keeps the name, one that forgets it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def without_wraps(f: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that forgets functools.wraps."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs)

    inner.__name__ = f.__name__
    return inner


def with_wraps(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs)

    @functools.wraps(f)
    async def async_inner(*args: Any, **kwargs: Any) -> Any:
        return await f(*args, **kwargs)

    return async_inner if inspect.iscoroutinefunction(f) else inner
