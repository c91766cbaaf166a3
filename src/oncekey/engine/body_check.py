"""Checks, before a key is claimed, that a body can be called and will really run.

Without this check, a body that is not callable, takes no attempt, or only makes a generator would
be noticed after the claim, when its key is taken. Only the body's code is read: nothing is called.
"""

from __future__ import annotations

import inspect
import logging
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from oncekey.core.errors import ConfigurationError

_COROUTINE: Final = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE
_GENERATOR: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_KINDS: Final = _COROUTINE | _GENERATOR
_LAMBDA: Final = "<lambda>"
_WARNED_MAX: Final = 1_000
_warned: set[str] = set()
_log = logging.getLogger("oncekey")


def check_body(body: Any, operation: str, *, is_async: bool) -> None:
    """Raise ConfigurationError unless `body(attempt)` can be called and is sync or async as the
    engine needs it."""
    # Nearly every body is a function, a lambda or a method of one argument.
    if type(body) is FunctionType:
        code, count = body.__code__, 1
    elif type(body) is MethodType and type(body.__func__) is FunctionType:
        code, count = body.__func__.__code__, 2
    else:
        _check(body, operation, is_async)
        return
    if code.co_argcount == count and not code.co_kwonlyargcount:
        kind = code.co_flags & _KINDS
        if not is_async:
            if kind == 0:
                return
        elif kind == inspect.CO_COROUTINE or (kind == 0 and code.co_name == _LAMBDA):
            return
    _check(body, operation, is_async)


def warn_blocking(operation: str) -> None:
    """Log, once per operation, that a body of AsyncOnce returned nothing to await. That cannot be
    seen before it ran, and a Python warning could be turned into an error and lose its result."""
    if operation in _warned or len(_warned) >= _WARNED_MAX:
        return
    _warned.add(operation)
    _log.warning(
        "the body of %r gave nothing to await: what it did blocked the event loop. Make it async, "
        "or run it with Once",
        operation,
    )


def _check(body: Any, operation: str, is_async: bool) -> None:
    what = f"the body of {operation!r}"
    if not callable(body):
        raise ConfigurationError(
            f"{what} is a {type(body).__name__} and cannot be called; give a function of the "
            f"attempt, such as lambda attempt: ..."
        )
    function, given, is_exact = _function(body)
    if function is None:
        _bind(body, what)
        return
    if is_exact:
        _check_arguments(function, given, what)
    else:
        _bind(body, what)
    _check_kind(body, function.__code__, what, is_async)


def _function(body: Any) -> tuple[FunctionType | None, int, bool]:
    """The Python function that a call of `body` ends in, how many positional arguments it gets,
    and whether it gets no others; None if the call ends in something else."""
    given = 1
    is_exact = True
    while True:
        if type(body) is FunctionType:
            return body, given, is_exact
        if type(body) is MethodType:
            body, given = body.__func__, given + 1
        elif type(body) is partial:
            given += len(body.args)
            is_exact = is_exact and not body.keywords
            body = body.func
        else:
            made = inspect.getattr_static(type(body), "__call__", None)
            if type(made) is not FunctionType or "__code__" in getattr(body, "__dict__", ()):
                return None, 0, False  # a class, a built-in function, a mock
            body, given = made, given + 1


def _check_arguments(function: FunctionType, given: int, what: str) -> None:
    """Check by the function's own code, not by its signature: a decorator may show another's."""
    code = function.__code__
    takes_more = bool(code.co_flags & inspect.CO_VARARGS)
    required = code.co_argcount - len(function.__defaults__ or ())
    missing = code.co_kwonlyargcount - len(function.__kwdefaults__ or ())
    if required <= given and (given <= code.co_argcount or takes_more) and missing <= 0:
        return
    name = code.co_name if code.co_name == _LAMBDA else f"{code.co_name}()"
    raise ConfigurationError(
        f"{what} is called with its attempt and nothing else, which {name} cannot take; write it "
        "as a function of one argument, such as lambda attempt: ..."
    )


def _bind(body: Any, what: str) -> None:
    try:
        signature = inspect.signature(body, follow_wrapped=False)
    except (TypeError, ValueError) as error:
        if type(body) is not partial or "incorrect arguments" not in str(error):
            return  # its parameters are not known
        refused: Exception = error
    else:
        try:
            signature.bind(None)
            return
        except TypeError as error:
            refused = error
    raise ConfigurationError(
        f"{what} is called with its attempt and nothing else, which it cannot take ({refused})"
    ) from refused


def _check_kind(body: Any, code: CodeType, what: str, is_async: bool) -> None:
    kind = code.co_flags & _KINDS
    if kind & _GENERATOR and not kind & inspect.CO_ITERABLE_COROUTINE:
        raise ConfigurationError(
            f"{what} is a generator function, which would not run when it is called; return plain "
            "values"
        )
    if is_async:
        # Whether a lambda returns something to await is seen only when it is called.
        if not kind and code.co_name != _LAMBDA and not _gives_coroutine(body):
            raise ConfigurationError(
                f"{what}: {code.co_name}() is a plain function, which would block the event loop; "
                "make it async, or run it with Once"
            )
    elif kind:
        raise ConfigurationError(
            f"{what}: {code.co_name}() is async and would not run when it is called; run it with "
            "AsyncOnce"
        )


def _gives_coroutine(body: Any) -> bool:
    """True if a plain function is marked as async, or wraps one that is."""
    try:
        inner = inspect.unwrap(body)
    except ValueError:  # it wraps itself
        return False
    return inspect.iscoroutinefunction(body) or inspect.iscoroutinefunction(inner)
