"""Which codec stores what a body of `run` returns, or the function of a step: the one that its
annotation says, as for a guarded function.

Bodies are often made for one call each, so what was found is kept by their code. A partial says
what its function does, an object that can be called what its `__call__` does.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import typing
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

from oncekey.core.codec import Codec
from oncekey.core.step_format import StepResult
from oncekey.core.typed_codecs import return_hint, type_codec

# What has this name has no annotation, or that is what its callers compare before they ask here.
LAMBDA: Final = "<lambda>"
_KNOWN_MAX: Final = 1_000
_JSON_TYPES: Final = (str, int, float, dict, list)
# By the id of a function's code and its annotation, with the code, so that no other gets that id.
_known: dict[tuple[int, Any], tuple[object, Codec | None]] = {}


def body_codec(fn: Any, kind: str, name: str) -> Codec | None:
    """The codec for what this function is annotated to return; None if that is plain JSON, or if no
    annotation says. Raises ConfigurationError for a type that could not be stored; the error calls
    the function by `kind` and `name`."""
    function = fn if type(fn) is FunctionType else _function_of(fn)
    if function is None:
        return None
    try:
        annotation = function.__annotations__.get("return")
        if annotation is None:
            return None
        # Every function that a decorator made has the same code.
        whose = inspect.unwrap(function) if hasattr(function, "__wrapped__") else function
        key = (id(whose.__code__), annotation)
        known = _known.get(key)
    except Exception:  # it names what is not there, wraps itself, or cannot be hashed
        return _found(function, kind, name)
    if known is None:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        known = _known[key] = (whose.__code__, _found(function, kind, name))
    return known[1]


def _function_of(fn: Any) -> FunctionType | None:
    """The function that a call of this ends in; None if it ends in something else."""
    while type(fn) is not FunctionType:
        if type(fn) is MethodType:
            fn = fn.__func__
        elif isinstance(fn, partial):
            fn = fn.func
        else:
            fn = inspect.getattr_static(type(fn), "__call__", None)
            return fn if type(fn) is FunctionType else None
    return fn


def _found(function: Callable[..., Any], kind: str, name: str) -> Codec | None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return None  # nothing of it runs when it is called, and it is refused for that
    hint = return_hint(function)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(origin, type) and issubclass(origin, collections.abc.Awaitable) and args:
        hint = args[-1]
    if typing.get_origin(hint) is StepResult:
        (hint,) = typing.get_args(hint)
    if hint is None or isinstance(hint, typing.TypeVar) or _may_be_json(hint):
        return None
    return type_codec(hint, f"{kind} {name!r}")


def _may_be_json(hint: Any) -> bool:
    """True of what says nothing of the value to store, and of classes that JSON takes, as those of
    many clients are: their values come back as plain ones."""
    parts = typing.get_args(hint) or (hint,)
    if any(StepResult in (part, typing.get_origin(part)) for part in parts):
        return True
    if not isinstance(hint, type) or not issubclass(hint, _JSON_TYPES):
        return False
    is_own = dataclasses.is_dataclass(hint) or issubclass(hint, enum.Enum)
    return not is_own and not typing.is_typeddict(hint)
