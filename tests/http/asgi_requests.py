"""Sends requests to an ASGI app in one process, without a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from oncekey import AsyncOnce
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.rules import Rule

App = Callable[[Any, Any, Any], Awaitable[None]]


class SentMessages:
    """The messages that an app has sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    @property
    def statuses(self) -> list[int]:
        return [m["status"] for m in self.messages if m["type"] == "http.response.start"]

    @property
    def body(self) -> bytes:
        return b"".join(bytes(m.get("body", b"")) for m in self.messages)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return list(self.messages[0]["headers"])


async def send_request(
    app: App, key: bytes | None = b"k", body: Any = b"", **more: Any
) -> SentMessages:
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/charges",
        "raw_path": None,
        "query_string": b"",
        "headers": [] if key is None else [(b"idempotency-key", key)],
        **more,
    }
    sent = SentMessages()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.messages.append(message)

    await app(scope, receive, send)
    return sent


class CountingApp:
    """Counts its runs, and responds with their number."""

    def __init__(self, status: int = 201) -> None:
        self.runs = 0
        self.status = status

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        lines = iter([(b"location", b"/x")])  # ASGI says: an iterable
        await send({"type": "http.response.start", "status": self.status, "headers": lines})
        await send({"type": "http.response.body", "body": b"%d" % self.runs})


def guard(app: App, *rules: Rule, once: AsyncOnce | None = None) -> IdempotencyMiddleware:
    engine = once or AsyncOnce("memory://")
    return IdempotencyMiddleware(app, engine, caller=lambda scope: "me", rules=rules)
