"""Apps that respond with the attempt and the step that their handlers run in, one per adapter.

POST is guarded and GET is not; both respond with `current_state`. A POST to /again has a step and
runs twice. GUARDED_KIND names the app to serve, because a process can have one Django app only.
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
from oncekey.http import flask as oncekey_flask
from oncekey.http import wsgi as oncekey_wsgi
from oncekey.http.asgi import IdempotencyMiddleware, attempt_of
from oncekey.http.fastapi import Idempotency, install

FOLDER = Path(os.environ["GUARDED_FOLDER"])
STORE = f"sqlite:///{FOLDER}/keys.db"
AGAIN = {"Retry-After": "1"}


def current_state(attempt: Any, *, step: str | None = None) -> dict[str, Any]:
    """The current attempt and step; `attempt` is the one that the adapter provides."""
    current = current_attempt()
    return {
        "key": None if current is None else current.key,
        "same": current is attempt,
        "step": None if (running := current_step()) is None else running.name,
        "in step": step,
    }


def state_in_step(attempt: Any) -> dict[str, Any]:
    if attempt is None:
        return current_state(None)
    step = attempt.step("pay", lambda key: current_state(attempt)["step"])
    return current_state(attempt, step=step)


async def state_in_async_step(attempt: Any) -> dict[str, Any]:
    await asyncio.sleep(0)
    step = await attempt.step("pay", lambda key: current_state(attempt)["step"])
    await asyncio.sleep(0)
    return current_state(attempt, step=step)


def pay(key: str) -> dict[str, Any]:
    """The function of a step: how often it was called."""
    with (FOLDER / "paid").open("a+") as file:
        file.write(key + "\n")
        file.seek(0)
        return {"number": file.read().split().count(key)}


def status_of(attempt: Any) -> int:
    """503 for the first run of a handler, which frees its key."""
    file = FOLDER / f"{attempt.key}.ran"
    is_first = not file.exists()
    file.touch()
    return 503 if is_first else 200


def write_state(name: str) -> None:
    """Write the current state to a file after the response, atomically."""
    (FOLDER / "part").write_text(json.dumps(current_state(None)))
    (FOLDER / "part").rename(FOLDER / name)


def asgi() -> Any:
    async def current(request: Request) -> JSONResponse:
        attempt = attempt_of(request)
        return JSONResponse(await state_in_async_step(attempt) if attempt else current_state(None))

    async def later(request: Request) -> JSONResponse:
        task = BackgroundTask(write_state, "later")
        return JSONResponse(current_state(attempt_of(request)), background=task)

    async def stream(request: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield json.dumps(current_state(attempt_of(request)))

        return StreamingResponse(parts())

    async def again(request: Request) -> JSONResponse:
        attempt: Any = attempt_of(request)
        return JSONResponse(await attempt.step("pay", pay), status_of(attempt), AGAIN)

    routes = [
        Route("/again", again, methods=["POST"]),
        Route("/current", current, methods=["GET", "POST"]),
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

    async def current(request: Request) -> Any:
        return await state_in_async_step(attempt_of(request))

    def blocking(request: Request) -> Any:
        return current_state(attempt_of(request))

    async def later(request: Request, tasks: BackgroundTasks) -> Any:
        tasks.add_task(write_state, "later")
        return current_state(attempt_of(request))

    async def stream(request: Request) -> Any:
        async def parts() -> AsyncIterator[str]:
            yield json.dumps(current_state(attempt_of(request)))

        return StreamingResponse(parts())

    async def again(request: Request) -> Any:
        attempt: Any = attempt_of(request)
        return JSONResponse(await attempt.step("pay", pay), status_of(attempt), AGAIN)

    for endpoint in (current, blocking, later, stream, again):
        path = f"/{endpoint.__name__}"
        app.add_api_route(path, guarded(endpoint), methods=["POST"], response_model=None)
    app.add_api_route("/current", lambda: current_state(None), methods=["GET"])
    return app


def wsgi() -> Any:
    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/again":
            attempt: Any = oncekey_wsgi.attempt_of(environ)
            start(f"{status_of(attempt)} Status", list(AGAIN.items()))
            return [json.dumps(attempt.step("pay", pay)).encode()]
        start("200 OK", [("Content-Type", "application/json")])
        if environ["PATH_INFO"] == "/stream":
            return (
                json.dumps(current_state(oncekey_wsgi.attempt_of(environ))).encode()
                for _ in range(1)
            )
        return [json.dumps(state_in_step(oncekey_wsgi.attempt_of(environ))).encode()]

    return oncekey_wsgi.IdempotencyWSGI(
        app, Once(STORE), caller=lambda environ: environ.get("HTTP_AUTHORIZATION")
    )


def flask() -> Any:
    app = Flask("currents")
    oncekey_flask.Idempotency(
        app, once=Once(STORE), caller=lambda: request.headers.get("Authorization")
    )

    @app.post("/current")
    @oncekey_flask.idempotent()
    def current() -> Any:
        return state_in_step(oncekey_flask.current_attempt())

    @app.post("/stream")
    @oncekey_flask.idempotent()
    def stream() -> Any:
        attempt = oncekey_flask.current_attempt()
        return Response(json.dumps(current_state(attempt)) for _ in range(1))

    @app.post("/again")
    @oncekey_flask.idempotent()
    def again() -> Any:
        attempt: Any = oncekey_flask.current_attempt()
        return attempt.step("pay", pay), status_of(attempt), AGAIN

    @app.get("/current")
    def unguarded() -> Any:
        return current_state(None)

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

    def current(request: Any) -> Any:
        return JsonResponse(state_in_step(attempt_of(request)))

    def again(request: Any) -> Any:
        attempt: Any = attempt_of(request)
        value = attempt.step("pay", pay)
        return JsonResponse(value, status=status_of(attempt), headers=AGAIN)

    for view in (current, again):
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
