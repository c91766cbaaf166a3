"""The check of where an app commits: inside of the guarded part of a request, or after it.

An outcome waits for the exits of FastAPI's dependencies and for Flask's hooks. It cannot wait for a
middleware or a decorator around the guard, which sees the response when the outcome is stored, nor
for the end of a transaction of Django around it. Nothing is called: a function is judged by the
names in its code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, Final

from oncekey.engine.body_check import mentions_commit
from oncekey.http.inspection.guarded_views import ServedView, guarded_views_in
from oncekey.http.inspection.outer_layers import late_commits
from oncekey.http.inspection.route_table import layers_of
from oncekey.stores.inspection import Check, Finding

COMMITS: Final = Check(
    "app.late-commits",
    "whether the app commits after the outcome of a request is stored",
    "if that commit fails, retries get a success for rows that do not exist",
    "commit in the handler or in a dependency that yields, or put IdempotencyMiddleware (install) "
    "outside of the middleware that commits; put @idempotent above decorators that commit, such as "
    "@transaction.atomic",
)


def commit_findings(app: Any, routes: list[Any]) -> Iterator[Finding]:
    """What is known about the commits of an app, and of its guarded routes."""
    if type(app).__module__.startswith("django.core.handlers"):
        yield _django_finding()
        return
    flask = next((one for one in layers_of(app) if hasattr(one, "teardown_appcontext_funcs")), None)
    if flask is not None:
        yield _flask_finding(app, flask, routes)
        return
    outside = [_name(one) for one in _outer_middlewares(app, routes) if _commits(one)]
    if outside:
        yield COMMITS.warning(*_of_middlewares(outside))
        return
    delayed = [route.path for route in routes if _waits_for_background(route.framework_route)]
    if delayed:
        yield COMMITS.info(
            f"responses wait for background tasks, because a dependency ends, and may commit, "
            f"after them: {', '.join(sorted(set(delayed)))}",
            "Depends(..., scope='function') for a dependency that background tasks do not use",
        )
        return
    yield COMMITS.ok("nothing is known that does")


def _of_middlewares(outside: list[str]) -> list[str]:
    """What is wrong with the middlewares of these names, if there are any."""
    named = f"a middleware outside of the guard commits: {', '.join(outside)}"
    return [named] if outside else []


def _outer_middlewares(app: Any, routes: list[Any]) -> Iterator[Any]:
    """The middlewares of Starlette apps that are outside of the guard: for guarded routes all of
    them, else those before ours."""
    has_guarded_routes = any(hasattr(route.view, "__oncekey_guard__") for route in routes)
    for layer in layers_of(app):
        ours_is_seen = False
        for middleware in getattr(layer, "user_middleware", ()):
            ours_is_seen = ours_is_seen or middleware.cls.__name__ == "IdempotencyMiddleware"
            if has_guarded_routes or not ours_is_seen:
                yield middleware


def _commits(middleware: Any) -> bool:
    functions = [getattr(middleware.cls, name, None) for name in ("__call__", "dispatch")]
    functions.append(middleware.kwargs.get("dispatch"))
    is_ours = middleware.cls.__module__.partition(".")[0] == "oncekey"
    return not is_ours and any(mentions_commit(function) for function in functions)


def _name(middleware: Any) -> str:
    function = middleware.kwargs.get("dispatch")
    return getattr(function, "__qualname__", None) or str(middleware.cls.__qualname__)


def _waits_for_background(route: Any) -> bool:
    """Whether a route of FastAPI takes background tasks and has a dependency that ends later."""
    dependant = getattr(route, "dependant", None)
    if dependant is None:
        return False
    from oncekey.http.fastapi.endpoint import late_dependencies

    takes_tasks = any(getattr(one, "background_tasks_param_name", None) for one in _tree(dependant))
    return takes_tasks and next(late_dependencies(dependant), None) is not None


def _tree(dependant: Any) -> Iterator[Any]:
    yield dependant
    for each in dependant.dependencies:
        yield from _tree(each)


# --- Flask ----------------------------------------------------------------------------------------


def _flask_finding(app: Any, flask: Any, routes: list[Any]) -> Finding:
    """A guard of routes calls the app's hooks before it stores the outcome. It cannot do so for the
    teardown of a response that is not read to its end, nor for a WSGI middleware."""
    is_by_route = any(True for route in routes for _ in guarded_views_in(route.view))
    outside = [_qualified(one) for one in _outer_layers(app, flask, is_by_route) if _calls(one)]
    views = () if _has_rules(flask) else [ServedView(one.view, None) for one in routes]
    late = [*_of_middlewares(outside), *dict.fromkeys(text for _, text in late_commits(views))]
    if late:
        return COMMITS.warning("; ".join(late))
    torn_down = _committing(
        [*_hooks(flask.teardown_request_funcs), *flask.teardown_appcontext_funcs]
    )
    if is_by_route and torn_down:
        return COMMITS.info(
            "teardown functions commit before the outcome is stored, but after it where a response "
            f"is longer than max_bytes: {', '.join(torn_down)}",
            "commit in the view or in an after_request function if responses are long",
        )
    hooks = [*torn_down, *_committing(_hooks(flask.after_request_funcs))]
    if hooks:
        return COMMITS.ok(f"the guard calls what commits first: {', '.join(hooks)}")
    return COMMITS.ok("nothing is known that does")


def _has_rules(flask: Any) -> bool:
    """Whether our extension guards the app by rules, from outside of its views."""
    return bool(getattr(flask.extensions.get("oncekey"), "has_rules", False))


def _outer_layers(app: Any, flask: Any, is_by_route: bool) -> Iterator[Any]:
    """The WSGI middlewares outside of the guard: around guarded routes all, else those before
    ours."""
    for layer in layers_of(app):
        if type(layer).__module__.partition(".")[0] == "oncekey":
            if not is_by_route:
                return
        elif layer is not flask:
            yield layer


def _calls(layer: Any) -> bool:
    return mentions_commit(layer) or mentions_commit(vars(type(layer)).get("__call__"))


def _hooks(by_blueprint: Any) -> Iterator[Any]:
    for functions in by_blueprint.values():
        yield from functions


def _committing(functions: Iterable[Callable[..., Any]]) -> list[str]:
    return [_qualified(one) for one in functions if mentions_commit(one)]


def _qualified(one: Any) -> str:
    return str(getattr(one, "__qualname__", None) or type(one).__qualname__)


# --- Django ---------------------------------------------------------------------------------------


def _django_finding() -> Finding:
    """The transactions and decorators around guarded views, and the middlewares outside of the
    guard."""
    project = import_module("oncekey.http.django.view_checks")
    late = project.late_transactions()
    if late:
        return COMMITS.broken("; ".join(late))
    outside = [name for name in project.outer_middlewares() if _middleware_commits(name)]
    late = [*_of_middlewares(outside), *project.late_decorators()]
    if late:
        return COMMITS.warning("; ".join(late))
    return COMMITS.ok("nothing is known that does")


def _middleware_commits(name: str) -> bool:
    """Whether a middleware of Django, a class or a function that makes one, names a commit. Those
    of Django itself and ours open no transaction around a request."""
    module, _, attribute = name.rpartition(".")
    if module.partition(".")[0] in ("django", "oncekey"):
        return False
    made = getattr(import_module(module), attribute, None)
    names = ("__call__", "__acall__", "process_request", "process_response", "process_view")
    return mentions_commit(made) or any(mentions_commit(getattr(made, one, None)) for one in names)
