"""The routes of all Flask apps and blueprints that live in this process.

Flask's decorator belongs to no app, and an app may leave a blueprint out. Before a decorated
function counts as served by nobody, every app and blueprint is asked. Owns the search; which
functions are guarded is in guarded_views.py.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

from flask import Blueprint, Flask

from oncekey.http.guarded_views import ServedView
from oncekey.http.route_table import served_views


def all_registered_views() -> Iterator[ServedView]:
    """What the routes of every app hold, and those of every blueprint, registered or not.

    Slow, as the garbage collector's list is gone through: for the way to an error only.
    """
    for one in gc.get_objects():
        kind = type(one)  # isinstance() would ask a proxy such as current_app for its app
        if issubclass(kind, Flask):
            yield from served_views([one])
        elif issubclass(kind, Blueprint):
            for deferred in list(one.deferred_functions):
                yield _served_by(deferred)


def _served_by(deferred: Callable[..., Any]) -> ServedView:
    """What a blueprint will register with its app. It keeps the arguments of `add_url_rule` in a
    closure; anything else that it has recorded leads to no guarded function, or to one whose
    methods nobody knows yet."""
    names = getattr(getattr(deferred, "__code__", None), "co_freevars", ())
    cells = getattr(deferred, "__closure__", None) or ()
    given: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        try:
            given[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    view, options = given.get("view_func"), given.get("options")
    if view is None or not isinstance(options, dict):
        return ServedView(deferred, None)
    return ServedView(view, options.get("methods") or getattr(view, "methods", None) or ("GET",))
