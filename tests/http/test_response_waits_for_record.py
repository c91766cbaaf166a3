"""No part of a response is sent before its outcome is stored (I13), streamed or not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.http.app_server import serve_app
from tests.support.servers import require
from tests.support.servers.http_servers import Uvicorn

from oncekey import AsyncOnce
from oncekey.core.commands import Command, Finish, Reply
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.stores.memory import AsyncMemoryStore

SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "path": "/charges",
    "raw_path": b"/charges",
    "query_string": b"",
    "headers": [(b"idempotency-key", b"k")],
}


class SlowToFinish(AsyncMemoryStore):
    """Holds the commands that store an outcome back until its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.is_finishing = asyncio.Event()
        self.gate = asyncio.Event()

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        if any(isinstance(command, Finish) for command in commands):
            self.is_finishing.set()
            await self.gate.wait()
        return await super().apply(commands)


@pytest.mark.parametrize("parts", [1, 3])
def test_i13_the_first_byte_waits_for_the_record(parts: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(parts):
            more = number < parts - 1
            await send({"type": "http.response.body", "body": b"x", "more_body": more})

    async def main() -> None:
        store = SlowToFinish()
        guarded = IdempotencyMiddleware(app, AsyncOnce(store), caller=lambda scope: "me")
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        request = asyncio.create_task(guarded(dict(SCOPE), receive, send))
        await store.is_finishing.wait()
        for _ in range(50):
            await asyncio.sleep(0)  # steps of the loop, not time
        assert sent == []
        store.gate.set()
        await request
        assert b"".join(message.get("body", b"") for message in sent) == b"x" * parts

    asyncio.run(main())


def test_i13_a_response_sent_just_before_a_kill_is_stored() -> None:
    require(lambda: Uvicorn("x:y"))
    with serve_app(Uvicorn) as app:
        for _ in range(3):
            key = app.fresh_key()
            first = app.post("/charges", key, {"cents": 5})
            app.server.kill()
            app.server.start()
            again = app.post("/charges", key, {"cents": 5})
            assert again.one("X-Idempotency-Replayed") == "true"
            assert again.body == first.body
        assert app.effects() == 3
