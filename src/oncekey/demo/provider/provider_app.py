"""The provider's HTTP side: `POST` to `/v1/charges`, `/v1/refunds` and `/v1/shipments`, each with a
key.

Owns how each card makes it misbehave, and refuses callers without its secret. A request is in the
ledger before anything else happens to it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from oncekey.demo.cards import HELD_MAX_SECONDS, SLOW_SECONDS, STUCK_SECONDS, USUAL_SECONDS, Card
from oncekey.demo.handlers import Handler
from oncekey.demo.provider.ledger import Kind, ProviderLedger, Wanted

BODY_MAX_BYTES = 4_096
KEY_MAX_CHARS = 255
_LOOK_SECONDS = 0.05


class Provider:
    """The provider as an ASGI app."""

    def __init__(self, ledger: ProviderLedger, secret: str) -> None:
        self.ledger = ledger
        self._secret = f"Bearer {secret}".encode()
        self._closing = asyncio.Event()
        self.app = Starlette(
            routes=[
                Route("/v1/charges", self._charge, methods=["POST"]),
                Route("/v1/refunds", self._refund, methods=["POST"]),
                Route("/v1/shipments", self._ship, methods=["POST"]),
            ]
        )

    def stop_waiting(self) -> None:
        """Ends the pauses of all requests: the demo is closing."""
        self._closing.set()

    async def _charge(self, request: Request) -> Response:
        return await self._serve(request, "charge")

    async def _refund(self, request: Request) -> Response:
        return await self._serve(request, "refund")

    async def _ship(self, request: Request) -> Response:
        return await self._serve(request, "shipment")

    async def _serve(self, request: Request, kind: Kind) -> Response:
        sent = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(sent, self._secret):
            return _error(401, "not authorized")
        key = request.headers.get("idempotency-key", "")
        if not 0 < len(key) <= KEY_MAX_CHARS:
            return _error(400, "send an Idempotency-Key")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_MAX_BYTES:
                return _error(413, "too large")
        try:
            asked = json.loads(body)
            wanted = Wanted(
                key,
                kind,
                str(asked["order"]),
                int(asked["cents"]),
                Card(asked.get("card", Card.OK)),
                Handler(asked.get("handler", Handler.GUARDED)),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return _error(400, "not understood")
        return await self._act(wanted)

    async def _act(self, wanted: Wanted) -> Response:
        card = wanted.card
        times = await asyncio.to_thread(self.ledger.note, wanted)
        if card is Card.FLAKY and times == 1:
            return _error(503, "try again later")
        receipt = await asyncio.to_thread(self.ledger.act, wanted)
        if receipt is None:
            return _error(422, "this key was used for something else")
        if card is Card.FLAKY and times == 2:
            return _error(500, "the money has moved, and then something broke")
        if card is Card.STUCK:
            await self._pause(STUCK_SECONDS if times == 1 else 0)
        else:
            await self._pause(SLOW_SECONDS if card is Card.SLOW else USUAL_SECONDS)
            await self._while_held(wanted.order)
        return JSONResponse(receipt)

    async def _while_held(self, order: str) -> None:
        for _ in range(round(HELD_MAX_SECONDS / _LOOK_SECONDS)):
            if not await asyncio.to_thread(self.ledger.is_held, order):
                return
            await self._pause(_LOOK_SECONDS)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            pass


def _error(status: int, text: str) -> Response:
    body: dict[str, Any] = {"error": text}
    return JSONResponse(body, status)
