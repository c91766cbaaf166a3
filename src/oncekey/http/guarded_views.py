"""Knows which functions a decorator has guarded, and checks that an app's routes serve them.

A guard that stands above `@app.post` wraps a function whose bare form the route already holds: it
runs unguarded, and nobody notices. So every decoration leaves a mark here, and every app is checked
for marks that no route leads to. Owns the marks and the check; the adapters bring the routes. Knows
no framework.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any, ClassVar, Final, NamedTuple
from weakref import WeakSet

from oncekey.core.errors import ConfigurationError
from oncekey.http.rules import SAFE_METHODS, Rule

GUARDED_VIEW_ATTRIBUTE: Final = (
    "__oncekey_guarded_view__"  # functools.wraps carries it on to what stands above
)
# How the frameworks say which class a view was made of: Django and Flask, REST framework.
_CLASSES: Final = ("view_class", "cls")
_DEEPEST: Final = 20
UNSERVED: Final = ("refuse", "allow")


class GuardedView:
    """One decorated function. Lives as long as the function does."""

    def __init__(self, function: Callable[..., Any], rule: Rule) -> None:
        self.function = function
        self.rule = rule
        self.is_served = False  # by some app of this process


class ServedView(NamedTuple):
    """A view that a route holds, and the methods it serves; None where the route does not say."""

    view: Any
    methods: Iterable[str] | None


class GuardedViews:
    """All functions that one decorator, or one set-up of it, has guarded.

    apps       those that are known to use it
    unserved   "refuse" or "allow": whether a function that no route serves is an error
    elsewhere  gives the routes of the other apps of the process, and of the routers or blueprints
               that an app may leave out; asked only for functions that an app does not serve
    """

    known: ClassVar[WeakSet[GuardedViews]] = WeakSet()

    def __init__(self, framework: str, order: str, allow: str, unserved: str = "refuse") -> None:
        """`framework` is the package of its apps; `order` says which decorator stands where, and
        `allow` how a user says unserved="allow"."""
        if unserved not in UNSERVED:
            raise ConfigurationError(f"unserved={unserved!r} must be 'refuse' or 'allow'")
        self.framework = framework
        self.unserved = unserved
        self.apps: WeakSet[Any] = WeakSet()
        self.elsewhere: Callable[[], Iterable[ServedView]] = tuple
        self.served: Callable[[], Iterable[ServedView]] | None = None  # of a framework with one app
        self._order = order
        self._allow = allow
        self._all: WeakSet[GuardedView] = WeakSet()
        self._lock = threading.Lock()
        GuardedViews.known.add(self)
        self.version = 0  # grows with each of them, so that a check knows when to look again

    def add(self, guarded: Any, function: Callable[..., Any], rule: Rule) -> None:
        """Mark `guarded`, which a decorator made of `function`."""
        if isinstance(function, type):
            raise ConfigurationError(
                f"{function.__qualname__} is a class; guard its methods, or the view made of it"
            )
        view = GuardedView(function, rule)
        setattr(guarded, GUARDED_VIEW_ATTRIBUTE, view)
        if isinstance(function, functools.partial) or not rule.guarded:
            return  # a partial is made while a request is served, as Django's method_decorator does
        with self._lock:
            self._all.add(view)
            self.version += 1

    def check_order(self, function: Callable[..., Any], served: Iterable[Any]) -> None:
        """Raise ConfigurationError if a route holds what is about to be guarded."""
        held = {id(view) for view in served}
        if any(id(one) in held for one in unwrapped(function)):
            raise ConfigurationError(self._wrong_order(function))

    def check(self, served: Iterable[ServedView], *, unserved: str | None = None) -> None:
        """Raise ConfigurationError for functions that the routes of one app, `served`, run
        unguarded, and for those that no route of the process leads to."""
        routes = _note_served(served)
        with self._lock:
            known = list(self._all)
        holding = {
            id(one): route.methods is not None for route in routes for one in _bare(route.view)
        }
        mistakes = [text for view in known if (text := self._mistake(view, holding))]
        if not mistakes and (unserved or self.unserved) != "allow":
            mistakes = self._unserved(known)
        if mistakes:
            raise ConfigurationError("; ".join(sorted(mistakes)))

    def _mistake(self, view: GuardedView, holding: dict[int, bool]) -> str:
        bare = [holding[id(one)] for one in unwrapped(view.function) if id(one) in holding]
        # Where methods are not told, a bare one beside a guarded one may be for reading only.
        if any(bare) or (bare and not view.is_served):
            return self._wrong_order(view.function)
        if not view.is_served:
            for one in _reachable(view.function):
                if id(one) in holding:
                    return self._wrong_order(one)
        return ""

    def _unserved(self, known: list[GuardedView]) -> list[str]:
        """What to say of functions that no app serves, and that no router or blueprint holds. One
        that another app holds in its bare form is refused there, not here."""
        if all(view.is_served for view in known):
            return []
        held = {id(one) for route in _note_served(self.elsewhere()) for one in _bare(route.view)}
        return [
            f"{_place(view.function)} is guarded, but no route serves it with a method that can be "
            f"guarded. {self._order} Register it so, take its guard away, or say {self._allow} if "
            "it is served elsewhere"
            for view in known
            if not view.is_served and not any(id(one) in held for one in _reachable(view.function))
        ]

    def _wrong_order(self, function: Any) -> str:
        return (
            f"{_place(function)} is guarded, but its route holds the bare function and would run "
            f"it unguarded. {self._order}"
        )


def _place(function: Any) -> str:
    """The name of a function, and where it is written."""
    innermost = list(unwrapped(function))[-1]
    code = getattr(innermost, "__code__", None)
    name = getattr(innermost, "__qualname__", repr(innermost))
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name


def guarded_view_of(view: Any) -> GuardedView | None:
    """The mark on a function itself."""
    found = getattr(view, GUARDED_VIEW_ATTRIBUTE, None)
    return found if isinstance(found, GuardedView) else None


def guard_for_method(view: Any, method: str) -> GuardedView | None:
    """What guards this method of a view that a route holds: the view, or its class's method."""
    own = guarded_view_of(view)
    if own is not None:
        return own if _applies(own, method) else None
    made_of = next(filter(None, (getattr(view, name, None) for name in _CLASSES)), None)
    if made_of is None:
        inside = guarded_views_in(view)
    else:
        action = (getattr(view, "actions", None) or {}).get(method.lower(), method.lower())
        members = [getattr(made_of, name, None) for name in ("dispatch", action)]
        inside = (
            mark for member in members if member is not None for mark in guarded_views_in(member)
        )
    return next((mark for mark in inside if _applies(mark, method)), None)


