"""`safe_new_key: true` means that nothing can have run under the key. A refusal that can follow a
request that was carried out, and whose answer was lost, does not say so."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from oncekey import AsyncOnce
from oncekey.client import AsyncIdempotentTransport, delivery_of
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.rules import Rule

KEY = ("idempotency-key", "order-17")
ALICE = ("authorization", "alice")


async def shop(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"charged"})


def guarded(once: AsyncOnce) -> Any:
    return IdempotencyMiddleware(
        shop,
        once=once,
        caller=lambda scope: dict(scope["headers"]).get(b"authorization", b"").decode() or None,
        rules=[Rule("/strict", strict=True), Rule("/*", max_request=20)],
    )


REFUSED_AFTER_IT_RAN: dict[str, tuple[int, str, list[tuple[str, str]], bytes]] = {
    "the token has expired": (401, "/charges", [KEY], b"{}"),
    "no key came along": (400, "/charges", [ALICE], b"{}"),
    "a proxy has doubled the header": (400, "/charges", [ALICE, KEY, KEY], b"{}"),
    "a rule became strict": (400, "/strict", [ALICE, KEY], b"{}"),
    "a body that cannot be read": (
        400,
        "/charges",
        [ALICE, KEY, ("content-encoding", "gzip")],
        b"{}",
    ),
    "a proxy has changed the body": (422, "/charges", [ALICE, KEY], b'{"a":1}'),
    "a limit became lower": (413, "/charges", [ALICE, KEY], b"x" * 21),
}


@pytest.mark.parametrize("why", REFUSED_AFTER_IT_RAN)
def test_a_refusal_that_can_follow_a_request_that_ran_does_not_call_a_new_key_safe(
    why: str,
) -> None:
    status, path, headers, body = REFUSED_AFTER_IT_RAN[why]

    async def ask() -> None:
        async with AsyncOnce("memory://") as once:
            transport = httpx.ASGITransport(app=guarded(once))
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                ran = await client.post("/charges", headers=[ALICE, KEY], content=b"{}")
                assert ran.status_code == 201
                refused = await client.post(path, headers=headers, content=body)
        assert (refused.status_code, refused.json()["safe_new_key"]) == (status, False)

    asyncio.run(ask())


@pytest.mark.parametrize("field", ["a\tb", '"a', "a;b", "k" * 256, ""])
def test_what_no_rule_ever_takes_for_a_key_has_run_nothing(field: str) -> None:
    async def ask() -> None:
        async with AsyncOnce("memory://") as once:
            transport = httpx.ASGITransport(app=guarded(once))
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                headers = [ALICE, ("idempotency-key", field)]
                refused = await client.post("/charges", headers=headers, content=b"{}")
        assert (refused.status_code, refused.json()["safe_new_key"]) == (400, True)

    asyncio.run(ask())


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("why", ["a limit became lower", "a body that cannot be read"])
def test_the_client_reads_a_refusal_by_what_it_has_sent_before(why: str, lost: bool) -> None:
    """Of a first try it is the whole story; after a lost answer it is about the second one."""
    status, path, headers, body = REFUSED_AFTER_IT_RAN[why]
    losses = [httpx.ReadError("lost")] if lost else []

    class Losing(httpx.ASGITransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if losses:
                raise losses.pop()
            return await super().handle_async_request(request)

    async def ask() -> None:
        async with AsyncOnce("memory://") as once:
            transport = AsyncIdempotentTransport(Losing(app=guarded(once)))
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                without = [one for one in headers if one is not KEY]
                refused = await client.post(path, headers=without, content=body)
        delivery = delivery_of(refused)
        assert delivery is not None
        assert (refused.status_code, delivery.conclusive) == (status, not lost)

    asyncio.run(ask())
