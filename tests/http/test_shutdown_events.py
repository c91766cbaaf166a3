"""An app gets its shutdown event when no request runs any more, because it then closes what the
requests need (I14)."""

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


class GatedApp:
    """An app whose handler and background task wait at gates; logs what happened, in order."""

    def __init__(self, *, drain: str = "30s") -> None:
        self.log: list[str] = []
        self.gates = {name: asyncio.Event() for name in ("handler", "background")}
        self.here = {name: asyncio.Event() for name in self.gates}
        self.once = AsyncOnce("memory://")
        self.guarded = IdempotencyMiddleware(
            self.app, self.once, caller=lambda scope: "me", drain=drain
        )
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                kind = message["type"].removeprefix("lifespan.")
                self.log.append(f"app {kind}")
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
        self.log.append(name)

    async def post(self) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            return

        await self.guarded(dict(SCOPE), receive, send)

    async def run_lifespan(self) -> None:
        async def send(message: Any) -> None:
            self.log.append(message["type"].removeprefix("lifespan."))

        await self.guarded({"type": "lifespan"}, self.events.get, send)

    async def send_event(self, what: str) -> None:
        await self.events.put({"type": f"lifespan.{what}"})
        for _ in range(20):
            await asyncio.sleep(0)  # steps of the loop, not time


async def _until_quiet() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_i14_the_app_gets_its_shutdown_event_after_handlers_and_background_tasks() -> None:
    async def main() -> None:
        app = GatedApp()
        lifespan = asyncio.create_task(app.run_lifespan())
        await app.send_event("startup")
        request = asyncio.create_task(app.post())
        await app.here["handler"].wait()
        request.cancel()  # as a server does that is in a hurry
        await app.send_event("shutdown")
        assert app.log == ["app startup", "startup.complete"]
        app.gates["handler"].set()
        await app.here["background"].wait()
        await _until_quiet()
        assert app.log[2:] == ["handler"]
        app.gates["background"].set()
        await lifespan
        assert app.log[3:] == ["background", "app shutdown", "shutdown.complete"]

    asyncio.run(main())


def test_shutdown_waits_no_longer_than_drain_for_a_handler() -> None:
    async def main() -> None:
        app = GatedApp(drain="50ms")
        lifespan = asyncio.create_task(app.run_lifespan())
        await app.send_event("startup")
        request = asyncio.create_task(app.post())
        await app.here["handler"].wait()
        await app.send_event("shutdown")
        await lifespan
        assert app.log[2:] == ["app shutdown", "shutdown.complete"]
        await asyncio.wait([request])

    asyncio.run(main())
