"""Finds out how an app is guarded: by its middleware, by its views, or by its settings.

It looks at attributes only, so that no framework has to be installed: Starlette's list of
middleware, the `app` that a middleware wraps, the routes, and the attributes of guarded views.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, NamedTuple

from oncekey.core.errors import ConfigurationError
from oncekey.core.policy import Policy
from oncekey.http.exchange import OPERATION_DEFAULT, REPLAY_HEADER_DEFAULT
from oncekey.http.inspection.guarded_views import GuardedViews, guard_for_method
from oncekey.http.inspection.route_table import Route, app_views, layers_of, routes_of
from oncekey.http.rules import Rule, Rules


class PolicyRoute(NamedTuple):
    """A guarded route, or all paths that a rule matches, with the rule."""

    methods: list[str]
    path: str
    rule: Rule


class DiscoveredPolicy(NamedTuple):
    """What was found out about an app.

    hidden_paths   those that the app's own documentation leaves out
    once           the engine
    callers        the functions that name a request's caller
    operation      what the keys are for
    rules          those of a middleware; None if views are guarded
    in_transaction whether the app's own transactions have the records, for all routes
    """

    routes: list[PolicyRoute]
    policy: Policy
    replay_header: str = REPLAY_HEADER_DEFAULT
    hidden_paths: frozenset[str] = frozenset()
    once: Any = None
    callers: tuple[Any, ...] = ()
    operation: str = OPERATION_DEFAULT
    rules: Rules | None = None
    in_transaction: bool = False


def find_policy(app: Any) -> DiscoveredPolicy:
    """Find out how an app is guarded. Raises ConfigurationError if no guard is found."""
    routes = list(routes_of(app))
    _check_served(app)
    found = _by_views(app, routes) or _by_middleware(app, routes) or _by_settings(app)
    if found is not None:
        hidden = frozenset(route.path for route in routes if not route.is_documented)
        return found._replace(hidden_paths=hidden)
    raise ConfigurationError(
        f"found no idempotency middleware in this {type(app).__name__}, and no guarded view; "
        "name the object that it was added to, or the middleware itself"
    )


def _check_served(app: Any) -> None:
    """Raise ConfigurationError if a decorated function is served unguarded, or not at all."""
    layers = list(layers_of(app))
    frameworks = {
        kind.__module__.partition(".")[0] for layer in layers for kind in type(layer).__mro__
    }
    extension = getattr(app, "extensions", {}).get("oncekey")
    for views in list(GuardedViews.known):
        if views.framework not in frameworks:
            continue
        if views.project_views is not None:
            views.check(views.project_views())
            continue
        is_attached = any(attached is layer for attached in list(views.apps) for layer in layers)
        # The views of another app may be served here too, undecorated.
        unserved = getattr(extension, "unserved", None) if is_attached else "allow"
        views.check(app_views([app]), unserved=unserved)


# --- by middleware --------------------------------------------------------------------------


def _by_middleware(app: Any, routes: list[Route]) -> DiscoveredPolicy | None:
    for layer in layers_of(app):
        exchange, once = getattr(layer, "exchange", None), getattr(layer, "once", None)
        if exchange is not None and once is not None:
            caller = getattr(layer, "caller", None)
            return _by_exchange(exchange, once, caller, routes)
        for middleware in getattr(layer, "user_middleware", ()):
            options = getattr(middleware, "kwargs", {})
            if "once" in options and "caller" in options:
                rules = Rules(options.get("rules", ()))
                return DiscoveredPolicy(
                    _matched_routes(rules, routes),
                    options["once"].policy,
                    options.get("replay_header", REPLAY_HEADER_DEFAULT),
                    once=options["once"],
                    callers=(options["caller"],),
                    operation=options.get("operation", OPERATION_DEFAULT),
                    rules=rules,
                )
    return None


def _by_exchange(
    exchange: Any, once: Any, caller: Any, routes: Iterable[Route]
) -> DiscoveredPolicy:
    return DiscoveredPolicy(
        _matched_routes(exchange.rules, routes),
        once.policy,
        exchange.replay_header,
        once=once,
        callers=() if caller is None else (caller,),
        operation=exchange.operation,
        rules=exchange.rules,
    )


def _matched_routes(rules: Rules, routes: Iterable[Route]) -> list[PolicyRoute]:
    """The routes that rules guard; or the rules' own paths if the app's routes are unknown."""
    matched: dict[tuple[str, int], PolicyRoute] = {}
    known = list(routes)
    for route in known:
        for method in route.methods:
            rule = rules.find(method, route.path)
            if rule is not None:
                entry = matched.setdefault(
                    (route.path, id(rule)), PolicyRoute([], route.path, rule)
                )
                entry.methods.append(method)
    if known:
        return list(matched.values())
    return [PolicyRoute(list(rule.methods), rule.path, rule) for rule in rules.all if rule.guarded]


# --- by views, and by settings --------------------------------------------------------------


def _by_views(app: Any, routes: Iterable[Route]) -> DiscoveredPolicy | None:
    extension = getattr(app, "extensions", {}).get("oncekey")
    setup = getattr(extension, "guard", None)
    policy: Policy | None = getattr(getattr(setup, "once", None), "policy", None)
    found: list[PolicyRoute] = []
    callers: dict[int, Any] = {}
    for route in routes:
        guard = getattr(route.view, "__oncekey_guard__", None)
        if guard is not None:
            setup = guard.setup
            policy = guard.setup.once.policy
            callers[id(guard.caller)] = guard.caller
        by_rule: dict[int, PolicyRoute] = {}
        for method in route.methods:
            rule = _rule_for(route.view, guard, method)
            if rule is not None and policy is not None:
                entry = by_rule.setdefault(id(rule), PolicyRoute([], route.path, rule))
                entry.methods.append(method)
        found += by_rule.values()
    if not found or policy is None or setup is None:
        return None
    of_app = getattr(extension, "caller", None)
    if of_app is not None:
        callers[id(of_app)] = of_app
    return DiscoveredPolicy(
        found,
        policy,
        setup.exchange.replay_header,
        once=setup.once,
        callers=tuple(callers.values()),
        operation=setup.exchange.operation,
    )


def _rule_for(view: Any, guard: Any, method: str) -> Rule | None:
    if guard is not None:
        rule: Rule = guard.rule
        return rule if rule.guarded and rule.guards(method) else None
    guarded = guard_for_method(view, method)
    return guarded.rule if guarded is not None else None


def _by_settings(app: Any) -> DiscoveredPolicy | None:
    """Of a Django project, which shows neither its middleware nor a list of its routes."""
    if not type(app).__module__.startswith("django.core.handlers"):
        return None
    # Imported by name, because this module is below the adapters.
    settings = import_module("oncekey.http.django.settings").django_settings()
    found = _by_exchange(settings.guard.exchange, settings.guard.once, settings.caller, ())
    return found._replace(in_transaction=settings.alias is not None)
