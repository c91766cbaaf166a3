"""Apps without a framework, for tests of the servers: ASGI with a lifespan, and WSGI.

They respond with the method, the path, the body and GREETING of the environment. A request for
/held ends only when its client has disconnected, and that is printed.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

state = {"started": False}


async def asgi(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await _run_lifespan(receive, send)
        return
    assert state["started"], "a request came before the start-up was done"
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if scope["path"] == "/held":
        _print("held")
        while (await receive())["type"] != "http.disconnect":
            pass
        _print("the client has gone")
    response = _response_body(scope["method"], scope["path"], body)
    length = str(len(response)).encode()
    headers = [(b"content-length", length), (b"x-twice", b"1"), (b"x-twice", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": response})


async def streaming(scope: Message, receive: Receive, send: Send) -> None:
    """A response without a length, so that HTTP/1.1 sends chunks."""
    if scope["type"] == "lifespan":
        await _run_lifespan(receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for piece in (b"one ", b"two ", b"three"):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def wsgi(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(length)
    response = _response_body(environ["REQUEST_METHOD"], environ["PATH_INFO"], body)
    headers = [("Content-Length", str(len(response))), ("X-Twice", "1"), ("X-Twice", "2")]
    start_response("200 OK", headers)
    return [response]


async def _run_lifespan(receive: Receive, send: Send) -> None:
    await receive()
    state["started"] = True
    await send({"type": "lifespan.startup.complete"})
    await receive()
    _print("shut down")
    await send({"type": "lifespan.shutdown.complete"})


def _response_body(method: str, path: str, body: bytes) -> bytes:
    return f"{method} {path} {body.decode()} {os.environ.get('GREETING', '')}".encode().strip()


def _print(text: str) -> None:
    os.write(1, f"{text}\n".encode())
