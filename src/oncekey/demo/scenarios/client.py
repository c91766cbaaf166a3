"""A client of the payments API, as impatient and unlucky as real ones.

Owns how a request is sent, when it is sent again, and what its answer is called.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx

from oncekey.demo.cards import Card
from oncekey.demo.errors import DemoFailed
from oncekey.demo.feed import name_of
from oncekey.demo.scene import Answer, Got

#: Nothing here takes this long; it turns a hang into an error.
PATIENCE_SECONDS = 30.0
CENTS = 4_900
_POLL_SECONDS = 0.01

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the API."""

    status: int
    got: Got
    body: dict[str, Any]
    retry_after: float

    def answer(self, who: str, note: str = "") -> Answer:
        words = f"{self.status}, {note}" if note else str(self.status)
        return Answer(who, self.got, words, self.body.get("id"))


class Client:
    """One caller; every request is on the wire, and not tried again by itself."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=PATIENCE_SECONDS,
            trust_env=False,
        )

    async def charge(
        self,
        key: str,
        *,
        cents: int = CENTS,
        card: Card = Card.OK,
        patience: float = PATIENCE_SECONDS,
        url: str = "",
    ) -> Reply:
        """The order is named like the key, so that the provider's books can be asked about it."""
        wanted = {"order": key, "cents": cents, "card": card}
        return await self._post(f"{url}/charges", key, wanted, patience)

    async def refund(self, charge: str, key: str, cents: int) -> Reply:
        return await self._post(f"/charges/{charge}/refunds", key, {"cents": cents})

    async def close(self) -> None:
        await self._http.aclose()

    async def _post(
        self, path: str, key: str, wanted: dict[str, Any], patience: float = PATIENCE_SECONDS
    ) -> Reply:
        headers = {"Idempotency-Key": key}
        answer = await self._http.post(path, json=wanted, headers=headers, timeout=patience)
        try:
            body: dict[str, Any] = answer.json()
        except ValueError:
            body = {}
        got = name_of(
            answer.status_code,
            replayed=answer.headers.get("x-idempotency-replayed") == "true",
            problem=str(body.get("code", "")),
        )
        return Reply(answer.status_code, got, body, float(answer.headers.get("retry-after", 0)))


async def persist(
    who: str, ask: Callable[[], Awaitable[Reply]], tell: Tell, note: str = ""
) -> tuple[Answer, ...]:
    """Ask, as often as Retry-After says to, until the first request has ended; all answers."""
    answers: list[Answer] = []
    give_up = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < give_up:
        reply = await ask()
        if reply.got is not Got.IN_FLIGHT:
            return (*answers, reply.answer(who, note))
        if not answers:
            answers.append(reply.answer(who, f"wait {reply.retry_after:g} s"))
        tell("the first one is still in flight, waiting as told")
        await asyncio.sleep(reply.retry_after)
    raise DemoFailed(f"still in flight after {PATIENCE_SECONDS:g} s")


async def until(true: Callable[[], bool], what: str, unless: asyncio.Future[Any]) -> None:
    """Wait for something others do; an error if it takes for ever, or `unless` ends first."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await asyncio.to_thread(true):
                if unless.done():
                    unless.result()
                    raise DemoFailed(f"it was answered before {what}")
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise DemoFailed(f"waited {PATIENCE_SECONDS:g} s in vain until {what}") from None
