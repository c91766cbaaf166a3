"""The route class: an `APIRoute` that handles its guarded requests as a `RouteRequest`.

Owns which requests of a route are guarded; everything else of a route is FastAPI's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final
from weakref import WeakSet

from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from oncekey.core.errors import ConfigurationError
from oncekey.http.fastapi.endpoint import (
    ON_CALL,
    EndpointGuard,
    as_starlette,
    check_late_commits,
    guard_of,
    wrap_endpoint,
)
from oncekey.http.fastapi.installation import REFUSING
from oncekey.http.fastapi.openapi import extended
from oncekey.http.fastapi.route_request import RouteRequest
from oncekey.http.inspection.guarded_views import guarded_view_of
from oncekey.http.rules import SAFE_METHODS
from oncekey.http.unguarded_keys import UnguardedKeys, mark_key_guarded


class _BareEndpoints:
    """The functions that routes hold without a guard of their own, as weak references."""

    def __init__(self) -> None:
        self._all: WeakSet[Any] = WeakSet()

    def append(self, endpoint: Any) -> None:
        try:
            self._all.add(endpoint)
        except TypeError:  # it cannot be referenced so; the check at the app's start finds it
            return

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._all))


bare_endpoints: Final = _BareEndpoints()


class GuardedRoute(APIRoute):
    """A route of a guarded app or router.

    `default_guard` is for endpoints without a guard of their own; None leaves them unguarded.
    """

    default_guard: ClassVar[EndpointGuard | None] = None

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        methods = {method.upper() for method in options.get("methods") or ("GET",)}
        own = guard_of(endpoint)
        if methods - SAFE_METHODS:
            if own is None:
                bare_endpoints.append(endpoint)
            elif (mark := guarded_view_of(endpoint)) is not None:
                mark.is_served = True  # also where an app leaves this route's router out
        if own is not None and own.rule.guarded and not any(map(own.rule.guards, methods)):
            raise ConfigurationError(
                f"{path} is guarded, but not for its methods: " + ", ".join(sorted(methods))
            )
        default = self.default_guard
        if own is None and default is not None and any(map(default.rule.guards, methods)):
            own = default
            endpoint = wrap_endpoint(endpoint, own)
        self._guard = own if own is not None and own.rule.guarded else None
        super().__init__(path, endpoint, **options)
        if self._guard is not None:
            check_late_commits(path, self.dependant, self._guard)
            replay_header = self._guard.setup.exchange.replay_header
            self.openapi_extra = extended(self, self._guard.rule, replay_header)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        guard = self._guard
        if guard is None or not guard.rule.guards(scope["method"].upper()):
            if self._is_refused(scope):
                unguarded: UnguardedKeys = scope[REFUSING]
                unguarded.report(scope["method"], scope["path"])
                mark_key_guarded(scope)
                response = as_starlette(unguarded.refusal(scope.get("app_root_path", "")))
                await response(scope, receive, send)
                return
            if guard_of(self.endpoint) is not None:
                scope = {**scope, ON_CALL: None}
            await super().handle(scope, receive, send)
            return
        await RouteRequest(guard, super().handle, dict(scope), receive, send).respond()

    def _is_refused(self, scope: Scope) -> bool:
        """Whether a key is refused here: the app refuses unguarded keys, and this route serves the
        request without guarding it. A route with `guard(guarded=False)` accepts it."""
        own = guard_of(self.endpoint)
        is_left_out = own is not None and not own.rule.guarded
        serves = self.methods is None or scope["method"] in self.methods
        return REFUSING in scope and serves and not is_left_out


def route_class(
    default_guard: EndpointGuard | None, base: type[APIRoute] = APIRoute
) -> type[GuardedRoute]:
    """A route class for a router; over `base`, if the app has one of its own."""
    bases = (GuardedRoute,) if issubclass(GuardedRoute, base) else (GuardedRoute, base)
    return type("GuardedRoute", bases, {"default_guard": default_guard})


def is_held_by_a_route(endpoint: Any) -> bool:
    """Whether a route of any app holds this function already. For an app that was never attached
    nobody checks the routes later, so the objects that refer to the function are searched."""
    return any(
        isinstance(holder, dict) and holder.get("endpoint") is endpoint and "path_regex" in holder
        for holder in gc.get_referrers(endpoint)
    )


def misplaced(route: Any) -> bool:
    """Whether a guarded endpoint is on a route of another class, which would not guard it."""
    guard = guard_of(getattr(route, "endpoint", None))
    is_guarded = guard is not None and guard.rule.guarded
    return is_guarded and not isinstance(route, GuardedRoute)
