"""Checks that the functions which `idempotent` guards are served by routes of Flask apps.

The decorator belongs to no app, and an app may leave a blueprint out. Before a decorated function
counts as unserved, the routes of every app and blueprint of the process are searched. Owns the
record of decorated functions and the search; guarded_views.py has the check.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

from flask import Blueprint, Flask, request_started

from oncekey.http.guarded_views import GuardedViews, ServedView, closure_of
from oncekey.http.outer_layers import warn_of_late_commits
from oncekey.http.route_table import app_views

EXTENSION: Final = "oncekey"  # the name of our extension in `app.extensions`
VIEWS: Final = GuardedViews(
    "flask",
    "@idempotent(...) stands directly above the function, below @app.post(...).",
    'Idempotency(..., unserved="allow")',
)
_checked: Final[WeakKeyDictionary[Flask, tuple[int, int]]] = WeakKeyDictionary()


def check_app(app: Flask) -> None:
    """Raise ConfigurationError if the app serves a decorated function unguarded, or if no route
    serves it. Log which decorators of guarded views commit too late."""
    extension = app.extensions.get(EXTENSION)
    # An app without our extension may still serve the undecorated form of a guarded function.
    unserved = getattr(extension, "unserved", "allow")
    served = app_views([app])
    VIEWS.check(served, unserved=unserved)
    if not getattr(extension, "has_rules", False):  # by which views are guarded from outside
        warn_of_late_commits(served)


def _check_before_request(app: Flask, **_: Any) -> None:
    """Check the app before its first request, and again when views were added since."""
    state = (len(app.view_functions), VIEWS.version)
    if _checked.get(app) != state:
        check_app(app)
        _checked[app] = state


def _all_registered_views() -> Iterator[ServedView]:
    """The views of every app, and of every blueprint, registered or not.

    Slow, because it searches all objects of the garbage collector. Called on the way to an error
    only.
    """
    for one in gc.get_objects():
        kind = type(one)  # isinstance() would ask a proxy such as current_app for its app
        if issubclass(kind, Flask):
            yield from app_views([one])
        elif issubclass(kind, Blueprint):
            for deferred in list(one.deferred_functions):
                yield _deferred_view(deferred)


def _deferred_view(deferred: Callable[..., Any]) -> ServedView:
    """The view that a blueprint will register with its app. A blueprint has the arguments of
    `add_url_rule` in a closure. Any other deferred function leads to no guarded function, or to one
    whose methods are not known yet."""
    arguments = closure_of(deferred)
    view, options = arguments.get("view_func"), arguments.get("options")
    if view is None or not isinstance(options, dict):
        return ServedView(deferred, None)
    methods = options.get("methods") or getattr(view, "methods", None) or ("GET",)
    return ServedView(view, methods)


VIEWS.other_views = _all_registered_views
request_started.connect(_check_before_request)
