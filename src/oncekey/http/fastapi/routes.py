"""The route class: an `APIRoute` that takes its guarded endpoints to the door.

Owns which requests of a route are guarded; everything else of it is FastAPI's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from oncekey.core.errors import ConfigurationError
from oncekey.http.fastapi.door import DOOR, Guarding, behind_door, guarding_of
from oncekey.http.fastapi.openapi import extended
from oncekey.http.fastapi.responding import AtRoute
from oncekey.http.fastapi.transactional import InTransaction


class GuardedRoute(APIRoute):
    """`guarding` is for endpoints that say nothing themselves; None leaves those alone."""

    guarding: ClassVar[Guarding | None] = None

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        methods = {method.upper() for method in options.get("methods") or ("GET",)}
        own = guarding_of(endpoint)
        if own is not None and own.rule.guarded and not methods & set(own.rule.methods):
            raise ConfigurationError(
                f"{path}: only POST, PATCH, PUT and DELETE can be guarded, not "
                + ", ".join(sorted(methods))
            )
        if own is None and self.guarding is not None and methods & set(self.guarding.rule.methods):
            own = self.guarding
            endpoint = behind_door(endpoint, own)
        self._guarding = own if own is not None and own.rule.guarded else None
        super().__init__(path, endpoint, **options)
        if self._guarding is not None:
            self.openapi_extra = extended(self, self._guarding.rule)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarding = self._guarding
        if guarding is None or scope["method"] not in guarding.rule.methods:
            if guarding_of(self.endpoint) is not None:
                scope = {**scope, DOOR: None}
            await super().handle(scope, receive, send)
            return
        kind = AtRoute if guarding.session is None else InTransaction
        await kind(guarding, super().handle, dict(scope), receive, send).respond()


def route_class(guarding: Guarding | None, base: type[APIRoute] = APIRoute) -> type[GuardedRoute]:
    """A route class for a router; over `base`, where the app has one of its own."""
    bases = (GuardedRoute,) if issubclass(GuardedRoute, base) else (GuardedRoute, base)
    return type("GuardedRoute", bases, {"guarding": guarding})


def misplaced(route: Any) -> bool:
    """Whether a guarded endpoint stands on a route that does not know."""
    guarding = guarding_of(getattr(route, "endpoint", None))
    is_guarded = guarding is not None and guarding.rule.guarded
    return is_guarded and not isinstance(route, GuardedRoute)
