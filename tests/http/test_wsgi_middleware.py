"""`IdempotencyWSGI`: the ways of WSGI to send a response, and the middleware's options."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from tests.http.app_server import ServedApp, serve_app
from tests.support.servers import require
from tests.support.servers.http_servers import Gunicorn

from oncekey import AsyncOnce, ConfigurationError, Once, StoreUnavailable
from oncekey.http.inspection.policy_discovery import find_policy
from oncekey.http.rules import Rule
from oncekey.http.wsgi import IdempotencyWSGI


@pytest.fixture(scope="module")
def running() -> Iterator[ServedApp]:
    require(lambda: Gunicorn("x:y"))
    with serve_app(Gunicorn, "tests.http.wsgi_apps.plain_app:app") as served:
        yield served


@pytest.fixture
def app(running: ServedApp) -> ServedApp:
    running.reset()
    return running


def test_bytes_written_by_write_precede_the_returned_body(app: ServedApp) -> None:
    key = app.fresh_key()
    first, again = app.post("/writes", key, {}), app.post("/writes", key, {})
    assert first.body == again.body == b"one two three"
    assert app.effects("writes") == 1
    assert app.effects("close() was called") == 1


def test_response_restarted_after_an_error_is_stored(app: ServedApp) -> None:
    key = app.fresh_key()
    first, again = app.post("/restarts-early", key, {}), app.post("/restarts-early", key, {})
    assert (first.status, first.body) == (again.status, again.body) == (409, b"restarted")
    assert app.effects("restarts-early") == 1


@pytest.mark.parametrize(
    ("path", "closed"), [("/restarts-late", 0), ("/raises-in-stream", 1), ("/never-starts", 0)]
)
def test_incomplete_response_is_a_failure(app: ServedApp, path: str, closed: int) -> None:
    key = app.fresh_key()
    assert app.post(path, key, {}).status == 500
    again = app.post(path, key, {})
    assert json.loads(again.body)["type"] == "/policy#failed"
    assert b"s3cret" not in again.body
    assert app.effects(path[1:]) == 1
    assert app.effects("close() was called") == closed


# --- in this process ------------------------------------------------------------------------------


def environ(method: str = "POST", body: bytes = b"{}", **more: Any) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": method,
        "PATH_INFO": "/charges",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "HTTP_IDEMPOTENCY_KEY": "k",
        **more,
    }


class Start:
    status = ""

    def __call__(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        self.status = status


def test_unguarded_request_reaches_the_app_untouched() -> None:
    """The same environ, its input unread, and the app's own iterable."""
    seen = []
    parts = iter([b"x"])

    def app(given: dict[str, Any], start: Any) -> Iterable[bytes]:
        seen.append(given)
        return parts

    middleware = IdempotencyWSGI(
        app, Once("memory://"), caller=lambda environ: "me", rules=[Rule("/charges")], close=False
    )
    read, other = environ("GET"), environ(PATH_INFO="/other")
    for given in (read, other):
        assert middleware(given, Start()) is parts
        assert seen.pop() is given
        assert given["wsgi.input"].tell() == 0


def test_guarded_app_gets_an_environ_of_its_own() -> None:
    def app(given: dict[str, Any], start: Any) -> Iterable[bytes]:
        given["changed"] = True
        start("200 OK", [])
        return [given["wsgi.input"].read(), given["CONTENT_LENGTH"].encode()]

    middleware = IdempotencyWSGI(app, Once("memory://"), caller=lambda environ: "me", close=False)
    outer = environ(body=b"[1]", HTTP_TRANSFER_ENCODING="chunked")
    del outer["CONTENT_LENGTH"]
    outer["wsgi.input_terminated"] = True
    assert b"".join(middleware(outer, Start())) == b"[1]3"
    assert "changed" not in outer
    assert "oncekey.attempt" not in outer


def _never(environ: Any, start: Any) -> Iterable[bytes]:
    raise AssertionError


def test_middleware_without_a_caller_is_refused() -> None:
    with pytest.raises(TypeError, match="caller"):
        IdempotencyWSGI(_never, Once("memory://"))  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="caller"):
        IdempotencyWSGI(_never, Once("memory://"), caller=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be a Once"):
        IdempotencyWSGI(_never, AsyncOnce("memory://"), caller=str)  # type: ignore[arg-type]


@pytest.mark.parametrize("store_down", ["refuse", "run"])
def test_store_down_follows_the_rule(store_down: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def app(given: dict[str, Any], start: Any) -> Iterable[bytes]:
        assert given["oncekey.attempt"] is None
        start("200 OK", [])
        return [b"ran"]

    def down(*args: Any, **options: Any) -> None:
        raise StoreUnavailable("down", ambiguous=False)

    once = Once("memory://")
    monkeypatch.setattr(once, "run", down)
    rules = [Rule(store_down=store_down)]
    middleware = IdempotencyWSGI(app, once, caller=lambda environ: "me", rules=rules, close=False)
    start = Start()
    body = b"".join(middleware(environ(), start))
    if store_down == "run":
        assert (start.status, body, middleware.unprotected) == ("200 OK", b"ran", 1)
    else:
        assert start.status == "503 Service Unavailable"
        assert middleware.unprotected == 0


def test_exception_of_the_app_reaches_the_server() -> None:
    def app(given: dict[str, Any], start: Any) -> Iterable[bytes]:
        raise KeyError("mine")

    middleware = IdempotencyWSGI(app, Once("memory://"), caller=lambda environ: "me", close=False)
    with pytest.raises(KeyError, match="mine"):
        middleware(environ(), Start())


def test_exception_in_close_fails_the_run() -> None:
    """It comes before the outcome is stored, not when the response has gone."""

    class Parts(list[bytes]):
        def close(self) -> None:
            raise KeyError("mine")

    def app(given: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [])
        return Parts([b"x"])

    middleware = IdempotencyWSGI(app, Once("memory://"), caller=lambda environ: "me", close=False)
    with pytest.raises(KeyError, match="mine"):
        middleware(environ(), Start())
    start = Start()
    middleware(environ(), start)
    assert start.status == "500 Internal Server Error"


def test_rules_of_the_middleware_are_in_the_published_policy() -> None:
    rules = [Rule("/charges")]
    middleware = IdempotencyWSGI(
        _never, Once("memory://"), caller=lambda environ: "me", rules=rules, close=False
    )
    assert [route.rule for route in find_policy(middleware).routes] == rules
