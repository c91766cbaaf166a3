"""The client of the payment provider. Owns what its responses mean, and the timeout of a call."""

from __future__ import annotations

from typing import Any

import httpx

from oncekey.demo.cards import PROVIDER_TIMEOUT_SECONDS
from oncekey.demo.handlers import Handler

Receipt = dict[str, Any]


class ProviderFailure(Exception):
    """It is not known whether the provider acted. Send the request again with the same key."""


class ProviderClient:
    """Sends charges, refunds and shipments to the provider."""

    def __init__(self, url: str, secret: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {secret}"},
            timeout=PROVIDER_TIMEOUT_SECONDS,
            trust_env=False,  # the loopback is not behind a proxy
        )

    async def charge(
        self, key: str, order: str, cents: int, card: str, handler: Handler = Handler.GUARDED
    ) -> Receipt:
        wanted = {"order": order, "cents": cents, "card": card, "handler": handler}
        return await self._post("/v1/charges", key, wanted)

    async def refund(
        self, key: str, order: str, cents: int, handler: Handler = Handler.GUARDED
    ) -> Receipt:
        wanted = {"order": order, "cents": cents, "handler": handler}
        return await self._post("/v1/refunds", key, wanted)

    async def ship(
        self, key: str, order: str, card: str, handler: Handler = Handler.GUARDED
    ) -> Receipt:
        wanted = {"order": order, "cents": 0, "card": card, "handler": handler}
        return await self._post("/v1/shipments", key, wanted)

    async def close(self) -> None:
        await self._http.aclose()

    async def _post(self, path: str, key: str, wanted: dict[str, Any]) -> Receipt:
        try:
            response = await self._http.post(path, json=wanted, headers={"Idempotency-Key": key})
        except httpx.TransportError as error:
            raise ProviderFailure(
                f"the provider did not answer ({type(error).__name__})"
            ) from error
        if response.status_code != 200:
            raise ProviderFailure(f"provider said {response.status_code}")
        receipt: Receipt = response.json()
        return receipt
