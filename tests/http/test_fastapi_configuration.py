"""Setting it up: mistakes told early, the OpenAPI document, the whole app behind the middleware."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, UploadFile
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from tests.http.app_server import ALICE, ServedApp, serve_app
from tests.http.socket_client import Response
from tests.support.servers import require
from tests.support.servers.http import Uvicorn

from oncekey import AsyncOnce, ConfigurationError, Once, StoreUnavailable
from oncekey.http.fastapi import CurrentAttempt, Idempotency, OptionalAttempt, install

KEY = {"Idempotency-Key": "k"}


def made(**options: Any) -> Idempotency:
    return Idempotency(AsyncOnce("memory://"), **{"caller": lambda request: "acct", **options})


def ready(**options: Any) -> tuple[FastAPI, Idempotency]:
    app, idempotency = FastAPI(), made(**options)
    idempotency.attach(app)
    return app, idempotency


def ask(app: FastAPI, *headers: dict[str, str], method: str = "POST", path: str = "/") -> list[Any]:
    """Ask once with each of these headers, without a socket; errors of the app come out."""

    async def main() -> list[Any]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return [await client.request(method, path, headers=each) for each in headers]

    return asyncio.run(main())


# --- mistakes -----------------------------------------------------------------------------------


def test_keys_need_callers() -> None:
    with pytest.raises(ConfigurationError, match="caller="):
        Idempotency(AsyncOnce("memory://"))
    with pytest.raises(ConfigurationError, match="AsyncOnce"):
        Idempotency(Once("memory://"), caller=str)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="caller="):
        install(FastAPI(), AsyncOnce("memory://"), caller=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lease": "0s"}, "lease"),
        ({"ignore": "one"}, "list of names"),
        ({"transaction": str, "required": False}, "required=True"),
        ({"transaction": str, "store_down": "run"}, "store_down='refuse'"),
        ({"transaction": str, "retry_safe": False}, "retry_safe=True"),
        ({"transaction": Depends(str, scope="function")}, "scope='request'"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        made().guard(**options)


def test_endpoints_that_cannot_be() -> None:
    app, idempotency = ready()

    async def parts() -> AsyncIterator[bytes]:
        yield b""

    async def read() -> None: ...

    with pytest.raises(ConfigurationError, match="StreamingResponse"):
        idempotency.guard()(parts)
    with pytest.raises(ConfigurationError, match="twice"):
        idempotency.guard()(idempotency.guard()(read))
    with pytest.raises(ConfigurationError, match="GET"):
        app.get("/read")(idempotency.guard()(read))


def test_a_guarded_endpoint_on_a_route_that_does_not_know_is_told_and_never_runs() -> None:
    app, idempotency = FastAPI(), made()
    ran = []

    @app.post("/")
    @idempotency.guard()
    async def run() -> None:
        ran.append(1)

    with pytest.raises(ConfigurationError, match="attach"):
        ask(app, KEY)
    with pytest.raises(ConfigurationError, match="before"):
        idempotency.attach(app)
    assert ran == []


def test_it_is_told_at_the_start_for_routers_that_are_included_later() -> None:
    app, idempotency = ready()
    router = APIRouter()

    @router.post("/late")
    @idempotency.guard()
    async def late() -> None: ...

    app.include_router(router)

    async def start() -> None:
        async with app.router.lifespan_context(app):
            pass

    with pytest.raises(ConfigurationError, match="/late"):
        asyncio.run(start())


# --- callers and classes ------------------------------------------------------------------------


def test_a_caller_may_be_a_function_of_the_request_and_none_refuses() -> None:
    async def caller(request: Request) -> str | None:
        return request.headers.get("x-account")

    app, idempotency = ready(caller=caller)

    @app.post("/")
    @idempotency.guard()
    async def run(attempt: CurrentAttempt) -> str:
        return attempt.scope

    accounts = [{**KEY, "x-account": account} for account in ("a", "b", "a")]
    refused, *answers = ask(app, KEY, *accounts)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    # I8: one key, two accounts, two outcomes
    assert [answer.json() for answer in answers] == ["a", "b", "a"]


def test_a_caller_that_is_no_text_is_an_error_and_nobody_waits_for_it() -> None:
    app, idempotency = ready(caller=lambda request: 7)

    @app.post("/")
    @idempotency.guard()
    async def run() -> None: ...

    with pytest.raises(TypeError, match="text or None"):
        ask(app, KEY)


def test_a_dependency_that_fails_is_the_apps_business() -> None:
    app, idempotency = ready()
    working = False

    async def card() -> None:
        if not working:
            raise ValueError("no card")

    @app.post("/", dependencies=[Depends(card)])
    @idempotency.guard()
    async def run() -> int:
        return 1

    with pytest.raises(ValueError, match="no card"):
        ask(app, KEY)
    working = True
    (answer,) = ask(app, KEY)
    assert (answer.json(), "x-idempotency-replayed" in answer.headers) == (1, False)


def test_an_apps_own_route_class_stays() -> None:
    class Own(APIRoute):
        def get_route_handler(self) -> Any:
            handler = super().get_route_handler()

            async def handle(request: Request) -> Any:
                response = await handler(request)
                response.headers["ETag"] = "own"
                return response

            return handle

    app, idempotency = FastAPI(), made()
    app.router.route_class = Own
    idempotency.attach(app)

    @app.post("/")
    @idempotency.guard()
    async def run() -> int:
        return 1

    answers = ask(app, KEY, KEY)
    assert [answer.headers["etag"] for answer in answers] == ["own", "own"]
    assert "x-idempotency-replayed" in answers[1].headers


def test_a_dependency_holds_a_promise_of_the_attempt() -> None:
    app, idempotency = ready()

    def card(attempt: CurrentAttempt) -> Any:
        with pytest.raises(ConfigurationError, match="no attempt is running"):
            attempt.check()
        return lambda: attempt.child_key("card")

    @app.post("/")
    @idempotency.guard()
    async def run(attempt: CurrentAttempt, key: Any = Depends(card)) -> bool:  # noqa: B008
        return bool(key() == attempt.child_key("card"))

    assert ask(app, KEY)[0].json() is True


# --- a store that is down -------------------------------------------------------------------------


@pytest.mark.parametrize(("choice", "status"), [("refuse", 503), ("run", 200)])
def test_a_store_that_is_down(choice: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    app, idempotency = ready()
    ran = []

    @app.post("/")
    @idempotency.guard(store_down=choice)
    async def run(attempt: OptionalAttempt) -> None:
        ran.append(attempt)

    async def down(*args: Any, **options: Any) -> None:
        raise StoreUnavailable("down", ambiguous=False)

    monkeypatch.setattr(idempotency.once, "run", down)
    (answer,) = ask(app, KEY)
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) == (choice == "refuse")
    assert (ran, idempotency.unprotected) == (([], 0) if choice == "refuse" else ([None], 1))


# --- I14 ------------------------------------------------------------------------------------------


def test_i14_a_cancelled_request_goes_on_and_the_app_waits_for_it_before_it_ends() -> None:
    """The server gives up on the request, then shuts down; the result is there all the same."""
    log: list[str] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        log.append("closed")

    async def main() -> None:
        app = FastAPI(lifespan=lifespan)
        idempotency = made()
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


# --- OpenAPI --------------------------------------------------------------------------------------


class Item(BaseModel):
    name: str


def _document() -> Any:
    app, idempotency = ready()

    @app.post("/items", status_code=201)
    @idempotency.guard()
    async def add(item: Item, request: Request) -> Item:
        """Add an item."""
        return item

    @app.post("/maybe", openapi_extra={"x-own": 1, "parameters": [{"in": "query", "name": "q"}]})
    @idempotency.guard(required=False)
    async def maybe() -> None: ...

    @app.post("/move", response_class=RedirectResponse)
    @idempotency.guard()
    async def move() -> str:
        return "/"

    @app.post("/open")
    async def unguarded(item: Item) -> None: ...

    router = APIRouter(route_class=idempotency.route())

    @router.patch("/items")
    async def change(item: Item) -> None: ...

    outer = APIRouter()
    outer.include_router(router, prefix="/b")
    app.include_router(outer, prefix="/a")
    return ask(app, {}, method="GET", path="/openapi.json")[0].json()["paths"]


def test_the_document_says_what_a_client_must_know() -> None:
    paths = _document()
    added = paths["/items"]["post"]
    (key,) = added["parameters"]
    assert (key["name"], key["in"], key["required"]) == ("Idempotency-Key", "header", True)
    assert key["schema"] == {"type": "string", "minLength": 1, "maxLength": 255}
    assert added["description"] == "Add an item."
    assert set(added["responses"]) == {"201", "400", "409", "422", "503"}
    for status in ("400", "409", "422", "503"):
        response = added["responses"][status]
        schema = response["content"]["application/problem+json"]["schema"]
        assert {"type", "title", "status", "retryable"} <= set(schema["properties"])
        assert ("Retry-After" in response.get("headers", {})) == (status in ("409", "503"))
        assert response["description"]
    assert "application/json" in added["responses"]["422"]["content"], "FastAPI's own stays"
    headers = added["responses"]["201"]["headers"]
    assert set(headers) == {"X-Idempotency-Replayed", "X-Idempotency-Retention"}
    assert "schema" in added["responses"]["201"]["content"]["application/json"]


def test_the_document_of_other_routes() -> None:
    paths = _document()
    names = [(p["name"], p.get("required")) for p in paths["/maybe"]["post"]["parameters"]]
    assert names == [("q", None), ("Idempotency-Key", False)]
    assert paths["/maybe"]["post"]["x-own"] == 1
    assert set(paths["/move"]["post"]["responses"]) == {"307", "400", "409", "422", "503"}
    assert set(paths["/open"]["post"]["responses"]) == {"200", "422"}
    inner = paths["/a/b/items"]["patch"]
    assert [p["name"] for p in inner["parameters"]] == ["Idempotency-Key"]
    assert "409" in inner["responses"]


# --- the middleware around a whole app ------------------------------------------------------------


@pytest.fixture(scope="module")
def whole() -> Iterator[ServedApp]:
    require(lambda: Uvicorn("x:y"))
    with serve_app(Uvicorn, "tests.http.fastapi_apps.behind_middleware:app") as made:
        yield made


def test_a_request_that_does_not_validate_frees_its_key(whole: ServedApp) -> None:
    bad = whole.post("/charges", "first", {"cents": "many"})
    assert (bad.status, bad.body) == (422, b'{"own":"handler"}')
    good = [whole.post("/charges", "first", {"cents": 5}) for _ in range(2)]
    assert [answer.status for answer in good] == [201, 201]
    assert good[1].one("X-Idempotency-Replayed") == "true"
    assert whole.effects("charge") == 1


def test_a_422_of_the_handlers_own_is_stored(whole: ServedApp) -> None:
    for _ in range(2):
        answer: Response = whole.post("/notes/1", "second")
        assert (answer.status, answer.body) == (422, b"handler's own")
    assert whole.effects("note") == 1


def test_the_document_of_an_app_behind_the_middleware(whole: ServedApp) -> None:
    with whole.connect() as connection:
        document = [
            json.loads(connection.request("GET", "/openapi.json", [ALICE]).body) for _ in range(2)
        ]
    assert document[0] == document[1]
    paths = document[0]["paths"]
    charge, note, refused = (paths[p]["post"] for p in ("/charges", "/notes/{id}", "/refused"))
    assert [p["name"] for p in charge["parameters"]] == ["Idempotency-Key"]
    assert {"201", "400", "409", "422", "503"} == set(charge["responses"])
    assert "X-Idempotency-Replayed" in charge["responses"]["201"]["headers"]
    assert [(p["name"], p["required"]) for p in note["parameters"]][-1] == (
        "Idempotency-Key",
        False,
    )
    assert "parameters" not in refused
