"""The payments API as a FastAPI app: its routes behind oncekey's middleware.

This is the module to copy from.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from oncekey import AsyncOnce, Policy, __version__
from oncekey.demo.api import problems
from oncekey.demo.api.models import BODY_MAX_BYTES, Problem
from oncekey.demo.api.payment_routes import Shop, routes
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.rules import Rule

OPERATION = "payments"
# Short, so that a killed worker's key is taken over soon; the default is 30 s.
POLICY = Policy(lease="2s", keep="1h", audit="1h")
_DRAIN = "5s"


def open_keys(store_url: str) -> AsyncOnce:
    # Raw keys, so that `oncekey show` and the page can name them.
    return AsyncOnce(store_url, policy=POLICY, raw_keys=True)


def payments_api(shop: Shop, once: AsyncOnce) -> FastAPI:
    """The app. On shutdown it closes `once` and the shop's provider client."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await shop.provider.close()

    def caller(scope: Any) -> str | None:
        lines = [value for name, value in scope["headers"] if name == b"authorization"]
        account = shop.data_dir.account_of(lines[0]) if len(lines) == 1 else None
        return account.id if account else None

    app = FastAPI(
        title="Payments",
        version=__version__,
        description="A small payments API in which nobody is charged twice.",
        lifespan=lifespan,
        docs_url=None,  # those pages load scripts from other hosts
        redoc_url=None,
    )
    app.state.shop = shop
    app.include_router(routes)
    problems.install(app)
    app.add_middleware(
        IdempotencyMiddleware,
        once=once,
        caller=caller,
        rules=[
            Rule(path, methods=("POST",), retry_safe=True, max_request=BODY_MAX_BYTES)
            for path in ("/charges", "/charges/{id}/refunds")
        ],
        operation=OPERATION,
        drain=_DRAIN,
    )
    _document_problems(app)
    return app


def _document_problems(app: FastAPI) -> None:
    """Adds the problem schema to the OpenAPI document, because no route returns one itself."""
    plain = app.openapi

    def documented() -> dict[str, Any]:
        document = plain()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.setdefault("Problem", Problem.model_json_schema())
        return document

    app.openapi = documented  # type: ignore[method-assign]
