"""The middleware that an attached FastAPI app has: it looks at every request before its route does.

Owns when the app's routes are checked, for an app that no server starts with a lifespan.
"""

from __future__ import annotations

from collections.abc import Callable, Sized

from starlette.types import ASGIApp, Receive, Scope, Send

from oncekey.http.guarded_views import GuardedViews


class RouteWatch:
    """Checks the routes before the first request, and again when there are more of them."""

    def __init__(
        self, app: ASGIApp, *, check: Callable[[], None], routes: Sized, views: GuardedViews
    ) -> None:
        self.app = app
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
        await self.app(scope, receive, send)
