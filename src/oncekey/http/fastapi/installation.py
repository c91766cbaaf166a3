"""The middleware of FastAPI apps: `install` for an app without guarded routes, and what
`Idempotency.attach` puts around an app with them.

`install` adds the plain ASGI middleware, which claims a key before the app looks at the request.
FastAPI's own refusal of a body that fails validation then frees the key, see
unhandled_requests.py. `RouteCheck` sees every request of an attached app before its route does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from typing import Any, Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from oncekey.core.errors import ConfigurationError
from oncekey.engine.async_once import AsyncOnce
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.asgi.messages import app_path, has_key_line
from oncekey.http.asgi.middleware import Caller
from oncekey.http.exchange import REPLAY_HEADER_DEFAULT, Exchange, check_caller
from oncekey.http.fastapi.openapi import describe
from oncekey.http.inspection.guarded_views import GuardedViews
from oncekey.http.inspection.policy_document import asgi_app_or_page, is_policy_page
from oncekey.http.rules import Rule
from oncekey.http.unguarded_keys import UnguardedKeys, run_marked

# In the scope: the UnguardedKeys that refuse a key which the request's route does not guard.
REFUSING: Final = "oncekey.refusing"


def install(
    app: FastAPI, once: AsyncOnce, *, caller: Caller, rules: Iterable[Rule] = (), **options: Any
) -> None:
    """Add an `IdempotencyMiddleware` and describe its routes. `caller` is a function of the ASGI
    scope; the options are the middleware's. Before or after routes and exception handlers."""
    check_caller(caller)
    if app.middleware_stack is not None:
        raise ConfigurationError("install() before the app serves its first request")
    rules = tuple(rules)
    app.add_middleware(
        IdempotencyMiddleware,
        once=once,
        caller=caller,
        rules=rules,
        **options,
    )
    describe(app, rules, replay_header=options.get("replay_header", REPLAY_HEADER_DEFAULT))


class RouteCheck:
    """Checks an app's routes before its first request, and again when there are more of them; for
    apps that no server starts with a lifespan. Also reports keys that no route guards."""

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
            if is_ours and has_key_line(scope):
                if self._unguarded.refuses:
                    scope[REFUSING] = self._unguarded  # for the route, once it is known which
                await run_marked(self.app, self._unguarded, scope, receive, send)  # type: ignore[arg-type]
                return
        await self.app(scope, receive, send)


def serve_page(app: FastAPI, exchange: Exchange) -> None:
    """Serve the built-in policy page, unless the app has a page of its own at its path."""
    build = app.build_middleware_stack

    def build_middleware_stack() -> ASGIApp:
        inner = build()

        async def stack(scope: Any, receive: Any, send: Any) -> None:
            path = exchange.page_path
            if scope["type"] == "http" and is_policy_page(scope["method"], app_path(scope), path):
                await asgi_app_or_page(inner, app, scope, receive, send)
            else:
                await inner(scope, receive, send)

        return stack

    app.build_middleware_stack = build_middleware_stack  # type: ignore[method-assign]
