"""Checkout: the one that calls the others, each in a step. The transport sends the steps' keys.

It is retry-safe: whoever is killed in the middle of it is followed by an attempt that takes over
and sends what is not on record as done once more, under the same child keys and, since the steps
keep their requests, with the same content; `asked_at` would be another one otherwise.
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
common.tell_facts(once, NAME)
http = httpx.AsyncClient(
    transport=AsyncIdempotentTransport(retry=RETRY),
    headers={"Authorization": "Bearer checkout"},
    timeout=10,
)
bare = httpx.AsyncClient(headers=http.headers, timeout=10, trust_env=False)


def at(service: str, path: str) -> Callable[..., Any]:
    """A step's function: sends the request it is given to a service."""
    url = f"http://127.0.0.1:{common.port_of(service)}{path}"

    async def send(key: str, request: dict[str, Any]) -> Any:
        if common.sabotage() == common.RANDOM_KEYS:
            return step_result(await _recklessly(url, request))
        return step_result(await http.post(url, json=request))

    return send


async def _recklessly(url: str, request: dict[str, Any]) -> httpx.Response:
    """As those do who retry without a thought about keys."""
    while True:
        try:
            return await bare.post(
                url, json=request, headers={"Idempotency-Key": f"{uuid.uuid4()}"}
            )
        except httpx.TransportError:
            continue


reserve = at("inventory", "/reservations")
charge = at("payments", "/charges")
tell = at("notifications", "/receipts")


async def checkout(request: Request) -> JSONResponse:
    attempt, order = attempt_of(request), await request.json()
    assert attempt is not None
    asked = {"order": order["order"], "cents": order["cents"], "asked_at": time.time_ns()}
    try:
        async with attempt.parallel() as steps:
            hold = step(steps, "inventory:reserve", reserve, asked)
            paid = step(steps, "payments:charge", charge, asked)
        ids = {"reservation": hold.result()["id"], "charge": paid.result()["id"]}
        told = await step(attempt, "notifications:receipt", tell, {**asked, **ids})
    except httpx.HTTPError as error:
        # One of them was not to be had for longer than we wait: the client is to come again.
        return JSONResponse({"why": str(error)}, 503, {"Retry-After": "1"})
    return JSONResponse({"order": order["order"], **ids, "receipt": told["id"]}, 201)


def step(steps: Any, name: str, send: Callable[..., Any], asked: dict[str, Any]) -> Any:
    if common.sabotage() == common.NO_REQUEST:
        return steps.step(name, lambda key: send(key, asked))
    return steps.step(name, send, request=asked)


def caller(scope: Any) -> str | None:
    return common.CALLERS.get(dict(scope["headers"]).get(b"authorization", b"").decode())


app = Starlette(routes=[Route("/checkouts", checkout, methods=["POST"])])
app.add_middleware(
    IdempotencyMiddleware,
    once=once,
    caller=caller,
    rules=[Rule("/checkouts", retry_safe=True, wait=common.WAIT)],
)
