"""Guarded Flask views: error handlers, before_request and after_request, and the extension."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from flask import Flask
from tests.http.app_server import ServedApp, is_replay, serve_app
from tests.support.servers import require
from tests.support.servers.http_servers import Gunicorn

from oncekey import ConfigurationError, Once
from oncekey.http.flask import Idempotency, current_attempt, idempotent

FORM = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def running() -> Iterator[ServedApp]:
    require(lambda: Gunicorn("x:y"))
    with serve_app(Gunicorn, "tests.http.wsgi_apps.flask_app:app") as served:
        yield served


@pytest.fixture
def app(running: ServedApp) -> ServedApp:
    running.reset()
    return running


@pytest.mark.parametrize(("how", "status"), [("abort", 404), ("handled", 409)])
def test_response_of_an_error_handler_is_replayed(app: ServedApp, how: str, status: int) -> None:
    key = app.fresh_key()
    first, again = (app.post(f"/refuses/{how}", key, {}) for _ in range(2))
    assert (first.status, first.body) == (again.status, again.body)
    assert (first.status, is_replay(again), app.effects()) == (status, True, 1)


def test_abort_with_429_frees_the_key(app: ServedApp) -> None:
    key = app.fresh_key()
    assert [app.post("/refuses/limit", key, {}).status for _ in range(2)] == [429, 429]
    assert app.effects() == 2


def test_return_value_of_a_view_is_stored_as_a_response(app: ServedApp) -> None:
    key = app.fresh_key()
    first, again = app.post("/returns", key, {}), app.post("/returns", key, {})
    assert (first.status, again.status) == (202, 202)
    assert first.body == again.body
    assert first.one("Location") == again.one("Location") == "/r"
    assert first.one("Content-Type") == again.one("Content-Type") == "application/json"
    assert app.effects() == 1


def test_after_request_functions_run_for_replays_too(app: ServedApp) -> None:
    key = app.fresh_key()
    answers = [app.post("/returns", key, {}) for _ in range(2)]
    assert [answer.one("X-Later") for answer in answers] == ["1", "1"]


def test_i15_request_rejected_by_before_request_claims_nothing(app: ServedApp) -> None:
    key = app.fresh_key()
    app.post("/returns", key, {})
    banned = app.post("/returns", key, {}, who=("Authorization", "Bearer banned"))
    assert (banned.status, is_replay(banned)) == (403, False)
    assert json.loads(banned.body) == {"why": "banned"}


def test_form_parsed_by_before_request_is_compared(app: ServedApp) -> None:
    key = app.fresh_key()
    with app.connect() as connection:
        head = [*app.headers(key), ("Content-Type", FORM)]
        head = [pair for pair in head if pair != ("Content-Type", "application/json")]
        first = connection.request("POST", "/form", head, b"csrf=1&name=Ada")
        assert json.loads(first.body)["name"] == "Ada"
        assert is_replay(connection.request("POST", "/form", head, b"csrf=2&name=Ada"))
        assert connection.request("POST", "/form", head, b"csrf=2&name=Bob").status == 422
    assert app.effects() == 1


# --- in this process ------------------------------------------------------------------------------


def test_extension_refuses_invalid_options() -> None:
    once = Once("memory://")
    with pytest.raises(TypeError, match="caller"):
        Idempotency(Flask("x"), once=once)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="caller"):
        Idempotency(Flask("x"), once=once, caller=None, close=False)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="path"):
        idempotent(path="/x")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="store_down"):
        idempotent(store_down="maybe")
    app = Flask("x")
    Idempotency(app, once=once, caller=lambda: "me", close=False)
    with pytest.raises(ConfigurationError, match="already"):
        Idempotency(app, once=once, caller=lambda: "me", close=False)


def test_decorated_view_needs_the_extension() -> None:
    app = Flask("x")
    app.testing = True
    app.post("/x")(idempotent()(lambda: "x"))
    with pytest.raises(ConfigurationError, match="no Idempotency"):
        app.test_client().post("/x")


def test_only_the_methods_of_a_rule_are_guarded() -> None:
    app = Flask("x")
    once = Once("memory://")
    Idempotency(app, once=once, caller=lambda: "me", close=False)

    @app.route("/x", methods=["GET", "POST"])
    @idempotent()
    def view() -> str:
        return "guarded" if current_attempt() else "passed"

    client = app.test_client()
    assert client.get("/x").text == "passed"
    answers = [client.post("/x", headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert [answer.text for answer in answers] == ["guarded", "guarded"]
    assert "X-Idempotency-Replayed" in answers[1].headers
    once.close()
