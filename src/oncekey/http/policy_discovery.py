"""Finding how an app is guarded: by its middleware, by its views, or by its settings.

Looks at attributes only, so that no framework has to be installed: Starlette's list of middleware,
the `app` that a middleware wraps, the routes an app tells, and what guarded views carry on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, NamedTuple

from oncekey.core.errors import ConfigurationError
from oncekey.core.policy import Policy
from oncekey.http.exchange import REPLAY_HEADER_DEFAULT
from oncekey.http.guarded_views import GuardedViews, guard_for_method
from oncekey.http.route_table import Route, layers_of, routes_of, served_views
from oncekey.http.rules import Rule, Rules


class PolicyRoute(NamedTuple):
    """One route, or all that a rule names, and how they are guarded."""

    methods: list[str]
    path: str
    rule: Rule


class DiscoveredPolicy(NamedTuple):
    guarded: list[PolicyRoute]
    policy: Policy
    replay_header: str = REPLAY_HEADER_DEFAULT
    hidden: frozenset[str] = frozenset()  # paths that the app itself tells nobody of


def find_policy(app: Any) -> DiscoveredPolicy:
    """How the app is guarded; ConfigurationError where nothing is to be seen."""
    routes = list(routes_of(app))
    _check_served(app)
    found = _by_views(app, routes) or _by_middleware(app, routes) or _by_settings(app)
    if found is not None:
        hidden = frozenset(route.path for route in routes if not route.listed)
        return found._replace(hidden=hidden)
    raise ConfigurationError(
        f"found no idempotency middleware in this {type(app).__name__}, and no guarded view; "
        "name the object that it was added to, or the middleware itself"
    )


def _check_served(app: Any) -> None:
    """Refuse an app with a decorated function that runs unguarded, or that no route serves."""
    layers = list(layers_of(app))
    frameworks = {
        kind.__module__.partition(".")[0] for layer in layers for kind in type(layer).__mro__
    }
    extension = getattr(app, "extensions", {}).get("oncekey")
    for views in list(GuardedViews.known):
        if views.framework not in frameworks:
            continue
        if views.served is not None:
            views.check(views.served())
            continue
        is_ours = any(one is layer for one in list(views.apps) for layer in layers)
        # What belongs to another app may still be served here in its bare form.
        unserved = getattr(extension, "unserved", None) if is_ours else "allow"
        views.check(served_views([app]), unserved=unserved)


# --- by middleware --------------------------------------------------------------------------


def _by_middleware(app: Any, routes: list[Route]) -> DiscoveredPolicy | None:
    for layer in layers_of(app):
        exchange, once = getattr(layer, "exchange", None), getattr(layer, "once", None)
        if exchange is not None and once is not None:
            return DiscoveredPolicy(
                _named(exchange.rules, routes), once.policy, exchange.replay_header
            )
        for middleware in getattr(layer, "user_middleware", ()):
            given = getattr(middleware, "kwargs", {})
            if "once" in given and "caller" in given:
                name = given.get("replay_header", REPLAY_HEADER_DEFAULT)
                rules = Rules(given.get("rules", ()))
                return DiscoveredPolicy(_named(rules, routes), given["once"].policy, name)
    return None


def _named(rules: Rules, routes: Iterable[Route]) -> list[PolicyRoute]:
    """The guarded routes, where the app tells its routes; else what the rules say."""
    found: dict[tuple[str, int], PolicyRoute] = {}
    known = list(routes)
    for route in known:
        for method in route.methods:
            rule = rules.find(method, route.path)
            if rule is not None:
                at = (route.path, id(rule))
                found.setdefault(at, PolicyRoute([], route.path, rule)).methods.append(method)
    if known:
        return list(found.values())
    return [PolicyRoute(list(rule.methods), rule.path, rule) for rule in rules.all if rule.guarded]


# --- by views, and by settings --------------------------------------------------------------


def _by_views(app: Any, routes: Iterable[Route]) -> DiscoveredPolicy | None:
    extension = getattr(app, "extensions", {}).get("oncekey")
    setup = getattr(extension, "guard", None)
    policy: Policy | None = getattr(getattr(setup, "once", None), "policy", None)
    found: list[PolicyRoute] = []
    for route in routes:
        guard = getattr(route.view, "__oncekey_guard__", None)
        if guard is not None:
            setup = guard.setup
            policy = guard.setup.once.policy
        by_rule: dict[int, PolicyRoute] = {}
        for method in route.methods:
            rule = _rule_for(route.view, guard, method)
            if rule is not None and policy is not None:
                at = by_rule.setdefault(id(rule), PolicyRoute([], route.path, rule))
                at.methods.append(method)
        found += by_rule.values()
    if not found or policy is None or setup is None:
        return None
    return DiscoveredPolicy(found, policy, setup.exchange.replay_header)


def _rule_for(view: Any, guard: Any, method: str) -> Rule | None:
    if guard is not None:
        rule: Rule = guard.rule
        return rule if rule.guarded and rule.guards(method) else None
    guarded = guard_for_method(view, method)
    return guarded.rule if guarded is not None else None


def _by_settings(app: Any) -> DiscoveredPolicy | None:
    """A Django project tells neither its middleware nor, in one list, its routes."""
    if not type(app).__module__.startswith("django.core.handlers"):
        return None
    # By its name, as a store is found by its URL: an adapter is nothing this module knows.
    guard = import_module("oncekey.http.django.settings").django_settings().guard
    rules = _named(guard.exchange.rules, ())
    return DiscoveredPolicy(rules, guard.once.policy, guard.exchange.replay_header)
