"""A function that was decorated is served guarded, or the app says so before it runs.

In the wrong order (`@guard` above `@app.post`) the route holds the bare function: it would run as
often as it is asked, and nobody would notice.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from flask import Blueprint, Flask
from flask.views import MethodView

from oncekey import AsyncOnce, ConfigurationError, Once
from oncekey.http.discovery import find
from oncekey.http.fastapi import Idempotency
from oncekey.http.flask import Idempotency as FlaskIdempotency
from oncekey.http.flask import current_attempt, idempotent

KEY = {"Idempotency-Key": "k"}
RAN: list[int] = []


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Flask's decorator belongs to no app: what one test leaves unserved must not meet another."""
    yield
    gc.collect()


def bare(f: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that forgets functools.wraps."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs)

    inner.__name__ = f.__name__
    return inner


def logged(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs)

    @functools.wraps(f)
    async def async_inner(*args: Any, **kwargs: Any) -> Any:
        return await f(*args, **kwargs)

    return async_inner if inspect.iscoroutinefunction(f) else inner


# --- FastAPI --------------------------------------------------------------------------------------


def fastapi(**options: Any) -> tuple[FastAPI, Idempotency]:
    app = FastAPI()
    made = Idempotency(AsyncOnce("memory://"), caller=lambda request: "me", close=False, **options)
    made.attach(app)
    return app, made


async def post(app: Any, path: str) -> Any:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.post(path, headers=KEY)


async def start(app: FastAPI) -> None:
    async with app.router.lifespan_context(app):
        pass


def told(app: Any, *words: str) -> None:
    """At the start, at the first request of an app that is never started, and by the command."""
    RAN.clear()
    for ask in (start(app), post(app, "/pay"), post(app, "/pay")):
        with pytest.raises(ConfigurationError) as error:
            asyncio.run(ask)
        for word in words:
            assert word in str(error.value)
    with pytest.raises(ConfigurationError, match=words[0]):
        find(app)
    assert RAN == []


@pytest.mark.parametrize("between", [None, logged])
def test_fastapi_wrong_order_is_refused_at_import(between: Any) -> None:
    app, idempotency = fastapi()
    for router in (app, APIRouter(route_class=idempotency.route_class)):

        @router.post("/pay")
        async def pay() -> None:
            RAN.append(1)

        view = between(pay) if between else pay
        with pytest.raises(ConfigurationError, match=r"pay \(.*test_guarded_views.py:\d+\)") as e:
            idempotency.guard()(view)
        assert "below @app.post" in str(e.value)


def test_fastapi_wrong_order_on_a_plain_router_is_refused_at_the_start() -> None:
    app, idempotency = fastapi()
    router = APIRouter()

    @idempotency.guard()
    @router.post("/pay")
    async def pay() -> None:
        RAN.append(1)

    app.include_router(router, prefix="")
    told(app, "pay", "bare function", "below @app.post")


def test_fastapi_wrong_order_behind_a_careless_decorator_and_a_mount() -> None:
    app, idempotency = fastapi()
    inner = FastAPI()

    @idempotency.guard()
    @bare
    @inner.post("/")
    def pay() -> None:
        RAN.append(1)

    app.mount("/pay", inner)
    told(app, "pay", "bare function")


def test_fastapi_a_guarded_function_that_no_route_serves() -> None:
    app, idempotency = fastapi()

    async def pay() -> None:
        RAN.append(1)

    lost = idempotency.guard()(pay)
    told(app, "pay", "no route serves it")
    app.post("/pay")(lost)  # and now one does
    assert asyncio.run(post(app, "/pay")).status_code == 200


def test_fastapi_serves_what_is_in_order() -> None:
    app, idempotency = fastapi()
    other = FastAPI()
    idempotency.attach(other)
    router = APIRouter(route_class=idempotency.route_class)

    @router.post("/pay")
    @logged
    @idempotency.guard()
    def pay() -> None:
        RAN.append(1)

    @app.api_route("/both", methods=["GET", "CHARGE"])
    @idempotency.guard()
    def both() -> None: ...

    @other.post("/elsewhere")
    @idempotency.guard()
    def elsewhere() -> None: ...

    mounted = FastAPI()
    mounted.include_router(router)
    app.mount("/v1", mounted)
    asyncio.run(start(app))
    RAN.clear()
    assert [asyncio.run(post(app, "/v1/pay")).status_code for _ in range(2)] == [200, 200]
    assert RAN == [1]


def test_fastapi_unserved_may_be_allowed_but_never_the_wrong_order() -> None:
    app, idempotency = fastapi(unserved="allow")
    kept: list[Any] = [idempotency.guard()(lambda: None)]
    asyncio.run(start(app))
    router = APIRouter()

    @router.post("/pay")
    async def pay() -> None: ...

    kept += [idempotency.guard()(pay)]
    app.include_router(router)
    told(app, "pay", "bare function")
    with pytest.raises(ConfigurationError, match="unserved"):
        fastapi(unserved="maybe")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "CHARGE"])
