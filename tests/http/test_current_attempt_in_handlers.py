"""Attempts and steps in handlers of every adapter: the current ones are the request's own and gone
afterwards, and what a step gave is there when its handler runs again.

Each app is served by one thread or one loop, so that what a request left behind would be seen by
the next one.
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
NOWHERE = {"key": None, "same": True, "step": None, "in step": None}
PATHS = {
    "asgi": ["/here", "/stream", "/later"],
    "fastapi": ["/here", "/blocking", "/later", "/stream"],
    "fastapi-middleware": ["/here", "/blocking", "/later", "/stream"],
    "wsgi": ["/here", "/stream"],
    "flask": ["/here", "/stream"],
    "django": ["/here"],
    "django-middleware": ["/here"],
}


@pytest.fixture(scope="module", params=[*ON_LOOPS, *IN_THREADS])
def running(request: pytest.FixtureRequest) -> Iterator[tuple[str, ServedApp]]:
    kind: type[HttpServer] = Uvicorn if request.param in ON_LOOPS else Gunicorn
    require(lambda: kind("x:y"))
    options: dict[str, Any] = {"threads": 1} if kind is Gunicorn else {}
    env = {"GUARDED_KIND": request.param}
    with serve_app(kind, APP, env=env, **options) as made:
        yield request.param, made


def asked(app: ServedApp, method: str, path: str, key: str | None = None) -> dict[str, Any]:
    with app.connect() as connection:
        response = app.request_on(connection, path, key, {} if key else None, method=method)
    assert response.status == 200, response.body
    said: dict[str, Any] = json.loads(response.body)
    return said


def test_a_handler_sees_the_attempt_of_its_request(running: tuple[str, ServedApp]) -> None:
    kind, app = running
    for path in PATHS[kind]:
        key = app.fresh_key()
        step = "pay" if path == "/here" else None
        expected = {"key": key, "same": True, "step": None, "in step": step}
        assert (path, asked(app, "POST", path, key)) == (path, expected)
        assert (path, asked(app, "POST", path, key)) == (path, expected)  # the replay


def test_it_is_gone_afterwards(running: tuple[str, ServedApp]) -> None:
    kind, app = running
    asked(app, "POST", "/here", app.fresh_key())
    assert asked(app, "GET", "/here") == NOWHERE
    if "/later" in PATHS[kind]:
        asked(app, "POST", "/later", app.fresh_key())
        file = app.folder / "later"
        wait_until(file.exists, "the background task has looked")
        assert json.loads(file.read_text()) == NOWHERE


def test_a_handler_that_runs_again_gets_what_its_step_gave(running: tuple[str, ServedApp]) -> None:
    _, app = running
    key = app.fresh_key()
    first, again = app.post("/again", key, {}), app.post("/again", key, {})
    assert (first.status, json.loads(first.body)) == (503, {"number": 1})
    assert (again.status, json.loads(again.body)) == (200, {"number": 1})
