"""`Dashboard`: the ASGI app that serves the pages, alone or mounted in another app."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.dashboard import decision_form, key_page, overview_page, search_page
from oncekey.dashboard.access import (
    SIGN_IN_SECONDS,
    WRONG_TOKENS_SECONDS,
    Access,
    HeldAnswers,
    TooManyTries,
)
from oncekey.dashboard.dashboard_keys import keys_of
from oncekey.dashboard.live_rates import LiveRates, RateCurve
from oncekey.dashboard.page_request import DashboardOptions, PageRequest, base_of, render
from oncekey.dashboard.parked_messages import AnyConsumer, checked_consumers, return_parked
from oncekey.dashboard.request_checks import (
    Refused,
    check_head,
    check_same_origin,
    read_form,
    with_headers,
)
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.event_loop import require_asyncio
from oncekey.engine.once import Once
from oncekey.http.inspection.route_table import KeylessApp

Authenticate = Callable[[Scope], "str | Awaitable[str | None] | None"]
Right = bool | Callable[[str], bool]  # the function gets the reader's name
Page = Callable[[PageRequest], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]

STUCK_AFTER_DEFAULT: Final = "5m"
READER_MAX_CHARS: Final = 100

_FILES: Final = {
    "dashboard.css": "text/css",
    "refresh.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_SIGN_IN: Final = "/sign-in"
_SIGN_OUT: Final = "/sign-out"
_NEEDS: Final = "oncekey's dashboard needs"


class Dashboard(KeylessApp):
    """Pages that show the keys of a store and let operators decide them, as an ASGI app. In an app
    that is guarded by a middleware its forms need no key: a decision is written only if the key is
    still what its operator was shown.

    store          a Once or AsyncOnce, or the URL of a store
    token          what opens it, 16 characters or more; also signs its cookies and forms
    authenticate   your own authentication instead of the token's sign-in page: gets the ASGI
                   scope, returns the reader's name, or None to refuse; may be async
    read_only      nothing can be decided; True, or a function of the reader's name
    bodies         show stored answers, arguments and step values, which are hidden otherwise;
                   True, or a function of the reader's name
    by             the name that decisions are noted under, if the form is not to ask for it
    hosts          the host names it is served under; None for any
    stuck_after    from when on a pending key is shown as stuck
    consumers      consumers of queues, which do not run here: their parked messages can be returned
    """

    def __init__(
        self,
        store: AsyncOnce | Once | str,
        *,
        token: str,
        authenticate: Authenticate | None = None,
        read_only: Right = False,
        bodies: Right = False,
        by: str = "",
        hosts: Sequence[str] | None = None,
        stuck_after: Duration = STUCK_AFTER_DEFAULT,
        consumers: Sequence[AnyConsumer] = (),
    ) -> None:
        if not by.isprintable() or len(by) > decision_form.OPERATOR_MAX_CHARS:
            most = decision_form.OPERATOR_MAX_CHARS
            raise ConfigurationError(f"by= must be a name of at most {most} printable characters")
        self._read_only = read_only
        self._bodies = bodies
        self._by = by
        self._stuck_after = microseconds(stuck_after, name="stuck_after") / 1_000_000
        self._access = Access(token)
        self._held = HeldAnswers()
        self._authenticate = authenticate
        self._hosts = None if hosts is None else tuple(host.lower() for host in hosts)
        self._consumers = checked_consumers(consumers)
        self._keys = keys_of(store)
        calls = LiveRates()
        self._calls = calls if self._keys.subscribe(calls) else None
        self._curve = RateCurve()
        self._routes = self._all_routes()
        static = files("oncekey.dashboard") / "static"
        self._static = {name: (static / name).read_bytes() for name in _FILES}

    def sign_in_path(self) -> str:
        """A path, below the dashboard's own, that signs in whoever opens it first."""
        return f"{_SIGN_IN}?code={self._access.new_code()}"

    async def close(self) -> None:
        """Close what was opened by URL. The engine of an app is the app's to close."""
        await self._keys.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            require_asyncio(_NEEDS)
            request = Request(scope, receive)
            response = await self._response(request)
            await response(scope, receive, with_headers(send))
        else:
            raise RuntimeError(f"the dashboard does not speak {scope['type']}")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            require_asyncio(_NEEDS)
        except ConfigurationError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _response(self, request: Request) -> Response:
        try:
            check_head(request, self._hosts)
            return await self._endpoint(request)(request)
        except Refused as error:
            return _problem(request, error.status, error.reason)
        except StoreUnavailable as error:
            return _problem(request, 503, f"The store does not answer: {error}")
        except TooManyTries:
            await self._held.pause()
            refusal = _problem(request, 429, "This is not the token, and there were many like it.")
            refusal.headers["Retry-After"] = str(WRONG_TOKENS_SECONDS)
            return refusal

    def _endpoint(self, request: Request) -> Endpoint:
        refused = Refused(404, "There is no such page.")
        for route in self._routes:
            match, found = route.matches(request.scope)
            if match is Match.FULL:
                request.scope.update(found)
                endpoint: Endpoint = route.endpoint
                return endpoint
            if match is Match.PARTIAL:
                refused = Refused(405, "This page does not take that method.")
        raise refused

    def _all_routes(self) -> list[Route]:
        def get(path: str, page: Page) -> Route:
            return Route(path, self._reading(page))

        def post(path: str, page: Page) -> Route:
            return Route(path, self._writing(page), methods=["POST"])

        return [
            get("/", overview_page.overview),
            get("/keys", search_page.search),
            get("/keys/{id}", key_page.key),
            post("/keys/{id}/confirm", decision_form.confirm),
            post("/keys/{id}/decide", decision_form.decide),
            post("/consumers/{number}/return", return_parked),
            Route(_SIGN_IN, self._sign_in_page),
            Route(_SIGN_IN, self._sign_in, methods=["POST"]),
            Route(_SIGN_OUT, self._sign_out, methods=["POST"]),
            Route("/static/{name}", self._static_file),
        ]

    # --- pages ------------------------------------------------------------------------------------

    def _reading(self, page: Page) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            reader = await self._reader(request)
            if reader is None:
                return self._closed(request)
            cookie = self._cookie(request)
            is_new = not self._access.is_cookie(cookie)
            if is_new:  # the app's own authentication let them in: forms need a cookie all the same
                cookie = self._access.new_cookie()
            response = await page(self._page_request(request, reader, cookie, {}))
            if is_new:
                self._set_cookie(request, response, cookie)
            return response

        return endpoint

    def _writing(self, page: Page) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            reader = await self._reader(request)
            if reader is None:
                return self._closed(request)
            if self._options(reader).read_only:
                raise Refused(403, "This dashboard is read-only.")
            form = await self._checked_form(request)
            return await page(self._page_request(request, reader, self._cookie(request), form))

        return endpoint

    async def _checked_form(self, request: Request) -> dict[str, str]:
        """The form, if it was on a page that was sent to this browser."""
        check_same_origin(request.headers)
        form = await read_form(request)
        cookie = self._cookie(request)
        given = form.pop("form_token", "")
        if not self._access.is_cookie(cookie) or not self._access.is_form_token(cookie, given):
            raise Refused(403, "This form is too old or not from this page. Nothing was changed.")
        return form

    def _options(self, reader: str) -> DashboardOptions:
        """What this reader may see and do."""
        return DashboardOptions(
            read_only=_has(self._read_only, reader),
            bodies=_has(self._bodies, reader),
            by=self._by,
            stuck_after=self._stuck_after,
        )

    def _page_request(
        self, request: Request, reader: str, cookie: str, form: dict[str, str]
    ) -> PageRequest:
        return PageRequest(
            request=request,
            keys=self._keys,
            options=self._options(reader),
            reader=reader,
            form_token=self._access.form_token(cookie),
            can_sign_out=self._authenticate is None,
            form=form,
            calls=self._calls,
            curve=self._curve,
            consumers=self._consumers,
        )

    async def _static_file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            raise Refused(404, "There is no such file.")
        return Response(self._static[name], media_type=_FILES[name])

    # --- signing in -------------------------------------------------------------------------------

    async def _reader(self, request: Request) -> str | None:
        """The reader's name, "" if only the token is known; None for somebody who may not read."""
        if self._authenticate is None:
            return "" if self._access.is_cookie(self._cookie(request)) else None
        name: Any = self._authenticate(request.scope)
        if inspect.isawaitable(name):
            name = await name
        if name is None:
            return None
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ConfigurationError("authenticate= must return a printable name, or None")
        return name.strip()[:READER_MAX_CHARS]

    def _closed(self, request: Request) -> Response:
        if self._authenticate is not None:
            raise Refused(403, "You may not see this dashboard.")
        return self._sign_in_form(request, 401)

    async def _sign_in_page(self, request: Request) -> Response:
        code = request.query_params.get("code")
        if self._authenticate is not None or code is None:
            return self._sign_in_form(request, 200)
        cookie = self._access.redeem(code, _address(request))
        if cookie is None:
            return self._sign_in_form(request, 401, "This link was used already, or is too old.")
        return self._signed_in(request, cookie)

    async def _sign_in(self, request: Request) -> Response:
        if self._authenticate is not None:
            raise Refused(404, "There is no such page.")
        check_same_origin(request.headers)
        form = await read_form(request)
        cookie = self._access.sign_in(form.get("token", ""), _address(request))
        if cookie is None:
            return self._sign_in_form(request, 401, "This is not the token.")
        return self._signed_in(request, cookie)

    async def _sign_out(self, request: Request) -> Response:
        await self._checked_form(request)
        self._access.revoke(self._cookie(request))
        response = RedirectResponse(base_of(request) + _SIGN_IN, 303)
        response.delete_cookie(self._access.cookie_name, path=base_of(request) or "/")
        return response

    def _sign_in_form(self, request: Request, status: int, problem: str = "") -> Response:
        if self._authenticate is not None:
            raise Refused(404, "There is no such page.")
        return render(request, "sign_in.html", status, signed_in=False, problem=problem)

    def _signed_in(self, request: Request, cookie: str) -> Response:
        response = RedirectResponse(base_of(request) + "/", 303)
        self._set_cookie(request, response, cookie)
        return response

    def _cookie(self, request: Request) -> str:
        return request.cookies.get(self._access.cookie_name, "")

    def _set_cookie(self, request: Request, response: Response, cookie: str) -> None:
        response.set_cookie(
            self._access.cookie_name,
            cookie,
            max_age=SIGN_IN_SECONDS,
            path=base_of(request) or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )


def _has(right: Right, reader: str) -> bool:
    return bool(right(reader)) if callable(right) else right


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _problem(request: Request, status: int, reason: str) -> Response:
    return render(request, "problem.html", status, signed_in=False, code=status, reason=reason)
