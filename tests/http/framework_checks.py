"""The same small app in every framework, and checks of the responses that clients get from it.

A check takes the name of a framework. Django can be set up only once per process, so its checks run
in a process of their own: `python -m tests.http.framework_checks django`.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Callable
from typing import Any
from wsgiref.util import setup_testing_defaults

import httpx

from oncekey import AsyncOnce, Once
from oncekey.http.problem import Refusal
from oncekey.http.rules import Rule
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing.faulty_store import AsyncFaultyStore, Fault, FaultyStore

PAGE = "/idempotency-policy"
RULE: dict[str, Any] = {"request_headers": ["X-Tenant"], "store_down": "run"}


class StoreSwitch:
    """Lets the store fail: every command does while `is_down`."""

    is_down = False

    def __call__(self, *arguments: Any) -> Fault | None:
        return Fault.REFUSE if self.is_down else None


def render_as_error(refusal: Refusal) -> dict[str, Any]:
    return {"error": {"kind": refusal.code, "says": refusal.title, "again": refusal.retry_after}}


class FrameworkApp:
    """The app in one framework, called in this process."""

    def __init__(self, kind: str, *, own_page: bool = False, **options: Any) -> None:
        self.broken = StoreSwitch()
        self.runs = 0
        self._own_page = own_page
        self._options = options
        self.is_async = kind in ("asgi", "fastapi")
        self.app = getattr(self, f"_{kind}")()

    def request(
        self, method: str, path: str, key: str | None = None, **headers: str
    ) -> httpx.Response:
        lines = {"Content-Type": "application/json"}
        lines |= {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            lines["Idempotency-Key"] = key
        if not self.is_async:
            transport = httpx.WSGITransport(self.app)
            with httpx.Client(transport=transport, base_url="http://shop") as client:
                return client.request(method, path, content=b"{}", headers=lines)

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                return await client.request(method, path, content=b"{}", headers=lines)

        return asyncio.run(send())

    def pay(self, key: str | None, **headers: str) -> httpx.Response:
        return self.request("POST", "/pay", key, **headers)

    def _paid(self) -> dict[str, int]:
        self.runs += 1
        return {"paid": self.runs}

    def _async_once(self) -> AsyncOnce:
        return AsyncOnce(AsyncFaultyStore(AsyncMemoryStore(), self.broken), cache=0)

    def _once(self) -> Once:
        return Once(FaultyStore(MemoryStore(), self.broken), cache=0)

    # --- frameworks -----------------------------------------------------------------------------

    def _asgi(self) -> Any:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, PlainTextResponse
        from starlette.routing import Route

        from oncekey.http.asgi import IdempotencyMiddleware

        async def pay(request: Any) -> Any:
            return JSONResponse(self._paid(), 201)

        async def page(request: Any) -> Any:
            return PlainTextResponse("the app's own")

        routes = [Route("/pay", pay, methods=["POST"])]
        routes += [Route(PAGE, page)] if self._own_page else []
        return IdempotencyMiddleware(
            Starlette(routes=routes),
            self._async_once(),
            caller=lambda scope: "me",
            rules=[Rule(**RULE)],
            **self._options,
        )

    def _fastapi(self) -> Any:
        from fastapi import FastAPI

        from oncekey.http.fastapi import Idempotency

        app = FastAPI()
        idempotency = Idempotency(self._async_once(), caller=lambda r: "me", **self._options)
        idempotency.attach(app)

        @app.post("/pay", status_code=201)
        @idempotency.guard(**RULE)
        async def pay() -> dict[str, int]:
            return self._paid()

        if self._own_page:
            app.get(PAGE)(lambda: "the app's own")
        return app

    def _wsgi(self) -> Any:
        from oncekey.http.wsgi import IdempotencyWSGI

        def inner(environ: Any, start_response: Any) -> Any:
            if environ["PATH_INFO"] == "/pay":
                start_response("201 Created", [("Content-Type", "application/json")])
                return [json.dumps(self._paid()).encode()]
            is_own = self._own_page and environ["PATH_INFO"] == PAGE
            start_response(
                "200 OK" if is_own else "404 Not Found", [("Content-Type", "text/plain")]
            )
            return [b"the app's own"]

        return IdempotencyWSGI(
            inner,
            self._once(),
            caller=lambda environ: "me",
            rules=[Rule(**RULE)],
            close=False,
            **self._options,
        )

    def _flask(self) -> Any:
        from flask import Flask

        from oncekey.http.flask import Idempotency, idempotent

        app = Flask("shop")
        Idempotency(app, once=self._once(), caller=lambda: "me", close=False, **self._options)

        @app.post("/pay")
        @idempotent(**RULE)
        def pay() -> Any:
            return self._paid(), 201

        if self._own_page:
            app.get(PAGE)(lambda: "the app's own")
        return app

    def _django(self) -> Any:
        from django import setup
        from django.conf import settings
        from django.core.wsgi import get_wsgi_application
        from django.http import HttpResponse, JsonResponse
        from django.test.utils import override_settings
        from django.urls import path

        if not settings.configured:
            settings.configure(
                ALLOWED_HOSTS=["*"],
                MIDDLEWARE=["oncekey.http.django.IdempotencyMiddleware"],
                LOGGING_CONFIG=None,
                USE_TZ=True,
                SECRET_KEY="not a secret",
            )
            setup()
        urls: Any = type("urls", (), {})()
        urls.urlpatterns = [path("pay", lambda request: JsonResponse(self._paid(), status=201))]
        if self._own_page:
            urls.urlpatterns.append(path(PAGE[1:], lambda r: HttpResponse("the app's own")))
        ours = {
            "once": self._once(),
            "caller": lambda request: "me",
            "rules": [RULE],
            "close": False,
            **self._options,
        }
        override_settings(ONCEKEY=ours, ROOT_URLCONF=urls).enable()
        return get_wsgi_application()


# --- checks -------------------------------------------------------------------------------------


def check_problem_has_a_code_and_links_to_the_policy_page(kind: str) -> None:
    app = FrameworkApp(kind)
    refused = app.pay(None)
    assert refused.status_code == 400
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["code"] == "missing-key"
    assert refused.json()["type"] == f"{PAGE}#missing-key"
    assert refused.headers["link"] == f'<{PAGE}>; rel="describedby"; type="text/html"'
    page = app.request("GET", PAGE)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert 'id="missing-key"' in page.text
    assert "X-Tenant" in page.text
    assert "X-Idempotency-Replayed" in page.text
    assert app.request("HEAD", PAGE).content == b""
    assert app.request("GET", "/nothing").status_code == 404


def check_policy_page_gives_way_to_the_apps_own_and_can_be_disabled(kind: str) -> None:
    assert "the app's own" in FrameworkApp(kind, own_page=True).request("GET", PAGE).text
    off = FrameworkApp(kind, policy_url=None)
    assert off.request("GET", PAGE).status_code == 404
    refused = off.pay(None)
    assert "link" not in refused.headers
    assert refused.json()["type"] == "urn:oncekey:problem:missing-key"
    elsewhere = FrameworkApp(kind, policy_url="https://docs.shop.example/keys")
    assert elsewhere.request("GET", PAGE).status_code == 404
    assert "<https://docs.shop.example/keys>" in elsewhere.pay(None).headers["link"]


def check_replay_header_has_the_configured_name(kind: str) -> None:
    app = FrameworkApp(kind, replay_header="Idempotent-Replayed")
    first, again = app.pay("k"), app.pay("k")
    assert (first.status_code, first.content) == (again.status_code, again.content)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert "x-idempotency-replayed" not in again.headers
    assert "Idempotent-Replayed" in app.request("GET", PAGE).text


def check_refusal_has_the_shape_of_its_renderer(kind: str) -> None:
    app = FrameworkApp(kind, render_refusal=render_as_error)
    assert app.pay("k").status_code == 201
    refused = app.pay("k", X_Tenant="other")
    assert (refused.status_code, refused.headers["content-type"]) == (422, "application/json")
    assert refused.json()["error"]["kind"] == "key-reused"
    assert "link" in refused.headers
    assert app.pay(None).json()["error"]["kind"] == "missing-key"


def check_unprotected_response_is_marked(kind: str) -> None:
    app = FrameworkApp(kind)
    app.broken.is_down = True
    responses = [app.pay("k"), app.pay("k")]
    assert [r.status_code for r in responses] == [201, 201]
    assert [r.headers["x-idempotency-unprotected"] for r in responses] == ["store-down"] * 2
    app.broken.is_down = False
    assert "x-idempotency-unprotected" not in app.pay("k").headers


def check_request_headers_of_the_rule_are_compared(kind: str) -> None:
    app = FrameworkApp(kind)
    assert app.pay("with", X_Tenant="a").status_code == 201
    assert app.pay("with", x_tenant="a").headers["x-idempotency-replayed"] == "true"
    assert app.pay("with", X_Tenant="b").status_code == 422
    assert app.pay("with").status_code == 422
    assert app.pay("empty", X_Tenant="").status_code == 201
    assert app.pay("empty").status_code == 422
    assert app.pay("without", X_Other="1").status_code == 201
    assert app.pay("without", X_Other="2").headers["x-idempotency-replayed"] == "true"


class ResetBody(io.RawIOBase):
    """A request body whose client resets the connection after a few bytes."""

    def __init__(self) -> None:
        self._is_first = True

    def read(self, size: int = -1, /) -> bytes:
        if not self._is_first:
            raise ConnectionResetError(104, "Connection reset by peer")
        self._is_first = False
        return b'{"cents"'


class StartResponse:
    """A `start_response` that keeps the status."""

    status = 0

    def __call__(self, line: str, lines: Any, exc_info: Any = None) -> None:
        self.status = int(line[:3])


def check_reset_within_the_body_gives_400_and_claims_nothing(kind: str) -> None:
    app = FrameworkApp(kind)
    if app.is_async:
        return  # there a reset is a message, see test_asgi_over_socket.py
    for length in ({"CONTENT_LENGTH": "500"}, {"wsgi.input_terminated": True}):
        environ: dict[str, Any] = {}
        setup_testing_defaults(environ)
        environ |= {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/pay",
            "HTTP_IDEMPOTENCY_KEY": "reset",
            "CONTENT_TYPE": "application/json",
            "wsgi.input": ResetBody(),
            **length,
        }
        if kind == "django" and "CONTENT_LENGTH" not in environ:
            continue  # it reads no chunked bodies
        start = StartResponse()
        body = b"".join(app.app(environ, start))
        assert (start.status, json.loads(body)["code"]) == (400, "unreadable-body")
    assert app.runs == 0
    assert app.pay("reset").json() == {"paid": 1}, "nothing was claimed"


def check_quoted_key_may_have_spaces(kind: str) -> None:
    app = FrameworkApp(kind)
    assert app.pay('"order 17 of May"').status_code == 201
    assert app.pay('"order 17 of May"').headers["x-idempotency-replayed"] == "true"
    assert app.pay("order 17 of May").json()["code"] == "invalid-key"


CHECKS: dict[str, Callable[[str], None]] = {
    name: check for name, check in list(globals().items()) if name.startswith("check_")
}

if __name__ == "__main__":
    for one in CHECKS.values():
        one(sys.argv[1])
