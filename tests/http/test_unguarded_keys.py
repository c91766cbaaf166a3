"""A request that has a key but no guard is reported by a header, the log and an event, or refused.
Safe methods, guarded requests and requests without a key are not reported."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from tests.http.app_server import ROOT
from werkzeug.test import Client

from oncekey import AsyncOnce, ConfigurationError, EventKind, Once
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.exchange import Exchange
from oncekey.http.fastapi import Idempotency
from oncekey.http.flask import Idempotency as FlaskIdempotency
from oncekey.http.flask import idempotent
from oncekey.http.rules import Rule, Rules
from oncekey.http.unguarded_keys import LOG_EVERY_SECONDS, UnguardedKeys
from oncekey.http.wsgi import IdempotencyWSGI

RAN: list[str] = []
EVENTS: list[EventKind] = []
RULES = [Rule("/guarded"), Rule("/out", guarded=False)]
PATHS = ("/guarded", "/open", "/out")
Outcome = tuple[int, str | None, str]
Send = Callable[[str, str], Outcome]


def blocking() -> Once:
    once = Once("memory://")
    once.subscribe(lambda event: EVENTS.append(event.kind))
    return once


def awaited() -> AsyncOnce:
    once = AsyncOnce("memory://")
    once.subscribe(lambda event: EVENTS.append(event.kind))
    return once


def run_view() -> str:
    RAN.append("ran")
    return "ran"


def fresh_view() -> Callable[[], str]:
    """A view that no other route has."""

    def view() -> str:
        return run_view()

    return view


def sender_to_asgi(app: Any) -> Send:
    async def request(method: str, path: str) -> Any:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            headers = {"Idempotency-Key": "k"}
            return await client.request(method, path, headers=headers, content=b"{}")

    def send(method: str, path: str) -> Outcome:
        response = asyncio.run(request(method, path))
        return (
            response.status_code,
            response.headers.get("x-idempotency-unprotected"),
            response.text,
        )

    return send


def sender_to_wsgi(app: Any) -> Send:
    def send(method: str, path: str) -> Outcome:
        headers = {"Idempotency-Key": "k"}
        response = Client(app).open(path, method=method, headers=headers, buffered=True)
        return (
            response.status_code,
            response.headers.get("X-Idempotency-Unprotected"),
            response.text,
        )

    return send


# --- apps -----------------------------------------------------------------------------------------


async def ran(request: Any) -> Any:
    RAN.append(request.url.path)
    return PlainTextResponse("ran")


def asgi(mode: str) -> Send:
    routes = [Route(path, ran, methods=["GET", "POST"]) for path in PATHS]
    once = awaited()
    app = IdempotencyMiddleware(
        Starlette(routes=routes), once, caller=lambda scope: "me", rules=RULES, unguarded=mode
    )
    return sender_to_asgi(app)


def fastapi(mode: str) -> Send:
    app = FastAPI()
    guard = Idempotency(awaited(), caller=lambda request: "me", unguarded=mode)
    guard.attach(app)
    router = APIRouter(route_class=guard.route_class)

    router.post("/guarded")(guard.guard()(fresh_view()))
    router.api_route("/open", methods=["GET", "POST"])(run_view)
    router.post("/out")(guard.guard(guarded=False)(fresh_view()))
    app.include_router(router)
    return sender_to_asgi(app)


def wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    RAN.append(environ["PATH_INFO"])
    start_response("200 OK", [])
    return [b"ran"]


def wsgi(mode: str) -> Send:
    made = IdempotencyWSGI(
        wsgi_app, blocking(), caller=lambda environ: "me", rules=RULES, unguarded=mode, close=False
    )
    return sender_to_wsgi(made)


def flask(mode: str) -> Send:
    app = Flask("x")
    FlaskIdempotency(app, once=blocking(), caller=lambda: "me", unguarded=mode, close=False)
    guarded = idempotent()(fresh_view())
    out = idempotent(guarded=False)(fresh_view())
    for path, view in (("/guarded", guarded), ("/open", run_view), ("/out", out)):
        app.add_url_rule(path, path[1:], view, methods=["GET", "POST"])
    return sender_to_wsgi(app)


def flask_whole(mode: str) -> Send:
    app = Flask("x")
    FlaskIdempotency(
        app, once=blocking(), caller=lambda e: "me", rules=RULES, unguarded=mode, close=False
    )
    for path in PATHS:
        app.add_url_rule(path, path[1:], run_view, methods=["GET", "POST"])
    return sender_to_wsgi(app)


APPS = {"asgi": asgi, "fastapi": fastapi, "wsgi": wsgi, "flask": flask, "whole": flask_whole}


@pytest.mark.parametrize("name", APPS)
def test_unguarded_key_is_reported_by_header_log_and_event(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    send = APPS[name]("warn")
    RAN.clear()
    EVENTS.clear()
    for path in ("/open", "/open", "/out"):
        status, mark, body = send("POST", path)
        assert (status, mark, body.strip('"')) == (200, "unguarded", "ran")
    assert len(RAN) == 3
    assert EVENTS == [EventKind.UNGUARDED] * 3
    (line,) = [r.getMessage() for r in caplog.records if r.name == "oncekey"]
    assert "1 request" in line
    assert "POST '/open'" in line
    assert '"k"' not in line
    assert send("GET", "/open")[:2] == (200, None)
    assert [send("POST", "/guarded")[1] for _ in range(2)] == [None, None]
    assert EventKind.REPLAYED in EVENTS


@pytest.mark.parametrize("name", APPS)
def test_unguarded_key_is_refused_if_configured(name: str) -> None:
    send = APPS[name]("refuse")
    RAN.clear()
    status, mark, body = send("POST", "/open")
    assert (status, mark) == (400, None)
    assert '"code": "unguarded"' in body
    assert RAN == []
    assert send("POST", "/out")[:2] == (200, "unguarded")
    assert send("GET", "/open")[0] == 200
    assert send("POST", "/guarded")[:2] == (200, None)
    assert len(RAN) == 3
    assert send("POST", "/nowhere")[0] == (404 if name in ("fastapi", "flask") else 400)


def test_key_guarded_further_inside_is_not_reported() -> None:
    """And of two that watch, one tells the client."""
    inner = FastAPI()
    guard = Idempotency(awaited(), caller=lambda request: "me")
    guard.attach(inner)

    @inner.post("/guarded")
    @guard.guard()
    def guarded() -> str:
        return "ran"

    @inner.post("/open")
    def unguarded() -> str:
        return "ran"

    outer = Starlette(routes=[Mount("/in", app=inner)])
    send = sender_to_asgi(
        IdempotencyMiddleware(outer, awaited(), caller=lambda scope: "me", rules=[Rule("/x")])
    )
    assert send("POST", "/in/guarded")[:2] == (200, None)
    assert send("POST", "/in/open")[:2] == (200, "unguarded")


def test_fastapi_refusing_needs_guarded_routes() -> None:
    app = FastAPI()
    guard = Idempotency(awaited(), caller=lambda request: "me", unguarded="refuse")
    guard.attach(app)
    router = APIRouter()
    router.post("/open")(run_view)
    app.include_router(router)
    with pytest.raises(ConfigurationError, match=r"/open.*route_class"):
        guard.check(app)
    with pytest.raises(ConfigurationError, match="unguarded"):
        Idempotency(awaited(), caller=lambda request: "me", unguarded="maybe")


def test_unguarded_keys_are_logged_once_a_minute_with_their_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    keys = UnguardedKeys(Exchange(Rules()), lambda event: None, "warn", clock=lambda: now)
    with caplog.at_level(logging.WARNING, "oncekey"):
        for _ in range(5):
            keys.report("POST", "/x\n" + "y" * 500)
        now += LOG_EVERY_SECONDS
        keys.report("PUT", "/z")
    first, second = (record.getMessage() for record in caplog.records)
    assert "1 request" in first
    assert "\n" not in first
    assert len(first) < 400
    assert "5 request" in second
    assert keys.count == 6


# --- Django ---------------------------------------------------------------------------------------

DJANGO = """
import sys
import django
from django.conf import settings
from django.http import HttpResponse
from django.test import Client
from django.urls import path

