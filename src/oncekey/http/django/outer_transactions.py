"""Finds the transactions that a Django project opens around a guarded view.

Such a transaction is committed after the outcome is stored, and if that fails, retries get a
response for rows that do not exist (I16). middleware.py refuses it when a request with a key comes.
This module finds it before, from the URL patterns and settings, for `manage.py check`, `runserver`
and `oncekey doctor`. It calls no view, and sees `transaction.atomic` and ATOMIC_REQUESTS; what a
decorator of the project's own or a middleware opens is left to the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any, Final

from django.conf import settings
from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from oncekey.http.django.served_views import project_views
from oncekey.http.django.settings import SETTING
from oncekey.http.guarded_views import GuardedView, guarded_view_of, location_of, unwrapped

MIDDLEWARE: Final = "oncekey.http.django.IdempotencyMiddleware"
_CLASS_ATTRIBUTES: Final = ("view_class", "cls")  # of Django, of REST framework
_WRONG_ID: Final = "oncekey.E002"


def refusal(alias: str, view: str = "this guarded view") -> str:
    """What is wrong with an open transaction of a database around a view, and what to write."""
    return (
        f"a transaction of the database {alias!r} is open around {view}, and would be committed "
        "after the outcome is stored. Put @idempotent above @transaction.atomic, or "
        "IdempotencyMiddleware above a middleware that opens it; under ATOMIC_REQUESTS use "
        "@idempotent(transaction=True), IdempotencyMiddleware, or non_atomic_requests"
    )


@checks.register(checks.Tags.urls)  # type: ignore[untyped-decorator]
def _system_check(app_configs: Any, **_: Any) -> list[Any]:
    """The check of `manage.py check` and `runserver`."""
    return [checks.Error(text, id=_WRONG_ID) for text in late_transactions()]


def late_transactions() -> list[str]:
    """Return a sentence for each guarded view of the project that a transaction is around."""
    if is_guarded_by_middleware():
        return []  # its guard is outside of every view
    found = {}
    for served in project_views():
        for record, aliases in _guards_in(served.view):
            for alias in sorted(aliases | _atomic_requests(served.view)):
                if record.rule.guarded and alias != record.database:
                    found[refusal(alias, location_of(record.function))] = True
    return list(found)


def is_guarded_by_middleware() -> bool:
    """Whether the middleware has rules, by which it guards views from outside."""
    options = getattr(settings, SETTING, None) or {}
    return MIDDLEWARE in settings.MIDDLEWARE and options.get("rules", ()) is not None


def _atomic_requests(view: Any) -> set[str]:
    """The databases whose ATOMIC_REQUESTS hold for a view."""
    excluded = getattr(view, "_non_atomic_requests", ())
    return {
        alias
        for alias, options in connections.settings.items()
        if options.get("ATOMIC_REQUESTS") and alias not in excluded
    }


def _guards_in(view: Any) -> Iterator[tuple[GuardedView, set[str]]]:
    """Each guarded function of a view, and the databases of the transactions around it."""
    record, around = _guard_of(view)
    if record is not None:
        yield record, around
        return
    for name in _CLASS_ATTRIBUTES:
        view_class = getattr(view, name, None)
        if isinstance(view_class, type):
            own, above = _guard_of(getattr(view_class, "dispatch", None))
            if own is not None:
                yield own, around | above
            for method in _methods(view_class):
                record, inner = _guard_of(method)
                if record is not None and record is not own:
                    yield record, around | above | inner


def _methods(view_class: type) -> Iterator[FunctionType]:
    for name in dir(view_class):
        method = getattr(view_class, name, None)
        if isinstance(method, FunctionType):
            yield method


def _guard_of(function: Any) -> tuple[GuardedView | None, set[str]]:
    """The guard of a function, and the databases of the `atomic` decorators outside of it; without
    a guard, of all of them."""
    around: set[str] = set()
    guard = guarded_view_of(function)  # functools.wraps copies it to every decorator above
    for layer in unwrapped(function):
        if guard is not None and guarded_view_of(layer) is None:
            break
        around.update(_atomic_aliases(layer))
    return guard, around


def _atomic_aliases(layer: Any) -> Iterator[str]:
    for cell in getattr(layer, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        for one in content if isinstance(content, (list, tuple)) else (content,):
            if one is transaction.atomic:
                yield DEFAULT_DB_ALIAS
            elif isinstance(one, transaction.Atomic):
                yield one.using or DEFAULT_DB_ALIAS


def outer_middlewares() -> Iterable[str]:
    """The names of the middlewares that a guard of this project is inside of."""
    names = list(settings.MIDDLEWARE)
    return names[: names.index(MIDDLEWARE)] if is_guarded_by_middleware() else names
