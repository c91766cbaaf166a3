"""A Flask app whose routes do not serve a decorated function guarded is refused before it runs.

In the wrong order, with the guard above `@app.post`, the route has the undecorated function, which
would run unguarded without anybody noticing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Blueprint, Flask
from flask.views import MethodView
from tests.http.decorators import with_wraps, without_wraps

from oncekey import ConfigurationError, Once
from oncekey.http.flask import Idempotency, current_attempt, idempotent
from oncekey.http.inspection.policy_discovery import find_policy

KEY = {"Idempotency-Key": "k"}
RAN: list[int] = []


@pytest.fixture(autouse=True)
def _collect_views() -> Iterator[None]:
    """The decorator belongs to no app, so an unserved view of one test would fail the next."""
    yield
    gc.collect()


def make_app(**options: Any) -> Flask:
    app = Flask("x")
    app.testing = True
    Idempotency(app, once=Once("memory://"), caller=lambda: "me", close=False, **options)
    return app


def assert_refused(app: Flask, *words: str) -> None:
    RAN.clear()
    extension = app.extensions["oncekey"]
    for check in (
        lambda: app.test_client().post("/pay", headers=KEY),
        lambda: extension.check(app),
    ):
        with pytest.raises(ConfigurationError) as error:
            check()
        for word in words:
            assert word in str(error.value)
    with pytest.raises(ConfigurationError, match=words[0]):
        find_policy(app)
    assert RAN == []


def test_flask_wrong_order_is_refused_at_import() -> None:
    app = make_app()
    with pytest.raises(ConfigurationError, match=r"pay \(.*test_flask_guarded_views.py:\d+\)"):

        @idempotent()
        @app.post("/pay")
        def pay() -> str:
            return "paid"


@pytest.mark.parametrize("between", [None, with_wraps, without_wraps])
def test_flask_wrong_order_on_a_blueprint_is_refused_at_the_first_request(between: Any) -> None:
    app, views = make_app(), Blueprint("views", __name__)

    @views.post("/pay")
    def pay() -> str:
        RAN.append(1)
        return "paid"

    wrong = idempotent()(between(pay) if between else pay)
    app.register_blueprint(views)
    assert_refused(app, "pay", "bare function", "below @app.post")
    assert wrong is not pay


def test_flask_wrong_order_is_refused_in_an_app_without_the_extension() -> None:
    app = Flask("x")
    app.testing = True

    @idempotent()
    @app.post("/pay")
    def pay() -> str:
        RAN.append(1)
        return "paid"

    with pytest.raises(ConfigurationError, match="bare function"):
        app.test_client().post("/pay", headers=KEY)


def test_flask_guarded_function_that_no_route_serves_is_refused() -> None:
    app = make_app()

    @idempotent()
    def pay() -> str:
        RAN.append(1)
        return "paid"

    app.add_url_rule("/read", view_func=pay, methods=["GET"])
    assert_refused(app, "pay", "no route serves it")
    app = make_app()
    app.add_url_rule("/pay", view_func=pay, methods=["POST"])
    assert app.test_client().post("/pay", headers=KEY).text == "paid"
    assert make_app(unserved="allow").test_client().post("/pay").status_code == 404


def test_flask_app_is_not_refused_for_the_views_of_another_app() -> None:
    """A blueprint that one app leaves out, and apps that could not be made or are in the wrong
    order, are no reason to refuse another app."""
    left_out = Blueprint("left_out", __name__)

    @left_out.post("/pay")
    @with_wraps
    @idempotent()
    def pay() -> str:
        return "paid"

    half_made = Flask("half_made")
    half_made.post("/pay")(idempotent()(lambda: "paid"))
    wrong, views = make_app(), Blueprint("views", __name__)
    lost = idempotent()(views.post("/pay")(lambda: "paid"))
    wrong.register_blueprint(views)

    app = make_app()
    app.post("/note")(idempotent()(lambda: "noted"))
    assert app.test_client().post("/note", headers=KEY).text == "noted"
    app.extensions["oncekey"].check(app)
    assert len(find_policy(app).routes) == 1
    assert_refused(wrong, "bare function")
    assert lost is not None
    app = make_app()
    app.register_blueprint(left_out)
    assert app.test_client().post("/pay", headers=KEY).text == "paid"


def test_flask_blueprint_that_serves_only_get_does_not_count() -> None:
    app, views = make_app(), Blueprint("views", __name__)
    views.get("/pay")(idempotent()(lambda: "paid"))
    assert_refused(app, "no route serves it", 'Idempotency(..., unserved="allow")')


def card() -> type[MethodView]:
    """A class whose methods are decorated one by one."""

    class Card(MethodView):
        init_every_request = False

        def get(self) -> str:
            return "read"

        @idempotent()
        def post(self) -> str:
            return self._ran()

        @with_wraps
        @idempotent(required=False)
        def put(self) -> str:
            return self._ran()

        def delete(self) -> str:
            return self._ran()

        def _ran(self) -> str:
            RAN.append(1)
            return "guarded" if current_attempt() else "passed"

    return Card


def test_flask_methods_of_a_class_are_guarded_separately() -> None:
    app = make_app()
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
    assert [(one.methods, one.rule.required) for one in find_policy(app).routes] == [
        (["POST"], True),
        (["PUT"], False),
    ]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "CHARGE"])
def test_flask_guards_every_unsafe_method(method: str) -> None:
    app = make_app()

    @app.route("/pay", methods=["GET", method])
    @idempotent()
    def pay() -> str:
        RAN.append(1)
        return "paid"

    RAN.clear()
    client = app.test_client()
    statuses = [client.open("/pay", method=method, headers=h).status_code for h in (KEY, KEY, {})]
    assert (statuses, RAN) == ([200, 200, 400], [1])
    assert client.get("/pay").text == "paid"


def test_flask_decorated_class_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="class"):
        idempotent()(Flask)
