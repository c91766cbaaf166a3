"""Doctor tells what commits in a Flask app, before and after an outcome is stored.

The other frameworks are in test_app_checks.py and tests/http/test_django_outer_layers.py.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask import request as flask_request
from flask.views import MethodView
from tests.doctor.findings import by_check
from tests.http.outer_layers import HARMLESS, transactional

from oncekey import Once
from oncekey.core.guarantees import Guarantee, Level
from oncekey.doctor.app_checks import app_findings
from oncekey.http.flask import Idempotency as FlaskIdempotency
from oncekey.http.flask import idempotent
from oncekey.http.rules import Rule
from oncekey.stores import sqlite
from oncekey.stores.inspection import Finding, Severity

DAY = 86_400_000_000
GOOD = Guarantee(Level.TRANSACTIONAL, "on disk")
Check = Callable[[Any], list[Finding]]


@pytest.fixture(autouse=True)
def _collect_views() -> Iterator[None]:
    """A decorator belongs to no app, so a view that one test leaves is unserved in the next."""
    yield
    gc.collect()


def empty() -> str:
    return ""


def unguarded() -> str:
    return ""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/keys.db"


@pytest.fixture
def check(url: str) -> Check:
    return lambda app: list(app_findings(app, sqlite, url, GOOD, DAY))


@pytest.fixture
def flask_shop(url: str) -> Iterator[Any]:
    app = Flask("shop")
    with Once(url) as once:
        FlaskIdempotency(app, once=once, caller=lambda: flask_request.headers["x-account"])

        @app.post("/charges")
        @idempotent()
        def charge() -> str:
            return ""

        yield app


def test_doctor_knows_that_a_guarded_route_of_flask_calls_its_hooks_first(
    flask_shop: Any, check: Check
) -> None:
    @flask_shop.after_request  # type: ignore[untyped-decorator]
    def commit_orders(response: Any) -> Any:
        flask_request.session.commit()  # type: ignore[attr-defined]
        return response

    found = by_check(check(flask_shop))["app.late-commits"]
    assert found.severity is Severity.OK
    assert "commit_orders" in found.what


@pytest.mark.parametrize("hook", ["teardown_request", "teardown_appcontext"])
def test_doctor_tells_of_a_teardown_function_that_commits(
    flask_shop: Any, check: Check, hook: str
) -> None:
    """After a response that is longer than its limit it is called by Flask, too late."""

    def end_session(error: Any) -> None:
        flask_request.session.commit()  # type: ignore[attr-defined]

    getattr(flask_shop, hook)(end_session)
    found = by_check(check(flask_shop))["app.late-commits"]
    assert found.severity is Severity.INFO
    assert "end_session" in found.what


@pytest.mark.parametrize("is_class", [False, True])
def test_doctor_names_a_wsgi_middleware_around_guarded_routes_that_commits(
    flask_shop: Any, check: Check, is_class: bool
) -> None:
    class CommitLate:
        def __init__(self, app: Any) -> None:
            self.app = app

        def __call__(self, environ: Any, start_response: Any) -> Any:
            answer = self.app(environ, start_response)
            environ["session"].commit()
            return answer

    def commit_late(inner: Any) -> Any:
        def commit_after(environ: Any, start_response: Any) -> Any:
            answer = inner(environ, start_response)
            environ["session"].commit()
            return answer

        return commit_after

    flask_shop.wsgi_app = (CommitLate if is_class else commit_late)(flask_shop.wsgi_app)
    found = by_check(check(flask_shop))["app.late-commits"]
    assert found.severity is Severity.WARNING
    assert ("CommitLate" if is_class else "commit_after") in found.what


def test_doctor_names_nothing_in_a_flask_app_that_commits_in_its_views(
    flask_shop: Any, check: Check
) -> None:
    class Plain:
        def __init__(self, app: Any) -> None:
            self.app = app

        def __call__(self, environ: Any, start_response: Any) -> Any:
            return self.app(environ, start_response)

    flask_shop.wsgi_app = Plain(flask_shop.wsgi_app)
    assert by_check(check(flask_shop))["app.late-commits"].severity is Severity.OK


def test_doctor_names_a_decorator_around_a_guarded_view_of_flask_that_commits(
    flask_shop: Any, check: Check
) -> None:
    def place() -> str:
        return ""

    flask_shop.post("/orders")(transactional(idempotent()(place)))
    found = by_check(check(flask_shop))["app.late-commits"]
    assert found.severity is Severity.WARNING
    assert found.what.startswith("transactional.<locals>.committing (")
    assert "place (" in found.what
    assert "@idempotent above" in found.mend


def test_doctor_names_a_view_class_of_flask_that_commits_around_its_guarded_method(
    flask_shop: Any, check: Check
) -> None:
    class Orders(MethodView):
        def dispatch_request(self, **kwargs: Any) -> Any:
            answer = super().dispatch_request(**kwargs)
            flask_request.session.commit()  # type: ignore[attr-defined]
            return answer

        @idempotent()
        def post(self) -> str:
            return ""

    flask_shop.add_url_rule("/orders", view_func=Orders.as_view("orders"))
    found = by_check(check(flask_shop))["app.late-commits"]
    assert found.severity is Severity.WARNING
    assert "Orders.dispatch_request (" in found.what
    assert "Orders.post (" in found.what


@pytest.mark.parametrize("harmless", HARMLESS)
def test_doctor_names_no_decorator_of_a_guarded_view_that_does_not_commit_late(
    flask_shop: Any, check: Check, harmless: Any
) -> None:
    flask_shop.post("/orders")(harmless(idempotent()(empty)))
    flask_shop.post("/unguarded", endpoint="unguarded")(transactional(unguarded))
    assert by_check(check(flask_shop))["app.late-commits"].severity is Severity.OK


def test_doctor_knows_that_rules_are_outside_of_the_decorators_of_flasks_views(
    url: str, check: Check
) -> None:
    app = Flask("shop")
    with Once(url) as once:
        FlaskIdempotency(app, once=once, caller=lambda environ: "me", rules=[Rule()])
        app.post("/orders")(transactional(idempotent()(empty)))
        assert by_check(check(app))["app.late-commits"].severity is Severity.OK
