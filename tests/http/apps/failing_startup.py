"""An app that does not start: its import fails if SHOP is set, else its startup event."""

from __future__ import annotations

import os

from tests.http.apps.echo import Message, Receive, Send

if os.environ.get("SHOP"):
    raise RuntimeError(f"there is no shop called {os.environ['SHOP']}")


async def asgi(scope: Message, receive: Receive, send: Send) -> None:
    assert scope["type"] == "lifespan"
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "the till is empty"})
