"""Serves the page, the state it shows, and the buttons that play scenarios.

Protects it from other pages in the same browser: only the loopback's host names are served, a
button needs a token that only this page has, and nothing is loaded from other hosts.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from dataclasses import asdict
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import FastAPI, Header, Query
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from oncekey.demo.api.problems import Refused
from oncekey.demo.handlers import Handler
from oncekey.demo.page.api_reference import api_reference
from oncekey.demo.scenarios.scenarios import BY_NAME, SCENARIOS

if TYPE_CHECKING:
    from oncekey.demo.environment import Environment

#: How many requests, orders and entries the page lists; it says how many there are besides.
SHOWN_MAX = 200
_HOSTS = ["127.0.0.1", "localhost"]
_SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_FILES = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


def add_page(app: FastAPI, environment: Environment) -> None:
    token = secrets.token_hex(16)
    static = files("oncekey.demo.page") / "static"
    index = (static / "index.html").read_text(encoding="utf-8").replace("{{token}}", token)
    loaded = {name: (static / name).read_bytes() for name in _FILES}
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(index, headers=_SECURITY)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(api_reference(app.openapi()), headers=_SECURITY)

    @app.get("/demo/static/{name}", include_in_schema=False)
    async def static_file(name: str) -> Response:
        if name not in loaded:
            raise Refused(404, "no-such-file", "There is no such file.")
        return Response(loaded[name], media_type=_FILES[name], headers=_SECURITY)

    @app.get("/demo/state", include_in_schema=False)
    async def state(seen: Annotated[str, Query(max_length=60)] = "") -> Response:
        version = f"{environment.request_log.version}.{environment.web_runner.version}"
        if seen == version:
            return Response(status_code=204, headers=_SECURITY)
        # What the event loop changes is read here, so that rows and totals are of one moment.
        found = {"version": version, **_played(environment)}
        found |= await asyncio.to_thread(_recorded, environment)
        return JSONResponse(found, headers=_SECURITY)

    @app.post("/demo/scenario_runner/{name}", include_in_schema=False)
    async def play(
        name: str,
        handler: Literal["naive", "guarded", "both"] = "both",
        x_demo_token: Annotated[str, Header(max_length=100)] = "",
    ) -> Response:
        if not hmac.compare_digest(x_demo_token.encode(), token.encode()):
            raise Refused(403, "not-the-page", "Only the demo's own page may do this.")
        if name != "all" and name not in BY_NAME:
            raise Refused(404, "no-such-scenario", "There is no such scenario.")
        chosen = SCENARIOS if name == "all" else (BY_NAME[name],)
        handlers = tuple(Handler) if handler == "both" else (Handler(handler),)
        if not environment.web_runner.start(chosen, handlers):
            raise Refused(409, "playing", "Another scenario is being played.")
        return JSONResponse({"playing": name}, 202, headers=_SECURITY)


def _played(environment: Environment) -> dict[str, Any]:
    """The part of the state that is in memory."""
    request_log = environment.request_log
    scheme = environment.store_url.partition(":")[0]
    return {
        "store": "SQLite" if scheme == "sqlite" else "PostgreSQL",
        "totals": {handler: request_log.totals(handler) for handler in Handler},
        "requests": request_log.latest()[:SHOWN_MAX],
        "player": environment.web_runner.state(),
        "scenarios": [{"name": s.name, "title": s.title, "story": s.story} for s in SCENARIOS],
    }


def _recorded(environment: Environment) -> dict[str, Any]:
    """The part of the state that is in databases."""
    return {
        "provider": asdict(environment.ledger.overview(SHOWN_MAX)),
        "ledger": _ledger(environment),
    }


def _ledger(environment: Environment) -> list[dict[str, Any]]:
    """The entries of both handlers' own databases, newest first."""
    found = [
        {**entry, "handler": handler}
        for handler, database in (
            (Handler.GUARDED, environment.database),
            (Handler.NAIVE, environment.naive_database),
        )
        for entry in database.ledger(SHOWN_MAX)
    ]
    return sorted(found, key=lambda entry: entry["at"], reverse=True)[:SHOWN_MAX]
