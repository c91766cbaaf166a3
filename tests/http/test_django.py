"""Guarded Django views: error responses, templates, classes, views of the REST framework; and the
setting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.http.app_server import BOB, ServedApp, is_replay, serve_app
from tests.http.socket_client import Response
from tests.support.servers import require
from tests.support.servers.http_servers import Gunicorn, Uvicorn

from oncekey import ConfigurationError, Once

DJANGO = "tests.http.wsgi_apps.django_app:app"


@pytest.fixture(scope="module")
def running() -> Iterator[ServedApp]:
    require(lambda: Gunicorn("x:y"))
    with serve_app(Gunicorn, DJANGO, env={"GUARDED_KIND": "rest"}) as served:
        yield served


@pytest.fixture
def app(running: ServedApp) -> ServedApp:
    running.reset()
    return running


def twice(app: ServedApp, path: str, body: Any = None, **more: Any) -> tuple[Response, Response]:
    """Send one request twice; the responses are equal, and the first is no replay."""
    key = app.fresh_key()
    first, again = (app.post(path, key, {} if body is None else body, **more) for _ in range(2))
    assert not is_replay(first)
    assert (first.status, first.body) == (again.status, again.body)
    return first, again


def form(app: ServedApp, path: str, key: str, type: str, body: bytes) -> tuple[int, bool]:
    """Send a form: the status, and whether it was a replay."""
    headers = [one for one in app.headers(key) if one[0] != "Content-Type"]
    with app.connect() as connection:
        response = connection.request("POST", path, [*headers, ("Content-Type", type)], body)
    return response.status, is_replay(response)


UNBOUNDED = ("multipart/form-data", b"--x")
TOO_MANY_FIELDS = ("application/x-www-form-urlencoded", b"&".join([b"a=1"] * 1_001))

# --- plain views ----------------------------------------------------------------------------------


def test_404_that_django_makes_of_an_exception_is_replayed(app: ServedApp) -> None:
    first, again = twice(app, "/refuses/missing")
    assert (first.status, is_replay(again), app.effects()) == (404, True, 1)


def test_permission_denied_frees_the_key(app: ServedApp) -> None:
    first, again = twice(app, "/refuses/denied")
    assert (first.status, is_replay(again), app.effects()) == (403, False, 2)


def test_template_response_is_rendered_before_it_is_stored(app: ServedApp) -> None:
    first, again = twice(app, "/template")
    assert (first.body, is_replay(again), app.effects()) == (b"Hello Ada", True, 1)


def test_replay_has_no_default_content_type(app: ServedApp) -> None:
    first, again = twice(app, "/untyped")
    assert is_replay(again)
    assert first.one("Content-Type") is again.one("Content-Type") is None


@pytest.mark.parametrize("sent", [UNBOUNDED, TOO_MANY_FIELDS], ids=["malformed", "too-many"])
def test_400_to_a_form_that_a_view_cannot_parse_is_replayed(app: ServedApp, sent: Any) -> None:
    key = app.fresh_key()
    assert [form(app, "/charge-form", key, *sent) for _ in "12"] == [(400, False), (400, True)]
    assert app.effects("charge form") == 1


def test_class_view_is_guarded_by_its_dispatch(app: ServedApp) -> None:
    first, again = twice(app, "/orders")
    assert (first.status, is_replay(again), app.effects()) == (201, True, 1)
    with app.connect() as connection:
        assert connection.request("GET", "/orders").body == b"read"


# --- the REST framework ---------------------------------------------------------------------------


def test_rest_response_is_rendered_before_it_is_stored(app: ServedApp) -> None:
    first, again = twice(app, "/payments", {"cents": 5})
    assert (first.status, is_replay(again), app.effects()) == (201, True, 1)
    body = json.loads(first.body)
    assert body["cents"] == 5
    assert body["fence"] > 0
    for name in ("Location", "Content-Type", "Vary", "Allow"):
        assert first.one(name) == again.one(name) is not None
    assert 7 * 86_000 < int(again.one("X-Idempotency-Retention") or 0) <= 7 * 86_400


def test_400_of_a_rest_serializer_is_stored(app: ServedApp) -> None:
    first, again = twice(app, "/payments", {"cents": 0})
    assert (first.status, is_replay(again), app.effects()) == (400, True, 1)
    assert "cents" in json.loads(first.body)


@pytest.mark.parametrize("refused", [{"cents": 0}, b"{no JSON"], ids=["invalid", "malformed"])
def test_rest_view_that_refuses_before_it_acts_frees_its_key(app: ServedApp, refused: Any) -> None:
    key = app.fresh_key()
    answers = [app.post("/generic-orders", key, refused) for _ in range(2)]
    assert [(one.status, is_replay(one)) for one in answers] == [(400, False)] * 2
    assert app.effects() == 0
    assert [is_replay(app.post("/generic-orders", key, {"cents": 5})) for _ in "12"] == [
        False,
        True,
    ]
    assert app.effects("orders") == 1


@pytest.mark.parametrize("sent", [UNBOUNDED, TOO_MANY_FIELDS], ids=["malformed", "too-many"])
def test_form_that_the_rest_framework_cannot_parse(app: ServedApp, sent: Any) -> None:
    key = app.fresh_key()
    assert [form(app, "/generic-orders", key, *sent) for _ in "12"] == [(400, False)] * 2
    assert app.effects() == 0
    assert app.post("/generic-orders", key, {"cents": 5}).status == 201
    own = app.fresh_key()
    assert [form(app, "/own-orders", own, *sent) for _ in "12"] == [(400, False), (400, True)]
    assert app.effects("own orders") == 1


@pytest.mark.parametrize(
    ("path", "body"), [("/generic-orders", {"cents": 13}), ("/own-orders", {})]
)
def test_400_of_a_rest_view_that_acted_is_stored(app: ServedApp, path: str, body: Any) -> None:
    first, again = twice(app, path, body)
    assert (first.status, is_replay(again), app.effects()) == (400, True, 1)


def test_rest_view_may_say_that_it_did_nothing(app: ServedApp) -> None:
    key = app.fresh_key()
    answers = [app.post("/function", key, {"free": 1}) for _ in range(2)]
    assert [(one.status, is_replay(one)) for one in answers] == [(400, False)] * 2
    assert [is_replay(app.post("/function", key, {})) for _ in "12"] == [False, True]


def test_i15_rest_authentication_and_throttles_run_before_the_claim(app: ServedApp) -> None:
    key = app.fresh_key()
    app.post("/payments", key, {"cents": 5})
    mallory = ("Authorization", "Bearer mallory")
    stranger = app.post("/payments", key, {"cents": 5}, who=mallory)
    assert (stranger.status, json.loads(stranger.body)) == (401, {"detail": "who are you?"})
    busy = app.post("/payments", key, {"cents": 5}, headers=[("X-Busy", "1")])
    assert (busy.status, is_replay(busy)) == (429, False)
    assert app.effects() == 1
    assert not is_replay(app.post("/payments", key, {"cents": 5}, who=BOB))


def test_rest_actions_and_functions_are_guarded(app: ServedApp) -> None:
    assert is_replay(twice(app, "/refunds")[1])
    first, again = twice(app, "/refunds/lost")
    assert (first.status, is_replay(again)) == (404, True)
    assert json.loads(first.body) == {"detail": "no such refund"}
    first, again = twice(app, "/function", {"a": 1})
    assert (json.loads(first.body), is_replay(again)) == ({"sent": {"a": 1}}, True)
    assert (app.effects("refunds"), app.effects("lost"), app.effects("function")) == (1, 1, 1)


def test_rest_function_that_raises_is_not_run_again(app: ServedApp) -> None:
    key = app.fresh_key()
    assert app.post("/function", key, {"fail": 1}).status == 500
    again = app.post("/function", key, {"fail": 1})
    assert json.loads(again.body)["type"] == "/policy#failed"
    assert app.effects("function") == 1


# --- ASGI -----------------------------------------------------------------------------------------


def test_middleware_guards_under_asgi_too() -> None:
    """In a thread; chunked bodies are read there."""
    require(lambda: Uvicorn("x:y"))
    env = {"GUARDED_KIND": "middleware"}
    with serve_app(Uvicorn, "tests.http.wsgi_apps.django_app:asgi", env=env) as app:
        first, again = twice(app, "/charges", {"a": 1})
        assert (first.status, is_replay(again), app.effects()) == (201, True, 1)
        with app.connect() as connection:
            head = [*app.headers("key-1"), ("Transfer-Encoding", "chunked")]
            connection.send(
                connection.request_head("POST", "/charges", head), b'7\r\n{"a":1}\r\n0\r\n\r\n'
            )
            assert is_replay(connection.read_response())
        two = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
        assert app.post("/charges", None, {}, headers=two).status == 400
        assert app.effects() == 1


# --- the setting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({}, "caller"),
        ({"once": "memory://"}, "caller"),
        ({"once": "memory://", "caller": "os.path.sep"}, "caller"),
        ({"caller": str}, "once"),
        ({"caller": str, "once": lambda: 5}, "not an Once"),
        ({"caller": str, "once": "memory://", "rule": []}, "must be a dict"),
        ({"caller": str, "once": "memory://", "transaction": 5}, "alias"),
        (
            {
                "caller": str,
                "once": "memory://",
                "transaction": True,
                "rules": [{"retry_safe": False}],
            },
            "retry_safe",
        ),
    ],
)
def test_i15_invalid_setting_is_refused_at_once(setting: dict[str, Any], words: str) -> None:
    from oncekey.http.django.settings import DjangoSettings

    with pytest.raises(ConfigurationError, match=words):
        DjangoSettings({"close": False, **setting})


def test_setting_takes_a_store_url_and_a_dotted_path() -> None:
    from oncekey.http.django.settings import DjangoSettings

    checked = DjangoSettings({"once": "memory://", "caller": "builtins.str", "close": False})
    assert isinstance(checked.guard.once, Once)
    assert checked.caller is str


def test_decorator_refuses_invalid_options_and_views() -> None:
    from oncekey.http.django import idempotent

    with pytest.raises(ConfigurationError, match="path"):
        idempotent(path="/x")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="retry_safe"):
        idempotent(transaction=True, retry_safe=False)

    async def view(request: Any) -> None:
        return None

    with pytest.raises(ConfigurationError, match="async"):
        idempotent()(view)
