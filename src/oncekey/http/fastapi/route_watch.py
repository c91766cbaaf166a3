"""Looks at every request of an attached FastAPI app before its route does, as a middleware.

Owns when the app's routes are checked, for an app that no server starts with a lifespan, and who
tells a client that its key has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from oncekey.http.asgi import watched
from oncekey.http.exchange import Exchange
from oncekey.http.guarded_views import GuardedViews
from oncekey.http.unguarded_keys import UnguardedKeys

# In the scope: who refuses a key that the route of this request does not guard.
REFUSING: Final = "oncekey.refusing"


class RouteWatch:
    """Checks the routes before the first request, and again when there are more of them."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        check: Callable[[], None],
        routes: Sized,
        views: GuardedViews,
        unguarded: UnguardedKeys,
        exchange: Exchange,
    ) -> None:
        self.app = app
        self._unguarded = unguarded
        self._exchange = exchange
        self._check = check
        self._routes = routes
        self._views = views
        self._checked: tuple[int, int] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            state = (len(self._routes), self._views.version)
            if state != self._checked:
                self._check()
                self._checked = state
            is_ours = self._unguarded.is_reported(scope["method"], scope)
            if is_ours and self._exchange.has_key(scope["headers"]):
                if self._unguarded.refuses:
                    scope[REFUSING] = self._unguarded  # once it is known which route this is for
                await watched(self.app, self._unguarded, scope, receive, send)
                return
        await self.app(scope, receive, send)