def _applies(mark: GuardedView, method: str) -> bool:
    return mark.rule.guarded and mark.rule.guards(method)


def guarded_views_in(view: Any) -> Iterator[GuardedView]:
    """Every mark that a view leads to, through whatever stands above the guarded function."""
    for one in _reachable(view):
        if (mark := guarded_view_of(one)) is not None:
            yield mark


def _note_served(served: Iterable[ServedView]) -> list[ServedView]:
    """Note on the marks that routes lead to that they are served. Gives the routes that count:
    those with a method that can be guarded."""
    routes = [route for route in served if not _is_safe(route.methods)]
    for route in routes:
        for view in guarded_views_in(route.view):
            view.is_served = True
    return routes


def _is_safe(methods: Iterable[str] | None) -> bool:
    return methods is not None and set(methods) <= SAFE_METHODS


def _bare(view: Any) -> list[Any]:
    """The functions that a route runs without any guard in between."""
    if guarded_view_of(view) is not None:
        return []
    return [one for one in unwrapped(view) if guarded_view_of(one) is None]


def unwrapped(view: Any) -> Iterator[Any]:
    """A function and what it wraps, as functools.wraps and partial tell it."""
    for _ in range(_DEEPEST):
        if view is None:
            return
        view = view.__func__ if isinstance(view, MethodType) else view
        yield view
        inner = view.func if isinstance(view, functools.partial) else None
        view = inner or getattr(view, "__wrapped__", None)


def _reachable(view: Any) -> Iterator[Any]:
    """A view, what it wraps, the functions it closes over, and the methods of its class."""
    seen: set[int] = set()
    todo = [view]
    for _ in range(_DEEPEST * _DEEPEST):
        if not todo:
            return
        for one in unwrapped(todo.pop()):
            if id(one) in seen:
                break
            seen.add(id(one))
            yield one
            todo += _inside(one)


def _inside(one: Any) -> list[Any]:
    found: list[Any] = []
    if isinstance(one, FunctionType):
        for cell in one.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            if isinstance(content, (FunctionType, MethodType, functools.partial)):
                found.append(content)
    classes = [one] if isinstance(one, type) else [getattr(one, name, None) for name in _CLASSES]
    for made_of in classes:
        if isinstance(made_of, type):
            found += [
                value
                for base in made_of.__mro__
                for value in vars(base).values()
                if isinstance(value, FunctionType)
            ]
    return found
