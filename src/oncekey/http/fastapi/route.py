"""The route class: an `APIRoute` that takes its guarded endpoints to the door.

Owns which requests of a route are guarded; everything else of it is FastAPI's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final
from weakref import WeakSet

from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from oncekey.core.errors import ConfigurationError
from oncekey.http.fastapi.endpoint import DOOR, Guarding, behind_door, guarding_of
from oncekey.http.fastapi.openapi import extended
from oncekey.http.fastapi.route_request import AtRoute, as_starlette
from oncekey.http.fastapi.route_watch import REFUSING
from oncekey.http.fastapi.transaction import InTransaction
from oncekey.http.guarded_views import guarded_view_of
from oncekey.http.rules import SAFE_METHODS
from oncekey.http.unguarded_keys import UnguardedKeys, mark_key_guarded


class _Endpoints:
    """Functions that routes hold without a guard of their own, for as long as they live."""

    def __init__(self) -> None:
        self._all: WeakSet[Any] = WeakSet()

    def append(self, endpoint: Any) -> None:
        try:
            self._all.add(endpoint)
        except TypeError:  # an object that cannot be kept so; the check at the start finds it
            return

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._all))


bare_endpoints: Final = _Endpoints()


class GuardedRoute(APIRoute):
    """`guarding` is for endpoints that say nothing themselves; None leaves those alone."""

    guarding: ClassVar[Guarding | None] = None

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        methods = {method.upper() for method in options.get("methods") or ("GET",)}
        own = guarding_of(endpoint)
        if methods - SAFE_METHODS:
            if own is None:
                bare_endpoints.append(endpoint)
            elif (mark := guarded_view_of(endpoint)) is not None:
                mark.is_served = True  # also where an app leaves this route's router out
        if own is not None and own.rule.guarded and not any(map(own.rule.guards, methods)):
            raise ConfigurationError(
                f"{path} is guarded, but not for its methods: " + ", ".join(sorted(methods))
            )
        general = self.guarding
        if own is None and general is not None and any(map(general.rule.guards, methods)):
            own = general
            endpoint = behind_door(endpoint, own)
        self._guarding = own if own is not None and own.rule.guarded else None
        super().__init__(path, endpoint, **options)
        if self._guarding is not None:
            replay_header = self._guarding.owner.exchange.replay_header
            self.openapi_extra = extended(self, self._guarding.rule, replay_header)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarding = self._guarding
        if guarding is None or not guarding.rule.guards(scope["method"].upper()):
            if self._is_refused(scope):
                unguarded: UnguardedKeys = scope[REFUSING]
                unguarded.note(scope["method"], scope["path"])
                mark_key_guarded(scope)
                response = as_starlette(unguarded.refusal(scope.get("app_root_path", "")))
                await response(scope, receive, send)
                return
            if guarding_of(self.endpoint) is not None:
                scope = {**scope, DOOR: None}
            await super().handle(scope, receive, send)
            return
        kind = AtRoute if guarding.session is None else InTransaction
        await kind(guarding, super().handle, dict(scope), receive, send).respond()

    def _is_refused(self, scope: Scope) -> bool:
        """Whether a key is refused here: this route serves the request, and does not guard it.
        One that was left out by `guard(guarded=False)` lets it pass."""
        own = guarding_of(self.endpoint)
        is_left_out = own is not None and not own.rule.guarded
        serves = self.methods is None or scope["method"] in self.methods
        return REFUSING in scope and serves and not is_left_out


def route_class(guarding: Guarding | None, base: type[APIRoute] = APIRoute) -> type[GuardedRoute]:
    """A route class for a router; over `base`, where the app has one of its own."""
    bases = (GuardedRoute,) if issubclass(GuardedRoute, base) else (GuardedRoute, base)
    return type("GuardedRoute", bases, {"guarding": guarding})


def is_held_by_a_route(endpoint: Any) -> bool:
    """Whether a route of any app holds this function already. For an app that was never attached:
    nobody would look at its routes later, so whoever refers to the function is asked."""
    return any(
        isinstance(holder, dict) and holder.get("endpoint") is endpoint and "path_regex" in holder
        for holder in gc.get_referrers(endpoint)
    )


def misplaced(route: Any) -> bool:
    """Whether a guarded endpoint stands on a route that does not know."""
    guarding = guarding_of(getattr(route, "endpoint", None))
    is_guarded = guarding is not None and guarding.rule.guarded
    return is_guarded and not isinstance(route, GuardedRoute)
