"""Apps that tell which attempt and which step their handlers run in, one per adapter.

Every one answers POST, which is guarded, and GET, which is not, with what `told` says; a POST to
/again has a step and runs twice. The one to serve is named by the environment, since Django has
room for one only.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

from fastapi import BackgroundTasks, FastAPI, Request
from flask import Flask, Response, request
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from oncekey import AsyncOnce, Once, current_attempt, current_step
from oncekey.http import flask as flasks
from oncekey.http import wsgi as wsgis
from oncekey.http.asgi import IdempotencyMiddleware, attempt_of
from oncekey.http.fastapi import Idempotency, install

FOLDER = Path(os.environ["GUARDED_FOLDER"])
STORE = f"sqlite:///{FOLDER}/keys.db"
AGAIN = {"Retry-After": "1"}


def told(attempt: Any, *, step: str | None = None) -> dict[str, Any]:
    """What is current, as seen where this is called; `attempt` is what the adapter gives."""
    current = current_attempt()
    return {
        "key": None if current is None else current.key,
        "same": current is attempt,
        "step": None if (running := current_step()) is None else running.name,
        "in step": step,
    }


def told_in_step(attempt: Any) -> dict[str, Any]:
    if attempt is None:
        return told(None)
    step = attempt.step("pay", lambda key: told(attempt)["step"])
    return told(attempt, step=step)


async def told_in_async_step(attempt: Any) -> dict[str, Any]:
    await asyncio.sleep(0)
    step = await attempt.step("pay", lambda key: told(attempt)["step"])
    await asyncio.sleep(0)
    return told(attempt, step=step)


def pay(key: str) -> dict[str, Any]:
    """The function of a step: how often it was called."""
    with (FOLDER / "paid").open("a+") as file:
        file.write(key + "\n")
        file.seek(0)
        return {"number": file.read().split().count(key)}


def status_of(attempt: Any) -> int:
    """The first run of a handler ends with "nothing happened, come again"."""
    file = FOLDER / f"{attempt.key}.ran"
    is_first = not file.exists()
    file.touch()
    return 503 if is_first else 200


def note(what: str) -> None:
    """After the response: into a file, whole at once."""
    (FOLDER / "part").write_text(json.dumps(told(None)))
    (FOLDER / "part").rename(FOLDER / what)


def asgi() -> Any:
    async def here(request: Request) -> JSONResponse:
        attempt = attempt_of(request)
        return JSONResponse(await told_in_async_step(attempt) if attempt else told(None))

    async def later(request: Request) -> JSONResponse:
        task = BackgroundTask(note, "later")
        return JSONResponse(told(attempt_of(request)), background=task)

    async def stream(request: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield json.dumps(told(attempt_of(request)))

        return StreamingResponse(parts())

    async def again(request: Request) -> JSONResponse:
        attempt: Any = attempt_of(request)
        return JSONResponse(await attempt.step("pay", pay), status_of(attempt), AGAIN)

    routes = [
        Route("/again", again, methods=["POST"]),
        Route("/here", here, methods=["GET", "POST"]),
        Route("/later", later, methods=["POST"]),
        Route("/stream", stream, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(
        IdempotencyMiddleware,
        once=AsyncOnce(STORE),
        caller=lambda scope: dict(scope["headers"]).get(b"authorization", b"").decode(),
    )
    return app


def fastapi(*, by_middleware: bool = False) -> Any:
    app = FastAPI()
    once = AsyncOnce(STORE)
    idempotency = Idempotency(once, caller=lambda request: request.headers["authorization"])

    def guarded(endpoint: Callable[..., Any]) -> Callable[..., Any]:
        return endpoint if by_middleware else idempotency.guard()(endpoint)

    if by_middleware:

        def caller(scope: Any) -> str:
            return str(dict(scope["headers"]).get(b"authorization", b"").decode())

        install(app, once, caller=caller)
    else:
        idempotency.attach(app)

    async def here(request: Request) -> Any:
        return await told_in_async_step(attempt_of(request))

    def blocking(request: Request) -> Any:
        return told(attempt_of(request))

    async def later(request: Request, tasks: BackgroundTasks) -> Any:
        tasks.add_task(note, "later")
        return told(attempt_of(request))

    async def stream(request: Request) -> Any:
        async def parts() -> AsyncIterator[str]:
            yield json.dumps(told(attempt_of(request)))

        return StreamingResponse(parts())

    async def again(request: Request) -> Any:
        attempt: Any = attempt_of(request)
        return JSONResponse(await attempt.step("pay", pay), status_of(attempt), AGAIN)

    for endpoint in (here, blocking, later, stream, again):
        path = f"/{endpoint.__name__}"
        app.add_api_route(path, guarded(endpoint), methods=["POST"], response_model=None)
    app.add_api_route("/here", lambda: told(None), methods=["GET"])
    return app


def wsgi() -> Any:
    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/again":
            attempt: Any = wsgis.attempt_of(environ)
            start(f"{status_of(attempt)} Status", list(AGAIN.items()))
            return [json.dumps(attempt.step("pay", pay)).encode()]
        start("200 OK", [("Content-Type", "application/json")])
        if environ["PATH_INFO"] == "/stream":
            return (json.dumps(told(wsgis.attempt_of(environ))).encode() for _ in range(1))
        return [json.dumps(told_in_step(wsgis.attempt_of(environ))).encode()]

    return wsgis.IdempotencyWSGI(
        app, Once(STORE), caller=lambda environ: environ.get("HTTP_AUTHORIZATION")
    )


def flask() -> Any:
    app = Flask("currents")
    flasks.Idempotency(app, once=Once(STORE), caller=lambda: request.headers.get("Authorization"))

    @app.post("/here")
    @flasks.idempotent()
    def here() -> Any:
        return told_in_step(flasks.current_attempt())

    @app.post("/stream")
    @flasks.idempotent()
    def stream() -> Any:
        attempt = flasks.current_attempt()
        return Response(json.dumps(told(attempt)) for _ in range(1))

    @app.post("/again")
    @flasks.idempotent()
    def again() -> Any:
        attempt: Any = flasks.current_attempt()
        return attempt.step("pay", pay), status_of(attempt), AGAIN

    @app.get("/here")
    def nowhere() -> Any:
        return told(None)

    return app


def django(*, by_middleware: bool = False) -> Any:
    from django import setup
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.http import JsonResponse
    from django.urls import path

    ours = {"once": STORE, "caller": lambda request: request.headers.get("Authorization")}
    middleware = ["oncekey.http.django.IdempotencyMiddleware"] if by_middleware else []
    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        MIDDLEWARE=middleware,
        ONCEKEY=ours,
        LOGGING_CONFIG=None,
        USE_TZ=True,
        SECRET_KEY="not a secret",
    )
    setup()
    from oncekey.http.django import attempt_of, idempotent

    def here(request: Any) -> Any:
        return JsonResponse(told_in_step(attempt_of(request)))

    def again(request: Any) -> Any:
        attempt: Any = attempt_of(request)
        value = attempt.step("pay", pay)
        return JsonResponse(value, status=status_of(attempt), headers=AGAIN)

    for view in (here, again):
        urlpatterns.append(path(view.__name__, view if by_middleware else idempotent()(view)))
    return get_wsgi_application()


urlpatterns: list[Any] = []
APPS: dict[str, Callable[[], Any]] = {
    "asgi": asgi,
    "fastapi": fastapi,
    "fastapi-middleware": lambda: fastapi(by_middleware=True),
    "wsgi": wsgi,
    "flask": flask,
    "django": django,
    "django-middleware": lambda: django(by_middleware=True),
}
app = APPS[os.environ["GUARDED_KIND"]]()
