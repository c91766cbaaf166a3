"""The end of an app: what runs is waited for before the app closes what that needs (I14)."""

from __future__ import annotations

import asyncio
from typing import Any

from oncekey import AsyncOnce
from oncekey.http.asgi import IdempotencyMiddleware

SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "path": "/charges",
    "raw_path": b"/charges",
    "query_string": b"",
    "headers": [(b"idempotency-key", b"k")],
}


class Stage:
    """An app whose handler and background task wait at gates, and what happened, in order."""

    def __init__(self, *, drain: str = "30s") -> None:
        self.happened: list[str] = []
        self.gates = {name: asyncio.Event() for name in ("handler", "background")}
        self.here = {name: asyncio.Event() for name in self.gates}
        self.once = AsyncOnce("memory://")
        self.guarded = IdempotencyMiddleware(
            self.app, self.once, caller=lambda scope: "me", drain=drain
        )
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                kind = message["type"].removeprefix("lifespan.")
                self.happened.append(f"app {kind}")
                await send({"type": f"lifespan.{kind}.complete"})
                if kind == "shutdown":
                    return
        await self.pass_gate("handler")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
        await self.pass_gate("background")

    async def pass_gate(self, name: str) -> None:
        self.here[name].set()
        await self.gates[name].wait()
        self.happened.append(name)

    async def ask(self) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            return

        await self.guarded(dict(SCOPE), receive, send)

    async def live(self) -> None:
        async def send(message: Any) -> None:
            self.happened.append(message["type"].removeprefix("lifespan."))

        await self.guarded({"type": "lifespan"}, self.told.get, send)

    async def tell(self, what: str) -> None:
        await self.told.put({"type": f"lifespan.{what}"})
        for _ in range(20):
            await asyncio.sleep(0)  # turns of the loop, not time


async def _until_quiet() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_i14_the_app_is_not_told_to_end_before_its_handlers_and_their_tasks_have() -> None:
    async def scene() -> None:
        stage = Stage()
        life = asyncio.create_task(stage.live())
        await stage.tell("startup")
        asked = asyncio.create_task(stage.ask())
        await stage.here["handler"].wait()
        asked.cancel()  # as a server does that is in a hurry
        await stage.tell("shutdown")
        assert stage.happened == ["app startup", "startup.complete"]
        stage.gates["handler"].set()
        await stage.here["background"].wait()
        await _until_quiet()
        assert stage.happened[2:] == ["handler"]
        stage.gates["background"].set()
        await life
        assert stage.happened[3:] == ["background", "app shutdown", "shutdown.complete"]

    asyncio.run(scene())


def test_a_handler_that_never_ends_is_waited_for_no_longer_than_drain() -> None:
    async def scene() -> None:
        stage = Stage(drain="50ms")
        life = asyncio.create_task(stage.live())
        await stage.tell("startup")
        asked = asyncio.create_task(stage.ask())
        await stage.here["handler"].wait()
        await stage.tell("shutdown")
        await life
        assert stage.happened[2:] == ["app shutdown", "shutdown.complete"]
        await asyncio.wait([asked])

    asyncio.run(scene())
