"""Records which functions a decorator guards, and checks that an app's routes serve them guarded.

A guard that stands above `@app.post` has no effect: the route already has the undecorated function,
and runs it unguarded. Therefore every guarded function is recorded, and every app is checked for
guarded functions that its routes serve undecorated or not at all. Owns the records and the check;
the adapters list the routes. Knows no framework.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import FunctionType, MethodType
from typing import Any, ClassVar, Final, NamedTuple
from weakref import WeakSet

from oncekey.core.errors import ConfigurationError
from oncekey.http.rules import SAFE_METHODS, Rule

# functools.wraps copies it to the decorators above the guard.
GUARDED_VIEW_ATTRIBUTE: Final = "__oncekey_guarded_view__"
# The attribute with the class that a view was made of: of Django and Flask, of REST framework.
_CLASS_ATTRIBUTES: Final = ("view_class", "cls")
_WRAPPERS_MAX: Final = 20
UNSERVED: Final = ("refuse", "allow")


class GuardedView:
    """The record of one decorated function, an attribute of the decorated form."""

    def __init__(
        self, function: Callable[..., Any], rule: Rule, database: str | None = None
    ) -> None:
        """`database` is the alias of the one whose transaction the guard opens itself, if any."""
        self.function = function
        self.rule = rule
        self.database = database
        self.is_served = False  # by a route of any app of this process


class ServedView(NamedTuple):
    """The view of a route, and the methods of the route; None if they are unknown."""

    view: Any
    methods: Iterable[str] | None


class GuardedViews:
    """All functions that one decorator guards, or one guard object of FastAPI.

    apps           the apps that are known to use it
    unserved       "refuse" or "allow": whether a function that no route serves is an error
    project_views  lists the views of the one app that a process of this framework has; None if
                   there can be several apps
    other_views    lists the views of the other apps of the process, and of routers or blueprints
                   that no app includes; called only if an app does not serve a function
    """

    known: ClassVar[WeakSet[GuardedViews]] = WeakSet()

    def __init__(self, framework: str, order: str, allow: str, unserved: str = "refuse") -> None:
        """`framework` is the package of the apps; `order` and `allow` are for error messages: which
        decorator stands where, and how a user writes unserved="allow"."""
        if unserved not in UNSERVED:
            raise ConfigurationError(f"unserved={unserved!r} must be 'refuse' or 'allow'")
        self.framework = framework
        self.unserved = unserved
        self.apps: WeakSet[Any] = WeakSet()
        self.other_views: Callable[[], Iterable[ServedView]] = tuple
        self.project_views: Callable[[], Iterable[ServedView]] | None = None
        self._order = order
        self._allow = allow
        self._all: WeakSet[GuardedView] = WeakSet()
        self._lock = threading.Lock()
        GuardedViews.known.add(self)
        self.version = 0  # grows with each function, so that a check knows when to run again

    def add(
        self,
        guarded: Any,
        function: Callable[..., Any],
        rule: Rule,
        database: str | None = None,
    ) -> None:
        """Record `guarded`, which a decorator made of `function`."""
        if isinstance(function, type):
            raise ConfigurationError(
                f"{function.__qualname__} is a class; guard its methods, or the view made of it"
            )
        view = GuardedView(function, rule, database)
        setattr(guarded, GUARDED_VIEW_ATTRIBUTE, view)
        if isinstance(function, functools.partial) or not rule.guarded:
            return  # Django's method_decorator makes a partial for each request
        with self._lock:
            self._all.add(view)
            self.version += 1

    def check_order(self, function: Callable[..., Any], served: Iterable[Any]) -> None:
        """Raise ConfigurationError if a route already has the function that is being guarded."""
        served_ids = {id(view) for view in served}
        if any(id(one) in served_ids for one in unwrapped(function)):
            raise ConfigurationError(self._wrong_order(function))

    def check(self, served: Iterable[ServedView], *, unserved: str | None = None) -> None:
        """Raise ConfigurationError for guarded functions that the views of an app, `served`, run
        unguarded, and for those that no route of the process serves."""
        routes = _record_served(served)
        with self._lock:
            known = list(self._all)
        # By id: whether the methods of the route that runs the undecorated function are known.
        undecorated = {
            id(one): route.methods is not None
            for route in routes
            for one in _undecorated(route.view)
        }
        errors = [text for view in known if (text := self._order_error(view, undecorated))]
        if not errors and (unserved or self.unserved) != "allow":
            errors = self._unserved_errors(known)
        if errors:
            raise ConfigurationError("; ".join(sorted(errors)))

    def _order_error(self, view: GuardedView, undecorated: dict[int, bool]) -> str:
        served = [
            undecorated[id(one)] for one in unwrapped(view.function) if id(one) in undecorated
        ]
        # If a route's methods are unknown, it may serve the undecorated form for reading only.
        if any(served) or (served and not view.is_served):
            return self._wrong_order(view.function)
        if not view.is_served:
            for one in _reachable(view.function):
                if id(one) in undecorated:
                    return self._wrong_order(one)
        return ""

    def _unserved_errors(self, known: list[GuardedView]) -> list[str]:
        """Errors for functions that no app, router or blueprint serves. A function that another app
        serves undecorated is an error of that app, not of this one."""
        if all(view.is_served for view in known):
            return []
        others = _record_served(self.other_views())
        undecorated = {id(one) for route in others for one in _undecorated(route.view)}
        return [
            f"{location_of(view.function)} is guarded, but no route serves it with a method that "
            f"can be guarded. {self._order} Register it so, take its guard away, or say "
            f"{self._allow} if it is served elsewhere"
            for view in known
            if not view.is_served
            and not any(id(one) in undecorated for one in _reachable(view.function))
        ]

    def _wrong_order(self, function: Any) -> str:
        return (
            f"{location_of(function)} is guarded, but its route holds the bare function and would "
            f"run it unguarded. {self._order}"
        )


def location_of(function: Any) -> str:
    """The name of a function, and the line where it is defined."""
    innermost = list(unwrapped(function))[-1]
    code = getattr(innermost, "__code__", None)
    name = getattr(innermost, "__qualname__", repr(innermost))
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name


def guarded_view_of(view: Any) -> GuardedView | None:
    """The record on a function itself, or None."""
    record = getattr(view, GUARDED_VIEW_ATTRIBUTE, None)
    return record if isinstance(record, GuardedView) else None


def guard_for_method(view: Any, method: str) -> GuardedView | None:
    """The guarded function that serves this HTTP method of a route's view: the view itself, or a
    method of its class. None if it is not guarded."""
    own = guarded_view_of(view)
    if own is not None:
        return own if _applies(own, method) else None
    view_class = view_class_of(view)
    if view_class is None:
        candidates = guarded_views_in(view)
    else:
        action = (getattr(view, "actions", None) or {}).get(method.lower(), method.lower())
        members = [getattr(view_class, name, None) for name in ("dispatch", action)]
        candidates = (
            found for member in members if member is not None for found in guarded_views_in(member)
        )
    return next((found for found in candidates if _applies(found, method)), None)


def view_class_of(view: Any) -> type | None:
    """The class that the view of a route was made of, or None."""
    classes = (getattr(view, name, None) for name in _CLASS_ATTRIBUTES)
    return next((one for one in classes if isinstance(one, type)), None)


def _applies(view: GuardedView, method: str) -> bool:
    return view.rule.guarded and view.rule.guards(method)


def guarded_views_in(view: Any) -> Iterator[GuardedView]:
    """All guarded functions that a view leads to, through other decorators and classes."""
    for one in _reachable(view):
        if (record := guarded_view_of(one)) is not None:
            yield record


def _record_served(served: Iterable[ServedView]) -> list[ServedView]:
    """Record that guarded functions are served by these routes. Returns the routes that matter,
    which have a method that can be guarded."""
    routes = [route for route in served if not _is_safe(route.methods)]
    for route in routes:
        for view in guarded_views_in(route.view):
            view.is_served = True
    return routes


def _is_safe(methods: Iterable[str] | None) -> bool:
    return methods is not None and set(methods) <= SAFE_METHODS


def _undecorated(view: Any) -> list[Any]:
    """The functions that a route runs without a guard."""
    if guarded_view_of(view) is not None:
        return []
    return [one for one in unwrapped(view) if guarded_view_of(one) is None]


def unwrapped(view: Any) -> Iterator[Any]:
    """A function and all functions that it wraps by functools.wraps or partial."""
    for _ in range(_WRAPPERS_MAX):
        if view is None:
            return
        view = view.__func__ if isinstance(view, MethodType) else view
        yield view
        inner = view.func if isinstance(view, functools.partial) else None
        view = inner or getattr(view, "__wrapped__", None)


def closure_of(function: Any) -> dict[str, Any]:
    """What a function has in its closure, by name."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found: dict[str, Any] = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with suppress(ValueError):  # not filled yet
            found[name] = cell.cell_contents
    return found


def _reachable(view: Any) -> Iterator[Any]:
    """A view, the functions it wraps or has in its closure, and the methods of its class."""
    seen: set[int] = set()
    pending = [view]
    for _ in range(_WRAPPERS_MAX * _WRAPPERS_MAX):
        if not pending:
            return
        for one in unwrapped(pending.pop()):
            if id(one) in seen:
                break
            seen.add(id(one))
            yield one
            pending += _contained(one)


def _contained(one: Any) -> list[Any]:
    found: list[Any] = []
    if isinstance(one, FunctionType):
        kinds = (FunctionType, MethodType, functools.partial)
        found += [content for content in closure_of(one).values() if isinstance(content, kinds)]
    classes = (
        [one] if isinstance(one, type) else [getattr(one, name, None) for name in _CLASS_ATTRIBUTES]
    )
    for made_of in classes:
        if isinstance(made_of, type):
            found += [
                value
                for base in made_of.__mro__
                for value in vars(base).values()
                if isinstance(value, FunctionType)
            ]
    return found
