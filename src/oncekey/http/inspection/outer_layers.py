"""Finds the layers of a view outside of its guard: decorators, and the dispatch of its class.

They run when the outcome is stored, and so does a commit in one of them: if it fails, retries get a
success for rows that do not exist (I16). The guard cannot be moved around them, because a layer may
as well be what refuses strangers, and must do so before any replay (I15). So a layer whose code
names a commit is reported by the log and by `oncekey doctor`. Nothing is called.

Knows no adapter, and of Flask, Django and REST framework only how they make views of classes.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator
from contextlib import ContextDecorator
from types import FunctionType, MethodType
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from oncekey.engine.body_check import code_of, commits_after, names_in
from oncekey.http.inspection.guarded_views import (
    GuardedView,
    ServedView,
    closure_of,
    guarded_view_of,
    location_of,
    unwrapped,
    view_class_of,
)

COMMIT_REMEDY: Final = (
    "put @idempotent above the decorator that commits, or commit in the guarded function"
)
_CALL: Final = "__call__"
_DISPATCH: Final = ("dispatch", "dispatch_request")  # of Django, of Flask
_VIEW_OF_CLASS: Final = "as_view.<locals>.view"  # how all of them name the function they make
_OURS: Final = "oncekey"
_HARMLESS: Final = frozenset((_OURS, "django"))  # whose `atomic` is refused, see django/
_SEARCHED_MAX: Final = 400  # functions of one view

_log = logging.getLogger("oncekey")
_logged: Final[WeakKeyDictionary[GuardedView, set[str]]] = WeakKeyDictionary()


class OuterLayers(NamedTuple):
    """A guard that a view leads to, what runs around it, outermost first, and what it guards."""

    guard: GuardedView
    layers: tuple[Any, ...]
    guarded: str


def outer_layers(view: Any) -> Iterator[OuterLayers]:
    """The guards of a view, the outermost on each path, with the layers around them."""
    yield from _Search().paths(view, ())


def late_commits(served: Iterable[ServedView]) -> Iterator[tuple[GuardedView, str]]:
    """A sentence for each guard with a layer around it that looks as if it commits. A guard that
    opens a transaction of the framework's own is left out: the layer's commit is the key's too."""
    for route in served:
        for outer in outer_layers(route.view):
            names = list(dict.fromkeys(map(_described, _committing(outer.layers))))
            if names and outer.guard.rule.guarded and outer.guard.database is None:
                are, name = ("is", "names") if len(names) == 1 else ("are", "name")
                yield (
                    outer.guard,
                    f"{' and '.join(names)} {are} outside of the guard of {outer.guarded} and "
                    f"{name} a commit. The outcome is stored before it: if that commit fails, "
                    "retries get a success for rows that do not exist",
                )


def warn_of_late_commits(served: Iterable[ServedView], remedy: str = COMMIT_REMEDY) -> None:
    """Log each of these sentences once."""
    for guard, text in late_commits(served):
        logged = _logged.setdefault(guard, set())
        if text not in logged:
            logged.add(text)
            _log.warning("%s. %s%s", text, remedy[:1].upper(), remedy[1:])


# --- the search for guards ------------------------------------------------------------------------


