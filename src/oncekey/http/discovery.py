"""Finding the rules of an app: what its middleware was given, and which routes it has.

Looks at attributes only, so that no framework has to be installed: Starlette's list of middleware,
the `app` that a middleware wraps, the routes an app tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from oncekey.core.errors import ConfigurationError
from oncekey.core.policy import Policy
from oncekey.http.rules import METHODS_POSSIBLE, Rules

_WRAPPED = ("app", "wsgi_app", "application", "_app")
_DEEPEST = 50


class Found(NamedTuple):
    """How one app is guarded."""

    rules: Rules
    policy: Policy
    routes: list[tuple[str, str]]


def find(app: Any) -> Found:
    """The app's guard; ConfigurationError where there is none to be seen."""
    routes = list(_routes(app))
    for layer in _layers(app):
        exchange, once = getattr(layer, "exchange", None), getattr(layer, "once", None)
        if exchange is not None and once is not None:
            return Found(exchange.rules, once.policy, routes or list(_routes(layer)))
        for middleware in getattr(layer, "user_middleware", ()):
            given = getattr(middleware, "kwargs", {})
            if "once" in given and "caller" in given:
                return Found(Rules(given.get("rules", ())), given["once"].policy, routes)
    raise ConfigurationError(
        f"found no idempotency middleware in this {type(app).__name__}; name the object that "
        "IdempotencyMiddleware was added to, or the middleware itself"
    )


def _layers(app: Any) -> Iterator[Any]:
    """The app, what it wraps, and so on."""
    for _ in range(_DEEPEST):
        if app is None:
            return
        yield app
        app = next(
            (vars(app)[name] for name in _WRAPPED if name in getattr(app, "__dict__", {})), None
        )


def _routes(app: Any) -> Iterator[tuple[str, str]]:
    """(method, path) of every route the app tells, mounted ones included."""
    for layer in _layers(app):
        for route in getattr(layer, "routes", ()) or ():
            yield from _of_route(route, "")
        if getattr(layer, "routes", None):
            return


def _of_route(route: Any, prefix: str) -> Iterator[tuple[str, str]]:
    path = prefix + str(getattr(route, "path", ""))
    for method in sorted(getattr(route, "methods", None) or ()):
        if method in METHODS_POSSIBLE:
            yield method, path
    for inner in getattr(route, "routes", None) or ():
        yield from _of_route(inner, path)
