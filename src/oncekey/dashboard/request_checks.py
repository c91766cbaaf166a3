"""What every request to the dashboard has to pass, and the headers of every response.

Owns the limits on what a stranger can send. Knows no page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import Message, Send

QUERY_MAX_BYTES: Final = 4_096
FIELD_MAX_CHARS: Final = 300  # of a search; a scope has 255 at most, a route 200
FIELDS_MAX: Final = 30
FORM_BODY_MAX_BYTES: Final = 256 * 1024
ANSWER_MAX_CHARS: Final = 64 * 1024  # of what an operator types as a value or a response

LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # With no-referrer, browsers send forms with "Origin: null", which could not be checked.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Refused(Exception):
    """A request that is answered with a short page that says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def with_headers(send: Send) -> Send:
    """A `send` that adds the headers that every response has."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return sending


def check_head(request: Request, hosts: Sequence[str] | None) -> None:
    """Raises Refused for a host that is not ours, as after DNS rebinding, and for long queries."""
    if hosts is not None and host_name(request.headers) not in hosts:
        raise Refused(421, "The dashboard is not served under this host name.")
    if len(request.scope.get("query_string", b"")) > QUERY_MAX_BYTES:
        raise Refused(414, f"A query may have {QUERY_MAX_BYTES:,} bytes.")


def host_name(headers: Headers) -> str:
    """The name in the header Host, without the port."""
    host = headers.get("host", "").lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def check_same_origin(headers: Headers) -> None:
    """Raises Refused for a form that the browser says was sent by another site. A request without
    these headers is no browser's; its form token decides."""
    fetched_from = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    is_foreign = fetched_from is not None and fetched_from != "same-origin"
    if origin is not None:
        is_foreign = (
            is_foreign or urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
        )
    if is_foreign:
        raise Refused(403, "This form was sent by another site. Nothing was changed.")


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form, as browsers send them. Raises Refused for what is too long or no
    form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "This is not a form.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BODY_MAX_BYTES:
            raise Refused(413, f"A form may have {FORM_BODY_MAX_BYTES:,} bytes.")
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=FIELDS_MAX,
        )
    except ValueError:
        raise Refused(400, "The fields of the form cannot be read.") from None
    return dict(pairs)
