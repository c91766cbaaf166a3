"""`current_attempt` and `current_step` in the handlers of every adapter: they are those of the
request, and None afterwards; and a step's result is kept for the handler's next run.

Each app is served by one thread or one loop, so that the next request would see what a request left
behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.http.app_server import ServedApp, serve_app
from tests.support.servers import require
from tests.support.servers.http_servers import Gunicorn, HttpServer, Uvicorn
from tests.support.servers.processes import wait_until

APP = "tests.http.apps.current_attempt:app"
ON_LOOPS = ("asgi", "fastapi", "fastapi-middleware")
IN_THREADS = ("wsgi", "flask", "django", "django-middleware")
NO_ATTEMPT = {"key": None, "same": True, "step": None, "in step": None}
PATHS = {
    "asgi": ["/current", "/stream", "/later"],
    "fastapi": ["/current", "/blocking", "/later", "/stream"],
    "fastapi-middleware": ["/current", "/blocking", "/later", "/stream"],
    "wsgi": ["/current", "/stream"],
    "flask": ["/current", "/stream"],
    "django": ["/current"],
    "django-middleware": ["/current"],
}


@pytest.fixture(scope="module", params=[*ON_LOOPS, *IN_THREADS])
def running(request: pytest.FixtureRequest) -> Iterator[tuple[str, ServedApp]]:
    kind: type[HttpServer] = Uvicorn if request.param in ON_LOOPS else Gunicorn
    require(lambda: kind("x:y"))
    options: dict[str, Any] = {"threads": 1} if kind is Gunicorn else {}
    env = {"GUARDED_KIND": request.param}
    with serve_app(kind, APP, env=env, **options) as served:
        yield request.param, served


def get_json(app: ServedApp, method: str, path: str, key: str | None = None) -> dict[str, Any]:
    with app.connect() as connection:
        response = app.request_on(connection, path, key, {} if key else None, method=method)
    assert response.status == 200, response.body
    value: dict[str, Any] = json.loads(response.body)
    return value


def test_current_attempt_in_a_handler_is_that_of_its_request(
    running: tuple[str, ServedApp],
) -> None:
    kind, app = running
    for path in PATHS[kind]:
        key = app.fresh_key()
        step = "pay" if path == "/current" else None
        expected = {"key": key, "same": True, "step": None, "in step": step}
        assert (path, get_json(app, "POST", path, key)) == (path, expected)
        assert (path, get_json(app, "POST", path, key)) == (path, expected)  # the replay


def test_current_attempt_is_none_after_the_handler(running: tuple[str, ServedApp]) -> None:
    kind, app = running
    get_json(app, "POST", "/current", app.fresh_key())
    assert get_json(app, "GET", "/current") == NO_ATTEMPT
    if "/later" in PATHS[kind]:
        get_json(app, "POST", "/later", app.fresh_key())
        file = app.folder / "later"
        wait_until(file.exists, "the background task has run")
        assert json.loads(file.read_text()) == NO_ATTEMPT


def test_handler_that_runs_again_gets_the_stored_result_of_its_step(
    running: tuple[str, ServedApp],
) -> None:
    _, app = running
    key = app.fresh_key()
    first, again = app.post("/again", key, {}), app.post("/again", key, {})
    assert (first.status, json.loads(first.body)) == (503, {"number": 1})
    assert (again.status, json.loads(again.body)) == (200, {"number": 1})
