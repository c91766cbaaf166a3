"""Lists the routes of an app, including those of mounted apps and included routers, and says which
requests go to a mounted app that needs no keys.

It looks at attributes only, so that no framework has to be installed: the routes of Starlette and
FastAPI, the URL map of Flask, and the `app` that a middleware wraps.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from oncekey.http.inspection.guarded_views import ServedView
from oncekey.http.rules import SAFE_METHODS

_WRAPPED_APP_NAMES = ("app", "wsgi_app", "application", "_app")
_LAYERS_MAX = 50
_FLASK_PARAMETER = re.compile(r"<(?:[^<>:]*:)?([^<>]*)>")


class Route(NamedTuple):
    """A route of an app, with those of its methods that are not safe."""

    methods: list[str]
    path: str
    view: Any
    is_documented: bool = True  # whether it is in the app's own OpenAPI document
    framework_route: Any = None  # the framework's own object


class KeylessApp:
    """An ASGI app that people use in a browser, whose forms cannot carry a key. A guard around it
    lets its requests pass without one. The app itself sees that no form is carried out twice."""


def routes_of(app: Any) -> Iterator[Route]:
    """The routes of the first layer of the app that has any."""
    for layer in layers_of(app):
        urls = getattr(layer, "url_map", None)
        if urls is not None and hasattr(layer, "view_functions"):
            for url in urls.iter_rules():
                path = _FLASK_PARAMETER.sub(r"{\1}", url.rule)
                yield Route(_unsafe(url.methods), path, layer.view_functions.get(url.endpoint))
            return
        if getattr(layer, "routes", None):
            yield from _starlette_routes(layer.routes, "")
            return


def layers_of(app: Any) -> Iterator[Any]:
    """The app, the app that it wraps, and so on."""
    for _ in range(_LAYERS_MAX):
        if app is None:
            return
        yield app
        attributes = getattr(app, "__dict__", {})
        wrapped = (attributes[name] for name in _WRAPPED_APP_NAMES if name in attributes)
        app = next(wrapped, None)


def is_for_keyless_app(app: Any, scope: Mapping[str, Any]) -> bool:
    """Whether the routes of an ASGI app lead this request to a KeylessApp that is mounted in it.
    The framework's own routes are asked, in their order: a route that stands before the mount, or
    another spelling of the path, is judged as the framework will judge it."""
    for _ in range(_LAYERS_MAX):
        layers = list(layers_of(app))
        if any(isinstance(layer, KeylessApp) for layer in layers):
            return True
        routes = next((layer.routes for layer in layers if getattr(layer, "routes", None)), ())
        found = _first_match(routes, scope)
        if found is None or "endpoint" not in found:
            return False
        app, scope = found["endpoint"], {**scope, **found}
    return False


def _first_match(routes: Iterable[Any], scope: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What Starlette's router adds to the scope for the first route that takes the request."""
    for route in routes:
        if hasattr(route, "matches"):
            match, found = route.matches(dict(scope))
            if match.name == "FULL":
                added: Mapping[str, Any] = found
                return added
    return None


def app_views(apps: Iterable[Any]) -> list[ServedView]:
    """The views of all routes of these apps, for a check of guarded views."""
    routes = [route for app in {id(app): app for app in apps}.values() for route in routes_of(app)]
    return [ServedView(route.view, route.methods) for route in routes if route.methods]


def _starlette_routes(routes: Iterable[Any], prefix: str) -> Iterator[Route]:
    # FastAPI keeps included routers apart; this function of its own looks into them.
    contexts = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", None)
    for route in contexts(routes) if contexts is not None else routes:
        path = prefix + str(getattr(route, "path", None) or "")
        methods = _unsafe(getattr(route, "methods", None))
        original = getattr(route, "original_route", route)
        if methods:
            is_documented = bool(getattr(route, "include_in_schema", True))
            yield Route(methods, path, getattr(route, "endpoint", None), is_documented, original)
        inner = getattr(original, "routes", None)
        if inner:
            yield from _starlette_routes(inner, path)


def _unsafe(methods: Iterable[str] | None) -> list[str]:
    return sorted(set(methods or ()) - SAFE_METHODS)
