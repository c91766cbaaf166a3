"""What ASGI servers differ in: requests that share a connection, and other event loops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import trio
from fastapi import FastAPI
from tests.http.asgi_requests import CountingApp, SentMessages, guard, send_request

from oncekey import AsyncOnce, ConfigurationError
from oncekey.http.asgi.messages import UNREAD_MAX_BYTES
from oncekey.http.fastapi import Idempotency
from oncekey.http.rules import Rule

MIB = 1024 * 1024


async def refused_upload(version: str, declared: bool, parts: int) -> tuple[SentMessages, int]:
    """Send a body of so many mebibytes to an app that takes one; and how many of them it read."""
    read = 0
    sent = SentMessages()

    async def receive() -> dict[str, Any]:
        nonlocal read
        assert read < parts, "a server would wait for the client to leave"
        read += 1
        return {"type": "http.request", "body": bytes(MIB), "more_body": read < parts}

    async def send(message: Any) -> None:
        sent.messages.append(message)

    headers = [(b"idempotency-key", b"k")]
    if declared:
        headers.append((b"content-length", b"%d" % (parts * MIB)))
    scope = {
        "type": "http",
        "http_version": version,
        "method": "POST",
        "path": "/charges",
        "query_string": b"",
        "headers": headers,
    }
    once = AsyncOnce("memory://")
    await guard(CountingApp(), Rule(max_request=MIB), once=once)(scope, receive, send)
    await once.close()
    return sent, read


@pytest.mark.parametrize("declared", [True, False])
def test_refused_upload_does_not_block_its_http2_connection(declared: bool) -> None:
    """Hypercorn reads nothing more of a connection while a request of it is not read."""
    for parts in (2, 10):
        sent, read = asyncio.run(refused_upload("2", declared, parts))
        assert (sent.statuses, read) == ([413], parts)
        assert (b"connection", b"close") not in sent.headers
    sent, read = asyncio.run(refused_upload("2", declared, 1_000))
    assert sent.statuses == [413]
    assert UNREAD_MAX_BYTES <= read * MIB <= UNREAD_MAX_BYTES + 2 * MIB, "not without a limit"


def test_refused_upload_ends_its_http1_connection() -> None:
    sent, read = asyncio.run(refused_upload("1.1", True, 10))
    assert (sent.statuses, read) == ([413], 0)
    assert (b"connection", b"close") in sent.headers


def test_trio_is_refused_when_the_server_starts_and_at_a_request() -> None:
    app = guard(CountingApp(), Rule(), once=AsyncOnce("memory://"))
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    started = guard(inner, Rule(), once=AsyncOnce("memory://"))
    with pytest.raises(ConfigurationError, match="asyncio"):
        trio.run(started, {"type": "lifespan"}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert "hypercorn --worker-class asyncio" in sent[0]["message"]
    with pytest.raises(ConfigurationError, match="asyncio"):
        trio.run(send_request, app)


def test_fastapi_on_trio_is_refused_when_the_server_starts() -> None:
    app = FastAPI()
    Idempotency(AsyncOnce("memory://"), caller=lambda request: "me").attach(app)

    async def main() -> None:
        async with app.router.lifespan_context(app):
            raise AssertionError

    with pytest.raises(ConfigurationError, match="asyncio"):
        trio.run(main)