mode, by_path = sys.argv[1], sys.argv[2] == "paths"
settings.configure(
    ALLOWED_HOSTS=["testserver"], ROOT_URLCONF="__main__", SECRET_KEY="x",
    MIDDLEWARE=["oncekey.http.django.IdempotencyMiddleware"],
    ONCEKEY={
        "once": "memory://", "caller": lambda request: "me", "unguarded": mode,
        "rules": [{"path": "/guarded"}, {"path": "/out", "guarded": False}] if by_path else None,
    },
)
django.setup()
from oncekey.http.django import idempotent

ran = []
def view(request):
    ran.append(1)
    return HttpResponse("ran")
guarded = view if by_path else idempotent()(lambda request: view(request))
out = view if by_path else idempotent(guarded=False)(lambda request: view(request))
also = idempotent()(lambda request: view(request))
urlpatterns = [path("guarded", guarded), path("open", view), path("out", out), path("also", also)]

def ask(method, url):
    answer = Client().generic(method, url, headers={"Idempotency-Key": url})
    return answer.status_code, answer.headers.get("X-Idempotency-Unprotected"), answer.content

status, mark, content = ask("POST", "/open")
if mode == "warn":
    assert (status, mark, ran) == (200, "unguarded", [1]), (status, mark, ran)
else:
    assert (status, mark, ran) == (400, None, []), (status, mark, ran)
    assert b'"code": "unguarded"' in content
ran.clear()
assert [ask("POST", "/out")[:2] for _ in range(2)] == [(200, "unguarded")] * 2
assert ran == [1, 1], ran
assert ask("GET", "/open")[:2] == (200, None)
assert ask("POST", "/nowhere")[:2] == (404, None)
ran.clear()
for url in ("/guarded", "/also"):
    assert [ask("POST", url)[:2] for _ in range(2)] == [(200, None)] * 2
assert ran == [1, 1], ran
"""


@pytest.mark.parametrize("where", ["paths", "views"])
@pytest.mark.parametrize("mode", ["warn", "refuse"])
def test_unguarded_key_in_django(mode: str, where: str, tmp_path: Path) -> None:
    script = tmp_path / "project.py"
    script.write_text(DJANGO)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "error", str(script), mode, where]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
