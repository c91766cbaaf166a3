"""The check of where an app commits: inside of the guarded part of a request, or after it.

An outcome waits for the exits of FastAPI's dependencies and for Flask's hooks. It cannot wait for a
middleware around the guard, which sees the response when the outcome is stored. Nothing is called:
a middleware is judged by the names in its code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from oncekey.engine.function_code import mentions_commit
from oncekey.http.route_table import layers_of
from oncekey.stores.checkup import Check, Finding

COMMITS: Final = Check(
    "app.late-commits",
    "whether the app commits after the outcome of a request is stored",
    "if that commit fails, retries get a success for rows that do not exist",
    "commit in the handler or in a dependency that yields, or put IdempotencyMiddleware (install) "
    "outside of the middleware that commits",
)


def commit_findings(app: Any, routes: list[Any]) -> Iterator[Finding]:
    """What is known about the commits of a Starlette or FastAPI app, and of its guarded routes."""
    outside = [_name(one) for one in _outer_middlewares(app, routes) if _commits(one)]
    if outside:
        yield COMMITS.warning(f"a middleware outside of the guard commits: {', '.join(outside)}")
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
