"""Guarded apps that are mounted in another one: that one alone gets lifespan events, and its
shutdown waits for the requests of the mounted ones (I14)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from oncekey import AsyncOnce
from oncekey.http.asgi import IdempotencyMiddleware, draining
from oncekey.http.rules import Rule


class Shop:
    """An app with a guarded one mounted in it, and a handler that waits at a gate."""

    def __init__(self, served_by: str) -> None:
        self.here, self.gate = asyncio.Event(), asyncio.Event()
        self.once = AsyncOnce("memory://")
        inner: Any = IdempotencyMiddleware(
            Starlette(routes=[Route("/pay", self.pay, methods=["POST"])]),
            self.once,
            caller=lambda scope: "me",
        )
        lifespan = (lambda app: draining()) if served_by == "draining" else None
        self.app: Any = Starlette(routes=[Mount("/v1", inner)], lifespan=lifespan)
        if served_by == "guarded":
            self.app = IdempotencyMiddleware(
                self.app,
                AsyncOnce("memory://"),
                caller=lambda scope: "me",
                rules=[Rule("/other")],
            )
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.sent: list[str] = []

    async def pay(self, request: Request) -> JSONResponse:
        self.here.set()
        await self.gate.wait()
        return JSONResponse({"paid": True}, 201)

    async def post(self) -> list[Any]:
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/pay",
            "raw_path": b"/v1/pay",
            "root_path": "",
            "query_string": b"",
            "headers": [(b"idempotency-key", b"k")],
        }
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        return sent

    async def run_lifespan(self) -> None:
        async def send(message: Any) -> None:
            self.sent.append(message["type"])

        await self.app({"type": "lifespan", "asgi": {"version": "3.0"}}, self.events.get, send)

    async def send_event(self, what: str) -> None:
        await self.events.put({"type": f"lifespan.{what}"})
        for _ in range(50):
            await asyncio.sleep(0)  # steps of the loop, not time


@pytest.mark.parametrize("served_by", ["draining", "guarded"])
def test_i14_shutdown_waits_for_requests_of_a_mounted_app(
    served_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        shop = Shop(served_by)
        living = asyncio.create_task(shop.run_lifespan())
        await shop.send_event("startup")
        request = asyncio.create_task(shop.post())
        await shop.here.wait()
        request.cancel()  # as a server does whose grace is over
        await shop.send_event("shutdown")
        assert "lifespan.shutdown.complete" not in shop.sent, "it waits"
        shop.gate.set()
        await living
        assert shop.sent[-1] == "lifespan.shutdown.complete"
        (start, _) = await shop.post()
        assert (b"x-idempotency-replayed", b"true") in start["headers"]
        await shop.once.close()

    asyncio.run(main())


@pytest.mark.parametrize(("served_by", "is_warned"), [("nobody", True), ("draining", False)])
def test_a_mounted_app_that_nobody_drains_logs_one_warning(
    served_by: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        shop = Shop(served_by)
        shop.gate.set()
        living = asyncio.create_task(shop.run_lifespan())
        await shop.send_event("startup")
        for _ in range(2):
            await shop.post()
        await shop.send_event("shutdown")
        await living
        await shop.once.close()

    with caplog.at_level(logging.WARNING, "oncekey"):
        asyncio.run(main())
    warnings = [record for record in caplog.records if "gets no lifespan events" in record.message]
    assert len(warnings) == is_warned
