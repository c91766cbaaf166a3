"""A payments API behind the middleware that has the form of Stripe's, for Stripe's SDK."""

from __future__ import annotations

import json
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.http.apps.starlette_app import effect, engine, gate

from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.problem import Refusal, Rendered
from oncekey.http.rules import Rule

KEYS = {b"Bearer sk_test_1": "acct_1"}


def render_as_stripe(refusal: Refusal) -> Rendered:
    """A refusal in Stripe's form: the SDK raises IdempotencyError for a reused key."""
    kinds = {"key-reused": "idempotency_error", "in-flight": "idempotency_error"}
    error = {
        "type": kinds.get(refusal.code, "invalid_request_error"),
        "code": refusal.code.replace("-", "_"),
        "message": f"{refusal.title}. {refusal.detail}",
        "doc_url": refusal.type,
    }
    return Rendered(
        json.dumps({"error": error}).encode(),
        status=400 if refusal.code == "key-reused" else None,
        headers=(("Stripe-Should-Retry", "true" if refusal.retryable else "false"),),
    )


async def charge(request: Request) -> Response:
    form = {name: value[0] for name, value in parse_qs((await request.body()).decode()).items()}
    number = effect(form["description"])
    if form["description"].startswith("gated"):
        await gate(form["description"])
    if form["source"] == "tok_declined":
        error = {"type": "card_error", "code": "card_declined", "message": f"No. {number}"}
        return JSONResponse({"error": error}, 402)
    return JSONResponse({"id": f"ch_{number}", "object": "charge", "amount": int(form["amount"])})


app = IdempotencyMiddleware(
    Starlette(routes=[Route("/v1/charges", charge, methods=["POST"])]),
    engine(),
    caller=lambda scope: KEYS.get(dict(scope["headers"]).get(b"authorization", b"")),
    rules=[Rule("/v1/*")],
    replay_header="Idempotent-Replayed",
    render_refusal=render_as_stripe,
)
