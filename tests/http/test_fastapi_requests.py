"""Requests to guarded FastAPI routes in one process: callers, dependencies, cancellation."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Request, UploadFile
from fastapi.routing import APIRoute
from tests.http.fastapi_set_up import KEY, attached, send, set_up

from oncekey import ConfigurationError, StoreUnavailable
from oncekey.http.fastapi import CurrentAttempt, OptionalAttempt, install

# --- callers and classes ------------------------------------------------------------------------


def test_caller_may_be_a_function_of_the_request_and_none_is_refused() -> None:
    async def caller(request: Request) -> str | None:
        return request.headers.get("x-account")

    app, idempotency = attached(caller=caller)

    @app.post("/")
    @idempotency.guard()
    async def run(attempt: CurrentAttempt) -> str:
        return attempt.scope

    accounts = [{**KEY, "x-account": account} for account in ("a", "b", "a")]
    refused, *answers = send(app, KEY, *accounts)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    # I8: one key, two accounts, two outcomes
    assert [answer.json() for answer in answers] == ["a", "b", "a"]


def test_a_caller_that_is_not_text_raises_type_error() -> None:
    app, idempotency = attached(caller=lambda request: 7)

    @app.post("/")
    @idempotency.guard()
    async def run() -> None: ...

    with pytest.raises(TypeError, match="text or None"):
        send(app, KEY)


def test_a_dependency_that_raises_leaves_the_key_free() -> None:
    app, idempotency = attached()
    working = False

    async def card() -> None:
        if not working:
            raise ValueError("no card")

    @app.post("/", dependencies=[Depends(card)])
    @idempotency.guard()
    async def run() -> int:
        return 1

    with pytest.raises(ValueError, match="no card"):
        send(app, KEY)
    working = True
    (answer,) = send(app, KEY)
    assert (answer.json(), "x-idempotency-replayed" in answer.headers) == (1, False)


def test_the_apps_own_route_class_is_kept() -> None:
    class Own(APIRoute):
        def get_route_handler(self) -> Any:
            handler = super().get_route_handler()

            async def handle(request: Request) -> Any:
                response = await handler(request)
                response.headers["ETag"] = "own"
                return response

            return handle

    app, idempotency = FastAPI(), set_up()
    app.router.route_class = Own
    idempotency.attach(app)

    @app.post("/")
    @idempotency.guard()
    async def run() -> int:
        return 1

    answers = send(app, KEY, KEY)
    assert [answer.headers["etag"] for answer in answers] == ["own", "own"]
    assert "x-idempotency-replayed" in answers[1].headers


def test_a_dependency_gets_a_proxy_of_the_attempt() -> None:
    app, idempotency = attached()

    def card(attempt: CurrentAttempt) -> Any:
        with pytest.raises(ConfigurationError, match="no attempt is running"):
            attempt.check()
        return lambda: attempt.child_key("card")

    @app.post("/")
    @idempotency.guard()
    async def run(attempt: CurrentAttempt, key: Any = Depends(card)) -> bool:  # noqa: B008
        return bool(key() == attempt.child_key("card"))

    assert send(app, KEY)[0].json() is True


# --- a store that is down -------------------------------------------------------------------------


@pytest.mark.parametrize(("choice", "status"), [("refuse", 503), ("run", 200)])
def test_a_request_while_the_store_is_down_is_refused_or_runs_unprotected(
    choice: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, idempotency = attached()
    ran = []

    @app.post("/")
    @idempotency.guard(store_down=choice)
    async def run(attempt: OptionalAttempt) -> None:
        ran.append(attempt)

    async def down(*args: Any, **options: Any) -> None:
        raise StoreUnavailable("down", ambiguous=False)

    monkeypatch.setattr(idempotency.once, "run", down)
    (answer,) = send(app, KEY)
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) == (choice == "refuse")
    assert (ran, idempotency.unprotected) == (([], 0) if choice == "refuse" else ([None], 1))


# --- I14 ------------------------------------------------------------------------------------------


def test_i14_shutdown_waits_for_a_cancelled_request() -> None:
    """The server gives up on the request, then shuts down; the result is there all the same."""
    log: list[str] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        log.append("closed")

    async def main() -> None:
        app = FastAPI(lifespan=lifespan)
        idempotency = set_up()
        idempotency.attach(app)
        here, go = asyncio.Event(), asyncio.Event()

        @app.post("/")
        @idempotency.guard()
        async def run(file: UploadFile) -> str:
            here.set()
            await go.wait()
            log.append(f"ran on {(await file.read()).decode()}")
            return "done"

        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app):
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                request = asyncio.create_task(client.post("/", headers=KEY, files={"file": b"it"}))
                await here.wait()
                request.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await request
            go.set()  # from here on only the end of the app waits for it

    asyncio.run(main())
    assert log == ["ran on it", "closed"]


# --- endpoints ----------------------------------------------------------------------------------


def test_an_endpoint_may_take_the_request() -> None:
    app, idempotency = attached()
    ran = []

    @app.post("/charges")
    @idempotency.guard()
    async def charge(request: Request, cents: int) -> dict[str, Any]:
        ran.append(request.url.path)
        return {"path": request.url.path, "cents": cents}

    first, again = send(app, KEY, KEY, path="/charges?cents=5")
    assert first.json() == {"path": "/charges", "cents": 5}
    assert again.content == first.content
    assert again.headers["x-idempotency-replayed"] == "true"
    assert ran == ["/charges"]


def test_a_guarded_route_behind_the_middleware_is_guarded_once() -> None:
    app, idempotency = attached()
    ran = []

    @app.post("/")
    @idempotency.guard()
    async def charge() -> int:
        ran.append(1)
        return len(ran)

    install(app, idempotency.once, caller=lambda scope: "acct")
    responses = send(app, KEY, KEY)
    assert [(response.status_code, response.json()) for response in responses] == [(200, 1)] * 2
    assert ran == [1]


class OwnRequest(Request):
    pass


async def takes_annotated(request: Annotated[Request, "note"]) -> str:
    return request.url.path


async def takes_named(request: "Request") -> str:  # noqa: UP037, evaluated later
    return request.url.path


async def takes_own(a: int | None = None, *, request: OwnRequest) -> str:
    return request.url.path


async def takes_unknown(a: "NotThere" = 1) -> str:  # type: ignore[name-defined]  # noqa: F821,UP037
    return "/"


@pytest.mark.parametrize("endpoint", [takes_annotated, takes_named, takes_own])
def test_an_endpoint_gets_its_own_request_however_it_names_the_type(endpoint: Any) -> None:
    app, idempotency = attached()
    app.post("/")(idempotency.guard()(endpoint))
    first, again = send(app, KEY, KEY)
    assert (first.json(), again.content) == ("/", first.content)


def test_an_endpoint_whose_parameters_are_not_known_yet_gets_a_dependency() -> None:
    signature = inspect.signature(set_up().guard()(takes_unknown))
    assert any("request" in name for name in signature.parameters)
