"""Talks to the payment provider. Owns what its answers mean, and that a call has an end."""

from __future__ import annotations

from typing import Any

import httpx

from oncekey.demo.cards import PROVIDER_PATIENCE_SECONDS

Receipt = dict[str, Any]


class ProviderTrouble(Exception):
    """Nobody can tell whether the provider acted. Ask again with the same key."""


class Paying:
    """The provider as the API sees it."""

    def __init__(self, url: str, secret: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {secret}"},
            timeout=PROVIDER_PATIENCE_SECONDS,
            trust_env=False,  # the loopback is not behind a proxy
        )

    async def charge(self, key: str, order: str, cents: int, card: str) -> Receipt:
        return await self._ask("/v1/charges", key, {"order": order, "cents": cents, "card": card})

    async def refund(self, key: str, order: str, cents: int) -> Receipt:
        return await self._ask("/v1/refunds", key, {"order": order, "cents": cents})

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, path: str, key: str, wanted: dict[str, Any]) -> Receipt:
        try:
            answer = await self._http.post(path, json=wanted, headers={"Idempotency-Key": key})
        except httpx.TransportError as error:
            raise ProviderTrouble(
                f"the provider did not answer ({type(error).__name__})"
            ) from error
        if answer.status_code != 200:
            raise ProviderTrouble(f"provider said {answer.status_code}")
        receipt: Receipt = answer.json()
        return receipt
