"""The provider's HTTP side: `POST /v1/charges` and `POST /v1/refunds`, each with a key.

Owns how each card makes it misbehave, and that nobody without its key is heard. A request is in
the books before anything else happens to it.
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

from oncekey.demo.cards import SLOW_SECONDS, STUCK_SECONDS, USUAL_SECONDS, Card
from oncekey.demo.provider.books import Books, Kind, Wanted

BODY_MAX_BYTES = 4_096
KEY_MAX_CHARS = 255


class Provider:
    """The provider as an ASGI app."""

    def __init__(self, books: Books, secret: str) -> None:
        self.books = books
        self._secret = f"Bearer {secret}".encode()
        self._closing = asyncio.Event()
        self.app = Starlette(
            routes=[
                Route("/v1/charges", self._charge, methods=["POST"]),
                Route("/v1/refunds", self._refund, methods=["POST"]),
            ]
        )

    def let_go(self) -> None:
        """Nobody needs to be made to wait any more."""
        self._closing.set()

    async def _charge(self, request: Request) -> Response:
        return await self._serve(request, "charge")

    async def _refund(self, request: Request) -> Response:
        return await self._serve(request, "refund")

    async def _serve(self, request: Request, kind: Kind) -> Response:
        sent = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(sent, self._secret):
            return _said(401, "not authorized")
        key = request.headers.get("idempotency-key", "")
        if not 0 < len(key) <= KEY_MAX_CHARS:
            return _said(400, "send an Idempotency-Key")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_MAX_BYTES:
                return _said(413, "too large")
        try:
            asked = json.loads(body)
            card = Card(asked.get("card", Card.OK))
            declined = card is Card.DECLINED
            wanted = Wanted(key, kind, str(asked["order"]), int(asked["cents"]), declined)
        except (ValueError, KeyError, TypeError, AttributeError):
            return _said(400, "not understood")
        return await self._act(card, wanted)

    async def _act(self, card: Card, wanted: Wanted) -> Response:
        times = await asyncio.to_thread(self.books.note, wanted)
        if card is Card.FLAKY and times == 1:
            return _said(503, "try again later")
        receipt = await asyncio.to_thread(self.books.act, wanted)
        if receipt is None:
            return _said(422, "this key was used for something else")
        if card is Card.FLAKY and times == 2:
            return _said(500, "the money has moved, and then something broke")
        if card is Card.STUCK:
            await self._pause(STUCK_SECONDS if times == 1 else 0)
        else:
            await self._pause(SLOW_SECONDS if card is Card.SLOW else USUAL_SECONDS)
        return JSONResponse(receipt)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._closing.wait(), seconds)
        except TimeoutError:
            pass


def _said(status: int, text: str) -> Response:
    told: dict[str, Any] = {"error": text}
    return JSONResponse(told, status)
