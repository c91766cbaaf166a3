"""Finding how an app is guarded: by its middleware, by its views, or by its settings.

Looks at attributes only, so that no framework has to be installed: Starlette's list of middleware,
the `app` that a middleware wraps, the routes an app tells, and what guarded views carry on them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from oncekey.core.errors import ConfigurationError
from oncekey.core.policy import Policy
from oncekey.http.rules import METHODS_POSSIBLE, Rule, Rules

_WRAPPED = ("app", "wsgi_app", "application", "_app")
_DEEPEST = 50
_FLASK_PARAMETER = re.compile(r"<(?:[^<>:]*:)?([^<>]*)>")


class Route(NamedTuple):
    methods: list[str]
    path: str
    view: Any


class Guarded(NamedTuple):
    """One route, or all that a rule names, and how they are guarded."""

    methods: list[str]
    path: str
    rule: Rule


class Found(NamedTuple):
    guarded: list[Guarded]
    policy: Policy


def find(app: Any) -> Found:
    """How the app is guarded; ConfigurationError where nothing is to be seen."""
    routes = list(_routes(app))
    found = _by_views(app, routes) or _by_middleware(app, routes) or _by_settings(app)
    if found is None:
        raise ConfigurationError(
            f"found no idempotency middleware in this {type(app).__name__}, and no guarded view; "
            "name the object that it was added to, or the middleware itself"
        )
    return found


# --- by middleware --------------------------------------------------------------------------


def _by_middleware(app: Any, routes: list[Route]) -> Found | None:
    for layer in _layers(app):
        exchange, once = getattr(layer, "exchange", None), getattr(layer, "once", None)
        if exchange is not None and once is not None:
            return Found(_named(exchange.rules, routes), once.policy)
        for middleware in getattr(layer, "user_middleware", ()):
            given = getattr(middleware, "kwargs", {})
            if "once" in given and "caller" in given:
                return Found(_named(Rules(given.get("rules", ())), routes), given["once"].policy)
    return None


def _named(rules: Rules, routes: Iterable[Route]) -> list[Guarded]:
    """The guarded routes, where the app tells its routes; else what the rules say."""
    found: dict[tuple[str, int], Guarded] = {}
    known = list(routes)
    for route in known:
        for method in route.methods:
            rule = rules.find(method, route.path)
            if rule is not None:
                at = (route.path, id(rule))
                found.setdefault(at, Guarded([], route.path, rule)).methods.append(method)
    if known:
        return list(found.values())
    return [Guarded(list(rule.methods), rule.path, rule) for rule in rules.all if rule.guarded]


def _layers(app: Any) -> Iterator[Any]:
    """The app, what it wraps, and so on."""
    for _ in range(_DEEPEST):
        if app is None:
            return
        yield app
        inside = getattr(app, "__dict__", {})
        app = next((inside[name] for name in _WRAPPED if name in inside), None)


# --- by views, and by settings --------------------------------------------------------------


def _by_views(app: Any, routes: Iterable[Route]) -> Found | None:
    extension = getattr(app, "extensions", {}).get("oncekey")
    engine = getattr(getattr(extension, "guard", None), "once", None)
    policy: Policy | None = getattr(engine, "policy", None)
    found = []
    for route in routes:
        guarding = getattr(route.view, "__oncekey_guarding__", None)
        rule = getattr(route.view, "__oncekey_rule__", None) or getattr(guarding, "rule", None)
        if rule is None or not rule.guarded:
            continue
        if guarding is not None:
            policy = guarding.owner.once.policy
        methods = [method for method in route.methods if method in rule.methods]
        if methods and policy is not None:
            found.append(Guarded(methods, route.path, rule))
    return Found(found, policy) if found and policy is not None else None


def _by_settings(app: Any) -> Found | None:
    """A Django project tells neither its middleware nor, in one list, its routes."""
    if not type(app).__module__.startswith("django.core.handlers"):
        return None
    from oncekey.http.django.configuration import configured

    guard = configured().guard
    return Found(_named(guard.exchange.rules, ()), guard.once.policy)


# --- routes ---------------------------------------------------------------------------------


def _routes(app: Any) -> Iterator[Route]:
    """Every route the app tells, mounted and included ones too."""
    for layer in _layers(app):
        urls = getattr(layer, "url_map", None)
        if urls is not None and hasattr(layer, "view_functions"):
            for url in urls.iter_rules():
                path = _FLASK_PARAMETER.sub(r"{\1}", url.rule)
                yield Route(_possible(url.methods), path, layer.view_functions.get(url.endpoint))
            return
        if getattr(layer, "routes", None):
            yield from _of_routes(layer.routes, "")
            return


def _of_routes(routes: Iterable[Any], prefix: str) -> Iterator[Route]:
    # FastAPI keeps included routers apart, and has a function of its own to see through them.
    contexts = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", None)
    for route in contexts(routes) if contexts is not None else routes:
        path = prefix + str(getattr(route, "path", None) or "")
        methods = _possible(getattr(route, "methods", None))
        if methods:
            yield Route(methods, path, getattr(route, "endpoint", None))
        inner = getattr(getattr(route, "original_route", route), "routes", None)
        if inner:
            yield from _of_routes(inner, path)


def _possible(methods: Iterable[str] | None) -> list[str]:
    return sorted(set(methods or ()) & METHODS_POSSIBLE)
