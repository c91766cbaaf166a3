"""A client of the payments API, as impatient and unlucky as real ones.

Owns how a request is sent, when it is sent again, and how its response is classified.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx

from oncekey.demo import DemoFailed
from oncekey.demo.cards import Card
from oncekey.demo.handlers import Handler
from oncekey.demo.request_log import kind_of_response
from oncekey.demo.scenario_result import CallerResult, ResponseKind

#: Nothing here takes this long; it turns a hang into an error.
TIMEOUT_SECONDS = 30.0
CENTS = 4_900
_POLL_SECONDS = 0.01

OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Reply:
    """One response of the API."""

    status: int
    got: ResponseKind
    body: dict[str, Any]
    retry_after: float

    def as_result(self, who: str, note: str = "") -> CallerResult:
        words = f"{self.status}, {note}" if note else str(self.status)
        return CallerResult(who, self.got, words, self.body.get("id"))


class Client:
    """One caller of one of the handlers. It sends each request once and never retries."""

    def __init__(self, url: str, token: str, handler: Handler) -> None:
        self.handler = handler
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=TIMEOUT_SECONDS,
            trust_env=False,
        )

    async def charge(
        self,
        key: str,
        *,
        cents: int = CENTS,
        card: Card = Card.OK,
        url: str = "",
    ) -> Reply:
        """Sends a charge. Its order is named like the key, so that the ledger can be queried."""
        wanted = {"order": key, "cents": cents, "card": card}
        return await self._post(f"{url}{self.handler.root}/charges", key, wanted)

    async def refund(self, charge: str, key: str, cents: int) -> Reply:
        return await self._post(
            f"{self.handler.root}/charges/{charge}/refunds", key, {"cents": cents}
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def _post(self, path: str, key: str, wanted: dict[str, Any]) -> Reply:
        headers = {"Idempotency-Key": key}
        response = await self._http.post(path, json=wanted, headers=headers)
        try:
            body: dict[str, Any] = response.json()
        except ValueError:
            body = {}
        got = kind_of_response(
            response.status_code,
            replayed=response.headers.get("x-idempotency-replayed") == "true",
            problem=str(body.get("code", "")),
        )
        return Reply(response.status_code, got, body, float(response.headers.get("retry-after", 0)))


async def persist(
    who: str, ask: Callable[[], Awaitable[Reply]], on_progress: OnProgress, note: str = ""
) -> tuple[CallerResult, ...]:
    """Sends the request, and again after Retry-After while it is in flight; all results."""
    answers: list[CallerResult] = []
    give_up = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < give_up:
        reply = await ask()
        if reply.got is not ResponseKind.IN_FLIGHT:
            return (*answers, reply.as_result(who, note))
        if not answers:
            answers.append(reply.as_result(who, f"wait {reply.retry_after:g} s"))
        on_progress("the first one is still in flight, waiting as told")
        await asyncio.sleep(reply.retry_after)
    raise DemoFailed(f"still in flight after {TIMEOUT_SECONDS:g} s")


async def until(
    true: Callable[[], bool], what: str, unless: asyncio.Future[Any] | None = None
) -> None:
    """Waits until `true()`; raises if that takes too long, or if `unless` ends first."""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not await asyncio.to_thread(true):
                if unless is not None and unless.done():
                    unless.result()
                    raise DemoFailed(f"it was answered before {what}")
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise DemoFailed(f"waited {TIMEOUT_SECONDS:g} s in vain until {what}") from None
