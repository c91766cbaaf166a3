"""A FastAPI app with guarded routes, for tests that talk to it over a socket.

Effects are lines in a file and gates are files, as in apps/starlette_app.py.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import (
    APIRouter,
    BackgroundTasks,
    Depends,
    FastAPI,
    Header,
    HTTPException,
    Query,
    Request,
    UploadFile,
)
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel
from tests.http.apps.starlette_app import CALLERS, effect, engine, gate

from oncekey.http.fastapi import CurrentAttempt, Idempotency, OptionalAttempt


async def account(authorization: Annotated[str, Header()] = "") -> str:
    effect("auth")
    if authorization not in CALLERS:
        raise HTTPException(401, "who are you?", {"WWW-Authenticate": "Bearer"})
    if CALLERS[authorization] == "bob":
        raise HTTPException(403, "not you")
    return CALLERS[authorization]


once = engine()
idempotency = Idempotency(once, caller=Depends(account), policy_url="/policy")
app = FastAPI()
idempotency.attach(app)


class Order(BaseModel):
    cents: int
    note: str = ""
    sent_at: str = ""


class Receipt(BaseModel):
    number: int
    cents: int


class OutOfStock(Exception):
    pass


@app.exception_handler(OutOfStock)
async def out_of_stock(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "out of stock"}, 409, {"ETag": '"none"'})


@app.post("/charges", status_code=201, response_model=Receipt)
@idempotency.guard(ignore=["sent_at"], headers=["X-Cost"])
async def charge(order: Order, response: Response, attempt: CurrentAttempt) -> dict[str, object]:
    """Charge a card."""
    number = effect("charge")
    response.headers["Location"] = f"/charges/{number}"
    response.headers["X-Cost"] = "3"
    response.headers["X-No"] = "1"
    response.set_cookie("till", "7")
    return {"number": number, "cents": order.cents, "left out": attempt.child_key("card")}


@app.post("/other")
@idempotency.guard(wait="10s")
async def other() -> dict[str, int]:
    return {"number": effect("other")}


@app.post("/blocking")
@idempotency.guard()
def blocking(attempt: CurrentAttempt) -> dict[str, object]:
    in_thread = threading.current_thread() is not threading.main_thread()
    return {"number": effect("blocking"), "attempt": attempt.number, "in thread": in_thread}


@app.post("/optional")
@idempotency.guard(required=False)
async def optional(attempt: OptionalAttempt) -> dict[str, object]:
    return {"number": effect("optional"), "key": attempt and attempt.key}


@app.post("/gated")
@idempotency.guard()
async def gated() -> dict[str, bool]:
    effect("gated")
    await gate("gated")
    return {"done": True}


@app.post("/twenty")
@idempotency.guard(wait="10s")
async def twenty() -> dict[str, int]:
    await asyncio.sleep(0)
    return {"number": effect("twenty")}


@app.post("/status/{code}")
@idempotency.guard()
async def status(code: int) -> Response:
    effect("status")
    return Response(b"" if code == 204 else b"so be it", code, media_type="text/plain")


@app.post("/raise/{code}")
@idempotency.guard()
async def refuse(code: int) -> None:
    effect("refuse")
    raise HTTPException(code, {"because": code}, {"Retry-After": "7"} if code == 503 else None)


@app.post("/stock")
@idempotency.guard()
def stock() -> None:
    effect("stock")
    raise OutOfStock


@app.post("/crash")
@idempotency.guard()
async def crash() -> None:
    effect("crash")
    raise ValueError("s3cret")


_tries = itertools.count(1)


@app.post("/crash-safely")
@idempotency.guard(retry_safe=True)
async def crash_safely() -> dict[str, int]:
    effect("crash-safely")
    if next(_tries) == 1:
        raise ValueError("s3cret")
    return {"done": 1}


@app.post("/wrong-model", response_model=Receipt)
@idempotency.guard()
async def wrong_model() -> dict[str, str]:
    effect("wrong-model")
    return {"number": "none"}


@app.post("/text", response_class=PlainTextResponse)
@idempotency.guard()
async def text() -> str:
    return f"text {effect('text')}"


@app.post("/binary")
@idempotency.guard()
async def binary() -> Response:
    effect("binary")
    return Response(bytes(range(256)) * 9, media_type="application/octet-stream")


@app.post("/large")
@idempotency.guard(max_response=3_000_000)
async def large(size: Annotated[int, Query()]) -> Response:
    effect("large")
    return Response(b"x" * size, media_type="text/plain")


@app.post("/stream")
@idempotency.guard()
async def stream() -> StreamingResponse:
    effect("stream")

    async def parts() -> AsyncIterator[bytes]:
        for number in range(50):
            yield b"part %d\n" % number

    return StreamingResponse(parts(), media_type="text/plain")


@app.post("/background")
@idempotency.guard()
async def background(tasks: BackgroundTasks) -> dict[str, bool]:
    async def afterwards() -> None:
        effect("afterwards begins")
        await gate("afterwards")
        effect("afterwards ends")

    tasks.add_task(afterwards)
    effect("background")
    return {"done": True}


async def lock() -> AsyncIterator[str]:
    effect("lock")
    try:
        yield "held"
    finally:
        effect("unlock")


@app.post("/locked")
@idempotency.guard()
async def locked(held: Annotated[str, Depends(lock)]) -> dict[str, str]:
    effect("locked")
    return {"lock": held}


@app.post("/upload")
@idempotency.guard(max_request=100_000)
async def upload(file: UploadFile) -> dict[str, int]:
    effect("upload")
    return {"size": len(await file.read())}


@app.get("/read")
async def read() -> dict[str, int]:
    return {"number": effect("read")}


router = APIRouter(prefix="/shop", route_class=idempotency.route(headers=["X-Cost"]))


@router.post("/carts/{cart}")
async def fill(cart: str) -> dict[str, str]:
    effect("fill")
    return {"cart": cart}


@router.get("/carts/{cart}")
async def look(cart: str) -> dict[str, str]:
    effect("look")
    return {"cart": cart}


@router.post("/free")
@idempotency.guard(guarded=False)
async def free() -> dict[str, int]:
    return {"number": effect("free")}


app.include_router(router, prefix="/v1")
