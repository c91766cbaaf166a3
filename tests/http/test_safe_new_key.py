"""`safe_new_key: true` means that nothing can have run under the key. It is false in a refusal that
can follow a request that ran and whose response was lost."""

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


async def app(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"charged"})


def guarded(once: AsyncOnce) -> Any:
    return IdempotencyMiddleware(
        app,
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
def test_safe_new_key_is_false_in_a_refusal_that_can_follow_a_run(
    why: str,
) -> None:
    status, path, headers, body = REFUSED_AFTER_IT_RAN[why]

    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            transport = httpx.ASGITransport(app=guarded(once))
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                ran = await client.post("/charges", headers=[ALICE, KEY], content=b"{}")
                assert ran.status_code == 201
                refused = await client.post(path, headers=headers, content=body)
        assert (refused.status_code, refused.json()["safe_new_key"]) == (status, False)

    asyncio.run(main())


@pytest.mark.parametrize("field", ["a\tb", '"a', "a;b", "k" * 256, ""])
def test_safe_new_key_is_true_for_a_header_that_no_rule_accepts(field: str) -> None:
    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            transport = httpx.ASGITransport(app=guarded(once))
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                headers = [ALICE, ("idempotency-key", field)]
                refused = await client.post("/charges", headers=headers, content=b"{}")
        assert (refused.status_code, refused.json()["safe_new_key"]) == (400, True)

    asyncio.run(main())


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("why", ["a limit became lower", "a body that cannot be read"])
def test_client_trusts_safe_new_key_only_if_no_try_was_lost(why: str, lost: bool) -> None:
    """After a lost response the refusal is about the second try only."""
    status, path, headers, body = REFUSED_AFTER_IT_RAN[why]
    losses = [httpx.ReadError("lost")] if lost else []

    class Losing(httpx.ASGITransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if losses:
                raise losses.pop()
            return await super().handle_async_request(request)

    async def main() -> None:
        async with AsyncOnce("memory://") as once:
            transport = AsyncIdempotentTransport(Losing(app=guarded(once)))
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                without_key = [one for one in headers if one is not KEY]
                refused = await client.post(path, headers=without_key, content=body)
        delivery = delivery_of(refused)
        assert delivery is not None
        assert (refused.status_code, delivery.conclusive) == (status, not lost)

    asyncio.run(main())
