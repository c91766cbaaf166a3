"""Serves the page, the state it shows, and the buttons that play scenarios.

Protects it from other pages in the same browser: only the loopback's host names are served, a
button needs a token that only this page has, and nothing is loaded from other hosts.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Header, Query
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from oncekey.demo.api.problems import Refused
from oncekey.demo.scenarios.scenarios import BY_NAME, SCENARIOS

if TYPE_CHECKING:
    from oncekey.demo.environment import Environment

SHOWN_MAX = 40
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
        found = await asyncio.to_thread(_state, environment)
        return JSONResponse({"version": version, **found}, headers=_SECURITY)

    @app.post("/demo/scenario_runner/{name}", include_in_schema=False)
    async def play(
        name: str, x_demo_token: Annotated[str, Header(max_length=100)] = ""
    ) -> Response:
        if not hmac.compare_digest(x_demo_token.encode(), token.encode()):
            raise Refused(403, "not-the-page", "Only the demo's own page may do this.")
        if name != "all" and name not in BY_NAME:
            raise Refused(404, "no-such-scenario", "There is no such scenario.")
        chosen = SCENARIOS if name == "all" else (BY_NAME[name],)
        if not environment.web_runner.start(*chosen):
            raise Refused(409, "playing", "Another scenario is being played.")
        return JSONResponse({"playing": name}, 202, headers=_SECURITY)


def _state(environment: Environment) -> dict[str, Any]:
    totals = environment.ledger.totals()
    scheme = environment.store_url.partition(":")[0]
    return {
        "store": "SQLite" if scheme == "sqlite" else "PostgreSQL",
        "counts": dict(environment.request_log.counts),
        "requests": environment.request_log.latest()[:SHOWN_MAX],
        "ledger": environment.database.ledger(SHOWN_MAX),
        "provider": {
            "asked": totals.asked,
            "acted": totals.acted,
            "acts": environment.ledger.latest(SHOWN_MAX),
        },
        "player": environment.web_runner.state(),
        "scenarios": [{"name": s.name, "title": s.title, "story": s.story} for s in SCENARIOS],
    }
