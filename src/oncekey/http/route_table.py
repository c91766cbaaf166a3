"""Finds the routes that an app tells of, mounted and included ones too.

Looks at attributes only, so that no framework has to be installed: Starlette's and FastAPI's
routes, Flask's URL map, and the `app` that a middleware wraps.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from oncekey.http.guarded_views import ServedView
from oncekey.http.rules import SAFE_METHODS

_WRAPPED = ("app", "wsgi_app", "application", "_app")
_DEEPEST = 50
_FLASK_PARAMETER = re.compile(r"<(?:[^<>:]*:)?([^<>]*)>")


class Route(NamedTuple):
    """One of an app's routes, with those of its methods that are not safe."""

    methods: list[str]
    path: str
    view: Any
    listed: bool = True  # whether the app tells of it in its own documentation
    entry: Any = None  # what the framework has in its own table


def routes_of(app: Any) -> Iterator[Route]:
    for layer in layers_of(app):
        urls = getattr(layer, "url_map", None)
        if urls is not None and hasattr(layer, "view_functions"):
            for url in urls.iter_rules():
                path = _FLASK_PARAMETER.sub(r"{\1}", url.rule)
                yield Route(_unsafe(url.methods), path, layer.view_functions.get(url.endpoint))
            return
        if getattr(layer, "routes", None):
            yield from _of_routes(layer.routes, "")
            return


def layers_of(app: Any) -> Iterator[Any]:
    """The app, what it wraps, and so on."""
    for _ in range(_DEEPEST):
        if app is None:
            return
        yield app
        inside = getattr(app, "__dict__", {})
        app = next((inside[name] for name in _WRAPPED if name in inside), None)


def served_views(apps: Iterable[Any]) -> list[ServedView]:
    """What the apps' routes hold, for a check of guarded views."""
    routes = [route for app in {id(app): app for app in apps}.values() for route in routes_of(app)]
    return [ServedView(route.view, route.methods) for route in routes if route.methods]


def _of_routes(routes: Iterable[Any], prefix: str) -> Iterator[Route]:
    # FastAPI keeps included routers apart, and has a function of its own to see through them.
    contexts = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", None)
    for route in contexts(routes) if contexts is not None else routes:
        path = prefix + str(getattr(route, "path", None) or "")
        methods = _unsafe(getattr(route, "methods", None))
        entry = getattr(route, "original_route", route)
        if methods:
            listed = bool(getattr(route, "include_in_schema", True))
            yield Route(methods, path, getattr(route, "endpoint", None), listed, entry)
        inner = getattr(entry, "routes", None)
        if inner:
            yield from _of_routes(inner, path)


def _unsafe(methods: Iterable[str] | None) -> list[str]:
    return sorted(set(methods or ()) - SAFE_METHODS)