class _Search:
    """The search of one view, which looks at each function once."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._view_class: type | None = None

    def paths(self, one: Any, above: tuple[Any, ...], name: str = "") -> list[OuterLayers]:
        """The guards that a function leads to, inside of the layers `above`; `name` is that of a
        method."""
        one = getattr(one, "__func__", one)
        if id(one) in self._seen or len(self._seen) > _SEARCHED_MAX:
            return []
        self._seen.add(id(one))
        guard = guarded_view_of(one)
        if guard is not None and _is_ours(one):
            return [OuterLayers(guard, above, _guarded(guard, name))]
        # In Flask only the outermost decorator knows the class that the view was made of.
        self._view_class = view_class_of(one) or self._view_class
        if self._view_class is not None and _is_made_of_class(one):
            return list(self._of_class(self._view_class, (*above, one)))
        found = [path for inner in _inner(one) for path in self.paths(inner, (*above, one), name)]
        if not found and guard is not None:
            # Django's method_decorator applies its decorators at each request.
            found = [OuterLayers(guard, (*above, one), _guarded(guard, name))]
        return found

    def _of_class(self, view_class: type, above: tuple[Any, ...]) -> Iterator[OuterLayers]:
        around, own = above, []
        for name in _DISPATCH:
            own += self._of_method(view_class, name, above)
            for function in _defined(view_class, name):
                around = (*around, *unwrapped(function))
        yield from own
        for name in sorted(set(dir(view_class)) - set(_DISPATCH)):
            if not any(path.guard.rule.guards(name.upper()) for path in own):
                yield from self._of_method(view_class, name, around)

    def _of_method(self, view_class: type, name: str, above: tuple[Any, ...]) -> list[OuterLayers]:
        """The guards of a method, or of the one that it overrides and calls."""
        for function in _defined(view_class, name):
            found = self.paths(function, above, f"{view_class.__qualname__}.{name}")
            code = code_of(function)
            if found or code is None or not {"super", name} & set(names_in(code)):
                return found
            above = (*above, *unwrapped(function))
        return []


def _is_ours(one: Any) -> bool:
    return type(one) is FunctionType and _package(one) == _OURS


def _package(function: Any) -> str:
    """Where a function was written, whatever functools.wraps says."""
    return str(getattr(function, "__globals__", {}).get("__name__", "")).partition(".")[0]


def _is_made_of_class(one: Any) -> bool:
    code = code_of(one)
    return code is not None and code.co_qualname.endswith(_VIEW_OF_CLASS)


def _inner(one: Any) -> list[Any]:
    """What a function may call: what it wraps, and the functions in its closure."""
    called = one.func if isinstance(one, functools.partial) else None
    wrapped = getattr(one, "__wrapped__", None)
    kinds = (FunctionType, MethodType, functools.partial)
    in_closure = [
        content
        for content in closure_of(one).values()
        if isinstance(content, kinds) or guarded_view_of(content) is not None
    ]
    return [inner for inner in (called, wrapped, *in_closure) if inner is not None]


def _defined(view_class: type, name: str) -> list[Any]:
    """The methods of this name, from the class itself to the last of its bases."""
    found = [vars(base)[name] for base in view_class.__mro__ if name in vars(base)]
    return [one for one in found if isinstance(one, FunctionType) or guarded_view_of(one)]


def _guarded(guard: GuardedView, method: str) -> str:
    """What is guarded, in words. Django's method_decorator leaves no function of the project."""
    innermost = list(unwrapped(guard.function))[-1]
    return method if method and _package(innermost) in _HARMLESS else location_of(guard.function)


# --- what commits ---------------------------------------------------------------------------------


def _committing(layers: tuple[Any, ...]) -> Iterator[Any]:
    """The functions of these layers that name a commit which comes after the guarded view."""
    path = {id(inner) for layer in layers for inner in unwrapped(layer)}
    for layer in layers:
        inner = {
            name
            for name, content in closure_of(layer).items()
            if id(content) in path or guarded_view_of(content) is not None
        }
        own = layer if code_of(layer) is not None else getattr(type(layer), _CALL, None)
        around = [(own, inner | {"super"})]
        for one in attached(layer):
            if id(one) not in path:
                around.append((_function_of(one), _first_parameter(one)))
        for function, called in around:
            if _is_judged(function) and commits_after(function, called):
                yield function


def attached(layer: Any) -> Iterator[Any]:
    """What a layer has in its closure, and in the lists there. In the list of decorators that
    Django's method_decorator has, innermost first, those below our own are inside of the guard."""
    for content in closure_of(layer).values():
        if not isinstance(content, (list, tuple)):
            yield content
            continue
        ours = [number for number, one in enumerate(content) if _is_ours(one)]
        yield from content[ours[-1] + 1 :] if ours else content


def _function_of(one: Any) -> Any:
    """The function of what is in a closure: a context manager's, or itself."""
    if isinstance(one, ContextDecorator):
        return getattr(one, "func", None) or type(one).__dict__.get("__exit__")
    return one if type(one) is FunctionType else None


def _first_parameter(one: Any) -> set[str]:
    """The name by which a decorator knows what it decorates."""
    code = code_of(one)
    return set(code.co_varnames[: min(code.co_argcount, 1)]) if code is not None else set()


def _is_judged(function: Any) -> bool:
    return code_of(function) is not None and _package(function) not in _HARMLESS


def _described(function: Any) -> str:
    code = function.__code__
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