def test_fastapi_guards_every_unsafe_method(method: str) -> None:
    app, idempotency = fastapi()

    @app.api_route("/pay", methods=["POST", method])
    @idempotency.guard()
    async def pay() -> None:
        RAN.append(1)

    async def ask() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            asked = [await client.request(method, "/pay", headers=h) for h in (KEY, KEY, {})]
        return [answer.status_code for answer in asked]

    RAN.clear()
    assert asyncio.run(ask()) == [200, 200, 400]
    assert RAN == [1]


# --- Flask ----------------------------------------------------------------------------------------


def flask(**options: Any) -> Flask:
    app = Flask("x")
    app.testing = True
    FlaskIdempotency(app, once=Once("memory://"), caller=lambda: "me", close=False, **options)
    return app


def flask_told(app: Flask, *words: str) -> None:
    RAN.clear()
    extension = app.extensions["oncekey"]
    for ask in (lambda: app.test_client().post("/pay", headers=KEY), lambda: extension.check(app)):
        with pytest.raises(ConfigurationError) as error:
            ask()
        for word in words:
            assert word in str(error.value)
    with pytest.raises(ConfigurationError, match=words[0]):
        find(app)
    assert RAN == []


def test_flask_wrong_order_is_refused_at_import() -> None:
    app = flask()
    with pytest.raises(ConfigurationError, match=r"pay \(.*test_guarded_views.py:\d+\)"):

        @idempotent()
        @app.post("/pay")
        def pay() -> str:
            return "paid"


@pytest.mark.parametrize("between", [None, logged, bare])
def test_flask_wrong_order_on_a_blueprint_is_refused_at_the_first_request(between: Any) -> None:
    app, views = flask(), Blueprint("views", __name__)

    @views.post("/pay")
    def pay() -> str:
        RAN.append(1)
        return "paid"

    wrong = idempotent()(between(pay) if between else pay)
    app.register_blueprint(views)
    flask_told(app, "pay", "bare function", "below @app.post")
    assert wrong is not pay


def test_flask_wrong_order_in_an_app_without_the_extension() -> None:
    app = Flask("x")
    app.testing = True

    @idempotent()
    @app.post("/pay")
    def pay() -> str:
        RAN.append(1)
        return "paid"

    with pytest.raises(ConfigurationError, match="bare function"):
        app.test_client().post("/pay", headers=KEY)


def test_flask_a_guarded_function_that_no_route_serves() -> None:
    app = flask()

    @idempotent()
    def pay() -> str:
        RAN.append(1)
        return "paid"

    app.add_url_rule("/read", view_func=pay, methods=["GET"])
    flask_told(app, "pay", "no route serves it")
    app = flask()
    app.add_url_rule("/pay", view_func=pay, methods=["POST"])
    assert app.test_client().post("/pay", headers=KEY).text == "paid"
    assert flask(unserved="allow").test_client().post("/pay").status_code == 404


def card() -> type[MethodView]:
    """A class whose methods are decorated one by one."""

    class Card(MethodView):
        init_every_request = False

        def get(self) -> str:
            return "read"

        @idempotent()
        def post(self) -> str:
            return self._ran()

        @logged
        @idempotent(required=False)
        def put(self) -> str:
            return self._ran()

        def delete(self) -> str:
            return self._ran()

        def _ran(self) -> str:
            RAN.append(1)
            return "guarded" if current_attempt() else "passed"

    return Card


def test_flask_methods_of_a_class_are_guarded_one_by_one() -> None:
    app = flask()
    app.add_url_rule("/card", view_func=card().as_view("card"))
    client = app.test_client()
    RAN.clear()
    for method, text in (("POST", "guarded"), ("PUT", "guarded"), ("DELETE", "passed")):
        key = {"Idempotency-Key": method}
        form = {"cents": "5"}
        first, again = (client.open("/card", method=method, headers=key, data=form) for _ in "12")
        assert (first.text, again.text) == (text, text)
        assert ("X-Idempotency-Replayed" in again.headers) == (text == "guarded")
    assert len(RAN) == 4
    assert client.post("/card").status_code == 400
    assert client.get("/card", headers=KEY).text == "read"
    assert [(one.methods, one.rule.required) for one in find(app).guarded] == [
        (["POST"], True),
        (["PUT"], False),
    ]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "CHARGE"])
def test_flask_guards_every_unsafe_method(method: str) -> None:
    app = flask()

    @app.route("/pay", methods=["GET", method])
    @idempotent()
    def pay() -> str:
        RAN.append(1)
        return "paid"

    RAN.clear()
    client = app.test_client()
    asked = [client.open("/pay", method=method, headers=h).status_code for h in (KEY, KEY, {})]
    assert (asked, RAN) == ([200, 200, 400], [1])
    assert client.get("/pay").text == "paid"


def test_classes_are_not_decorated() -> None:
    with pytest.raises(ConfigurationError, match="class"):
        idempotent()(Flask)
    with pytest.raises(ConfigurationError, match="class"):
        fastapi()[1].guard()(Flask)
