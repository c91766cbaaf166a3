"""Checkout, an ASGI app: it calls the other services, each in a step whose key is sent along.

The operation is retry-safe. When a process is killed in the middle of it, another attempt takes
over and repeats the steps that are not recorded as done, under the same child keys. The steps store
their requests, so the content is the same too; otherwise `sent_at` would differ.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tests.fleet import common

from oncekey import AsyncOnce, Policy
from oncekey.client import AsyncIdempotentTransport, Retry
from oncekey.client.step_result import step_result
from oncekey.http.asgi import IdempotencyMiddleware, attempt_of
from oncekey.http.rules import Rule

NAME = "checkout"
RETRY = Retry(attempts=100, deadline="20s", base="20ms", cap="250ms")

once = AsyncOnce(common.store_url(NAME), policy=Policy(lease=common.LEASE))
common.log_events(once, NAME)
http = httpx.AsyncClient(
    transport=AsyncIdempotentTransport(retry=RETRY),
    headers={"Authorization": "Bearer checkout"},
    timeout=10,
)
bare = httpx.AsyncClient(headers=http.headers, timeout=10, trust_env=False)


def post_to(service: str, path: str) -> Callable[..., Any]:
    """Return a step's function, which posts the step's request to a service."""
    url = f"http://127.0.0.1:{common.port_of(service)}{path}"

    async def send(key: str, request: dict[str, Any]) -> Any:
        if common.sabotage() == common.RANDOM_KEYS:
            return step_result(await _post_with_new_keys(url, request))
        return step_result(await http.post(url, json=request))

    return send


async def _post_with_new_keys(url: str, request: dict[str, Any]) -> httpx.Response:
    """Post until a response comes, with a new key each time, as careless clients do."""
    while True:
        try:
            return await bare.post(
                url, json=request, headers={"Idempotency-Key": f"{uuid.uuid4()}"}
            )
        except httpx.TransportError:
            continue


reserve = post_to("inventory", "/reservations")
charge = post_to("payments", "/charges")
send_receipt = post_to("notifications", "/receipts")


async def checkout(request: Request) -> JSONResponse:
    attempt, order = attempt_of(request), await request.json()
    assert attempt is not None
    content = {"order": order["order"], "cents": order["cents"], "sent_at": time.time_ns()}
    try:
        async with attempt.parallel() as steps:
            reserved = step(steps, "inventory:reserve", reserve, content)
            charged = step(steps, "payments:charge", charge, content)
        ids = {"reservation": reserved.result()["id"], "charge": charged.result()["id"]}
        receipt = await step(attempt, "notifications:receipt", send_receipt, {**content, **ids})
    except httpx.HTTPError as error:
        # A service was unavailable for longer than the retries last: the client must try again.
        return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})
    common.die_once(NAME)  # every step is done, and the outcome of the request is not stored
    return JSONResponse({"order": order["order"], **ids, "receipt": receipt["id"]}, 201)


def step(steps: Any, name: str, send: Callable[..., Any], content: dict[str, Any]) -> Any:
    """Run a step that sends `content`, and stores it unless that is sabotaged."""
    if common.sabotage() == common.NO_REQUEST:
        return steps.step(name, lambda key: send(key, content))
    return steps.step(name, send, request=content)


def caller(scope: Any) -> str | None:
    return common.CALLERS.get(dict(scope["headers"]).get(b"authorization", b"").decode())


app = Starlette(routes=[Route("/checkouts", checkout, methods=["POST"])])
app.add_middleware(
    IdempotencyMiddleware,
    once=once,
    caller=caller,
    rules=[Rule("/checkouts", retry_safe=True, wait=common.WAIT)],
)
