"""What can be known of a body before it runs: that it can be called, and the codec for its value.

1. Without the check, a body that is not callable, takes no attempt, or only makes a generator would
   be noticed after the claim, when its key is taken.
2. The annotation of a body of `run`, or of a step's function, says which codec stores what it
   returns, as for a guarded function.
3. The names in its compiled code say whether it seems to commit: good for a warning, not for a
   decision, because what it leaves to other functions is not followed.

Only a body's code is read: nothing is called.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import dis
import enum
import inspect
import logging
import typing
from collections.abc import Callable, Collection, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from oncekey.core.codec import Codec
from oncekey.core.errors import ConfigurationError
from oncekey.core.step_format import StepResult
from oncekey.core.typed_codecs import return_hint, type_codec

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
    function = fn if type(fn) is FunctionType else _annotated(fn)
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


def _annotated(fn: Any) -> FunctionType | None:
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


_COMMIT: Final = "commit"
_COMMITTING: Final = frozenset(("atomic", "begin"))
_COMMITTED: Final = frozenset(("on_commit",))  # it registers what a commit is followed by


def mentions_commit(function: Any) -> bool:
    """True if a function names a commit, or what commits at its end."""
    code = code_of(function)
    return code is not None and any(map(_is_commit, names_in(code)))


def commits_after(function: Any, called: Collection[str]) -> bool:
    """True if a function names a commit that can come after its call of something, which has one of
    the names `called` in it.

    A `session.commit()` on a line above the first call is over by then. What commits at the end of
    a block may stand anywhere, and so may what is in a nested function. If no call is found, every
    commit counts.
    """
    code = code_of(function)
    if code is None:
        return False
    if any(name != _COMMIT and _is_commit(name) for name in names_in(code)):
        return True
    for each in _codes_in(code):
        commits = [line for name, line in _loads_of(each) if name == _COMMIT]
        calls = [
            line for inner in _codes_in(each) for name, line in _loads_of(inner) if name in called
        ]
        if commits and (not calls or max(commits) >= min(calls)):
            return True
    return False


def code_of(function: Any) -> CodeType | None:
    """The code of a function or a method; None of anything else."""
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def names_in(code: CodeType) -> Iterator[str]:
    """Every name in a function and in the functions defined in it."""
    for each in _codes_in(code):
        yield from each.co_names
        yield from each.co_varnames
        yield from each.co_freevars


def _is_commit(name: str) -> bool:
    return ("commit" in name.lower() and name not in _COMMITTED) or name in _COMMITTING


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of the functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


def _loads_of(code: CodeType) -> Iterator[tuple[str, int]]:
    """Every name that is read in a function, and its line."""
    for instruction in dis.get_instructions(code):
        line = instruction.positions.lineno if instruction.positions is not None else None
        is_name = instruction.opname.startswith("LOAD_") and instruction.opcode not in dis.hasconst
        if line is None or not is_name:
            continue
        found = instruction.argval  # two names, where two variables are read at once
        for name in found if isinstance(found, tuple) else (found,):
            if isinstance(name, str):
                yield name, line
