"""`Idempotency` sets an app up for guarded routes.

Owns the options of a route, and the start and end of the app. What happens to a request is in
route_request.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar, Unpack

import fastapi
from fastapi import FastAPI, Request
from fastapi.params import Depends

from oncekey.core.duration import Duration
from oncekey.core.errors import ConfigurationError
from oncekey.engine.async_once import DRAIN_DEFAULT, AsyncOnce
from oncekey.engine.once import Once
from oncekey.http.asgi.lifespan import (
    acquire_engines,
    check_event_loop,
    drain_mounted,
    release_engine,
)
from oncekey.http.exchange import (
    OPERATION_DEFAULT,
    POLICY_URL_DEFAULT,
    REPLAY_HEADER_DEFAULT,
    Exchange,
    check_caller,
)
from oncekey.http.fastapi.endpoint import EndpointGuard, RouteGuard, wrap_endpoint
from oncekey.http.fastapi.installation import RouteCheck, serve_page
from oncekey.http.fastapi.route import (
    GuardedRoute,
    bare_endpoints,
    is_held_by_a_route,
    misplaced,
    route_class,
)
from oncekey.http.inspection.guarded_views import GuardedViews, unwrapped
from oncekey.http.inspection.route_table import Route, app_views, routes_of
from oncekey.http.problem import Render
from oncekey.http.rules import ANY_METHOD, METHODS_DEFAULT, RuleOptions, Rules, rule_from_options

F = TypeVar("F", bound=Callable[..., Any])
Caller = Depends | Callable[[Request], Any]
# In earlier versions a dependency, and with it its session, ended before the response was sent.
_TRANSACTIONS_SINCE: Final = (0, 118)
# To a function that was just defined: from the frames and arguments of our callers only.
_REFERENCES_OF_A_FRESH_ONE: Final = 6


class Idempotency(RouteGuard):
    """Guards routes, after the app's own dependencies and validation.

    caller      Depends(...) or a function of the Request: the verified principal, as text; None
                refuses the request
    blocking    a `Once` on the same database, for transactions in sessions that are not async
    operation   what its keys are for; two apps on one store want two names
    policy_url  where clients find the published policy: a path of the app, where `attach` lets a
                built-in page be served unless the app has one of its own, or a whole URL; None
                for none
    replay_header   the header that marks a replay
    render_refusal  a function that gives a Refusal the shape of the app's own errors
    drain       how long a shutdown waits for running requests
    close       whether the engines are closed with the app
    unserved    a guarded function that no route of any app or router serves is an error when the
                app starts; "allow" where one gets its route later, or never
    unguarded   what an attached app does about a key on a request to a route without a guard:
                "warn" marks the response and writes to the log, "refuse" answers 400
    """

    def __init__(
        self,
        once: AsyncOnce,
        *,
        caller: Any = None,
        blocking: Once | None = None,
        operation: str = OPERATION_DEFAULT,
        policy_url: str | None = POLICY_URL_DEFAULT,
        challenge: str = "Bearer",
        replay_header: str = REPLAY_HEADER_DEFAULT,
        render_refusal: Render | None = None,
        drain: Duration = DRAIN_DEFAULT,
        close: bool = True,
        unserved: str = "refuse",
        unguarded: str = "warn",
    ) -> None:
        # Refusals link to the built-in page only if `attach` serves it.
        self._serves_page = policy_url == POLICY_URL_DEFAULT
        exchange = Exchange(
            Rules(),
            operation=operation,
            policy_url=None if self._serves_page else policy_url,
            challenge=challenge,
            replay_header=replay_header,
            render_refusal=render_refusal,
        )
        super().__init__(once, exchange, drain, unguarded)
        if not isinstance(caller, Depends):
            check_caller(caller)
        self.blocking = blocking
        self.caller: Caller = caller
        self.route_class = route_class(None)
        self._close = close
        self.views = GuardedViews(
            "fastapi",
            "@idempotency.guard(...) stands directly above the function, below @app.post(...).",
            'Idempotency(..., unserved="allow")',
            unserved,
        )
        self.views.other_views = functools.partial(app_views, self.views.apps)

    # --- which routes -------------------------------------------------------------------------

    def guard(self, *, transaction: Any = None, **options: Unpack[RuleOptions]) -> Callable[[F], F]:
        """Guard one endpoint, below `@app.post(...)`. The options are those of a `Rule`.

        `transaction` is the app's dependency that yields a session: the handler's rows, the record
        and the response then commit together.
        """
        guard = self._endpoint_guard(transaction, {"methods": [ANY_METHOD], **options})

        def decorate(endpoint: F) -> F:
            if not guard.rule.guarded:
                return wrap_endpoint(endpoint, guard)  # type: ignore[return-value]
            self.views.check_order(endpoint, self._bare_endpoints(endpoint))
            wrapped: Any = wrap_endpoint(endpoint, guard)
            self.views.add(wrapped, endpoint, guard.rule)
            return wrapped  # type: ignore[no-any-return]

        return decorate

    def _bare_endpoints(self, endpoint: Any) -> list[Any]:
        """The functions that routes hold without a guard, as far as `endpoint` may be one."""
        found = list(bare_endpoints)
        if self.views.apps:
            return found  # the other routes of these apps are checked when they start
        # The search is slow, so only functions are searched for that are referred to elsewhere.
        return found + [
            one
            for one in unwrapped(endpoint)
            if sys.getrefcount(one) > _REFERENCES_OF_A_FRESH_ONE and is_held_by_a_route(one)
        ]

    def route(
        self, *, transaction: Any = None, **options: Unpack[RuleOptions]
    ) -> type[GuardedRoute]:
        """A route class that guards every POST and PATCH of a router:
        `APIRouter(route_class=idempotency.route())`. Endpoints may have a `guard` of their own."""
        return route_class(
            self._endpoint_guard(transaction, {"methods": METHODS_DEFAULT, **options})
        )

    def attach(self, app: FastAPI) -> None:
        """Let `guard` be used on this app's routes, and wait for what runs when it ends. Before
        its routes."""
        if app in self.views.apps:
            raise ConfigurationError("this Idempotency is attached to the app already")
        for route in app.routes:
            if misplaced(route):
                raise _too_late(route)
        self.views.apps.add(app)
        app.add_middleware(
            RouteCheck,
            check=lambda: self.check(app),
            routes=app.router.routes,
            views=self.views,
            unguarded=self.unguarded,
            exchange=self.exchange,
        )
        router = app.router
        if not issubclass(router.route_class, GuardedRoute):  # else another set-up is attached too
            router.route_class = route_class(None, router.route_class)
        inner = router.lifespan_context

        @asynccontextmanager
        async def lifespan(running: FastAPI) -> AsyncIterator[Any]:
            check_event_loop()
            self._acquire_engines()
            is_acquired = True
            try:
                async with inner(running) as state:
                    self.check(app)
                    self.lifespans += 1
                    try:
                        yield state
                    finally:
                        is_acquired = False
                        self.lifespans -= 1
                        await self.end()
                        await drain_mounted()
            finally:
                if is_acquired:  # the app failed to start
                    self._release_engines()

        router.lifespan_context = lifespan
        if self._serves_page:
            self.exchange.policy_url = POLICY_URL_DEFAULT
        serve_page(app, self.exchange)

    def check(self, app: FastAPI) -> None:
        """Raise ConfigurationError if a guarded function is served unguarded, or not at all. An
        attached app does so when it starts, or at its first request."""
        for route in all_routes(app):
            if misplaced(route):
                raise _too_late(route)
        self.views.check(app_views([app]))
        if self.unguarded.refuses:
            _check_refusing(routes_of(app))

    def _endpoint_guard(self, transaction: Any, options: dict[str, Any]) -> EndpointGuard:
        if transaction is None:
            return EndpointGuard(self, rule_from_options(options), self.caller)
        for name, wanted in (("required", True), ("retry_safe", True), ("store_down", "refuse")):
            if options.setdefault(name, wanted) != wanted:
                raise ConfigurationError(
                    f"with transaction= it is always {name}={wanted!r}: the transaction is rolled "
                    "back with the key"
                )
        session = transaction if isinstance(transaction, Depends) else Depends(transaction)
        if getattr(session, "scope", None) == "function":
            raise ConfigurationError(
                "the session of transaction= must last until the response is made: "
                "Depends(..., scope='request')"
            )
        version = tuple(int(part) for part in fastapi.__version__.split(".")[:2])
        if version < _TRANSACTIONS_SINCE:
            raise ConfigurationError(
                f"transaction= needs FastAPI 0.118 or newer, not {fastapi.__version__}"
            )
        return EndpointGuard(self, rule_from_options(options), self.caller, session)

    # --- start and end ------------------------------------------------------------------------

    def _acquire_engines(self) -> None:
        if self._close:
            acquire_engines(*self._engines())

    def _release_engines(self) -> list[AsyncOnce | Once]:
        """Returns the engines that no other app uses."""
        return [engine for engine in self._engines() if self._close and release_engine(engine)]

    def _engines(self) -> list[AsyncOnce | Once]:
        return [self.once] if self.blocking is None else [self.once, self.blocking]

    async def end(self) -> None:
        """Drain, and close the engines unless close=False. `attach` sees to it."""
        await self.drain()
        for engine in self._release_engines():
            if isinstance(engine, Once):
                engine.close()
            else:
                await engine.close()


def all_routes(app: FastAPI) -> list[Any]:
    """Those of included routers too, where FastAPI keeps them apart."""
    try:
        from fastapi.routing import iter_route_contexts
    except ImportError:
        return list(app.routes)
    return [context.original_route for context in iter_route_contexts(app.routes)]


def _check_refusing(routes: Iterable[Route]) -> None:
    """Only a route of ours can refuse a key after it was found, and before its endpoint runs."""
    for route in routes:
        if not isinstance(route.framework_route, GuardedRoute):
            raise ConfigurationError(
                f'unguarded="refuse" cannot refuse keys at {route.path}: its router needs '
                "APIRouter(route_class=idempotency.route_class)"
            )


def _too_late(route: Any) -> ConfigurationError:
    return ConfigurationError(
        f"{route.path} is guarded, but its route does not know: idempotency.attach(app) before the "
        "routes of an app, and APIRouter(route_class=idempotency.route_class) for a router's"
    )
