"""A FastAPI app behind the plain middleware, which claims before FastAPI has looked."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from tests.http.apps.starlette_app import CALLERS, STORE, effect

from oncekey import AsyncOnce
from oncekey.http.fastapi import install
from oncekey.http.rules import Rule


def caller(scope: dict[str, Any]) -> str | None:
    return CALLERS.get(dict(scope["headers"]).get(b"authorization", b"").decode())


app = FastAPI()
install(
    app,
    AsyncOnce(STORE),
    caller=caller,
    rules=[Rule("/charges"), Rule("/notes/{id}", required=False)],
)


class Order(BaseModel):
    cents: int


@app.exception_handler(RequestValidationError)
def invalid(request: Request, error: Exception) -> Response:
    return JSONResponse({"own": "handler"}, 422)


@app.post("/charges", status_code=201)
async def charge(order: Order) -> dict[str, int]:
    return {"number": effect("charge")}


@app.post("/refused")
async def refused() -> Response:
    return Response(status_code=418)


@app.post("/notes/{id}")
async def note(id: int) -> Response:
    effect("note")
    return Response(b"handler's own", 422)
