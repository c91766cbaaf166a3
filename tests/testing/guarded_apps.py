"""Apps that oncekey guards, one per framework, on the store of a test: the check must pass them.

Each takes an engine and a counter of effects, and gives a test client. Their requests are alike:
a charge of some cents, by a caller with a token.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from oncekey import AsyncOnce, Once
from oncekey.testing import AsyncEffects, Effects, SampleRequest

CALLERS = {"Bearer a": "alice", "Bearer b": "bob"}
ALICE = {"Authorization": "Bearer a"}
CHARGE = SampleRequest("POST", "/charges", json={"cents": 5}, headers=ALICE)
# Everything that a check of a guarded app can be given.
EVERYTHING: dict[str, Any] = {
    "other_request": SampleRequest("POST", "/charges", json={"cents": 9}, headers=ALICE),
    "other_caller": {"Authorization": "Bearer b"},
    "rejected_caller": {"Authorization": "Bearer x"},
    "require": "all",
}

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of httpx, which Starlette wants to leave behind
    from starlette.testclient import TestClient


def fastapi_app(once: AsyncOnce, effects: AsyncEffects) -> Any:
    from fastapi import FastAPI

    from oncekey.http.fastapi import install

    def caller(scope: Any) -> str | None:
        return CALLERS.get(dict(scope["headers"]).get(b"authorization", b"").decode())

    app = FastAPI()
    install(app, once, caller=caller, close=False)

    @app.post("/charges", status_code=201)
    async def charge(body: dict[str, int]) -> dict[str, int]:
        await effects.record(body["cents"])
        return {"charge": len(effects), **body}

    return app


def fastapi_client(once: AsyncOnce, effects: AsyncEffects) -> Any:
    return TestClient(fastapi_app(once, effects))


def flask_client(once: Once, effects: Effects) -> Any:
    from flask import Flask, abort, g, request

    from oncekey.http.flask import Idempotency, idempotent

    app = Flask("shop")
    app.testing = True  # so that the client raises what the app raised
    Idempotency(app, once=once, caller=lambda: g.account, close=False)

    @app.before_request
    def authenticate() -> None:
        g.account = CALLERS.get(request.headers.get("Authorization", ""))
        if g.account is None:
            abort(401)

    @app.post("/charges")
    @idempotent()
    def charge() -> Any:
        effects.record(request.json["cents"])
        return {"charge": len(effects), "cents": request.json["cents"]}, 201

    return app.test_client()


def set_up_django(view: Callable[..., Any], once: Once) -> Any:
    """Django with one view; its settings, to be disabled after the test."""
    from django import setup
    from django.conf import settings
    from django.test.utils import override_settings
    from django.urls import path

    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=["*"], LOGGING_CONFIG=None, USE_TZ=True, SECRET_KEY="not a secret"
        )
        setup()
    urls: Any = type("urls", (), {})()
    urls.urlpatterns = [path("charges", view)]
    overridden = override_settings(
        ALLOWED_HOSTS=["*"],
        MIDDLEWARE=["oncekey.http.django.IdempotencyMiddleware"],
        ROOT_URLCONF=urls,
        ONCEKEY={
            "once": once,
            "caller": lambda request: CALLERS.get(request.headers.get("Authorization", "")),
            "close": False,
        },
    )
    overridden.enable()
    return overridden


def django_view(effects: Effects) -> Callable[[Any], Any]:
    def charge(request: Any) -> Any:
        import json

        from django.http import JsonResponse

        cents = json.loads(request.body)["cents"]
        effects.record(cents)
        return JsonResponse({"charge": len(effects), "cents": cents}, status=201)

    return charge
