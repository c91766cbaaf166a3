"""Serves the built-in policy page, to which the Link header of a refusal leads by default.

The page is made from the app's rules at each request. An app's own page has precedence: the app is
called first, and only its 404 is replaced. Owns the page and its headers; knows ASGI and WSGI, but
no engine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from oncekey.http import policy_document
from oncekey.http.message import Headers, Response
from oncekey.http.policy_discovery import find_policy

_PAGE_METHODS: Final = frozenset({"GET", "HEAD"})
_HEADERS: Final[Headers] = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"max-age=300"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"x-content-type-options", b"nosniff"),
)
_NOT_FOUND: Final = 404

Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Wsgi = Callable[[Any, Any], Iterable[bytes]]


def is_policy_page(method: str, path: str, page_path: str | None) -> bool:
    """Whether a request is for the policy page."""
    return path == page_path and method in _PAGE_METHODS


def policy_page(app: Any, method: str = "GET") -> Response:
    """The page of a guarded app, or of the middleware around it."""
    found = find_policy(app)
    shown = [route for route in found.routes if route.path not in found.hidden_paths]
    return page_with_entries(
        policy_document.policy_entries(shown, found.policy), found.replay_header, method
    )


def page_with_entries(
    entries: Sequence[policy_document.PolicyEntry], replay_header: str, method: str
) -> Response:
    """The page with these entries."""
    body = policy_document.as_html(entries, replay_header=replay_header).encode()
    headers = (*_HEADERS, (b"content-length", b"%d" % len(body)))
    return Response(200, headers, b"" if method == "HEAD" else body)


async def asgi_app_or_page(app: Asgi, guarded: Any, scope: Any, receive: Any, send: Any) -> None:
    """Call the app; if it responds with 404, send the policy page of `guarded` instead."""
    is_replaced = False

    async def send_or_replace(message: Any) -> None:
        nonlocal is_replaced
        if message["type"] == "http.response.start" and message["status"] == _NOT_FOUND:
            is_replaced = True
            page = policy_page(guarded, scope["method"])
            start = {"type": "http.response.start", "status": page.status}
            await send({**start, "headers": list(page.headers)})
            await send({"type": "http.response.body", "body": page.body})
        elif not is_replaced:
            await send(message)

    await app(scope, receive, send_or_replace)


def wsgi_app_or_page(app: Wsgi, guarded: Any, environ: Any, start_response: Any) -> Iterable[bytes]:
    """The same as `asgi_app_or_page` for a WSGI app."""
    is_missing = False

    def start_or_replace(line: str, lines: Any, exc_info: Any = None) -> Any:
        nonlocal is_missing
        if line.startswith(str(_NOT_FOUND)):
            is_missing = True
            return lambda chunk: None
        return start_response(line, lines, *([exc_info] if exc_info else []))

    parts = app(environ, start_or_replace)
    if not is_missing:
        return parts
    if hasattr(parts, "close"):
        parts.close()
    page = policy_page(guarded, environ["REQUEST_METHOD"])
    lines = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in page.headers]
    start_response("200 OK", lines)
    return [page.body]
