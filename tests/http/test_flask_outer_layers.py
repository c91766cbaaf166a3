"""I16 in Flask: a decorator above `@idempotent` that commits, or a class that does so around its
guarded method, comes too late. It may as well be what refuses strangers, so the guard stays inside
of it, and the log tells of it at the first request."""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.views import MethodView
from tests.http.failing_commits import Shop, is_replay, post_wsgi
from tests.http.outer_layers import (
    COMMITTING,
    HARMLESS,
    login_required,
    nameless,
    session,
    transactional,
    unit_of_work,
)

from oncekey import Once
from oncekey.http.flask import Idempotency, idempotent
from oncekey.http.rules import Rule

Warnings = Callable[[Any], list[str]]


@pytest.fixture(autouse=True)
def _collect_views() -> Iterator[None]:
    """A decorator belongs to no app, so a view that one test leaves would be judged in the next."""
    yield
    gc.collect()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Warnings:
    """Serves a view, and returns what the log tells about it."""

    def of(view: Any) -> list[str]:
        caplog.clear()
        app = make_app()
        app.add_url_rule("/orders", view_func=view, methods=["POST"])
        assert post_wsgi(app).status_code == 200
        return told(caplog)

    return of


def make_app(**options: Any) -> Flask:
    app = Flask("shop")
    caller: Any = (lambda environ: "me") if options else (lambda: "me")
    Idempotency(app, once=Once("memory://"), caller=caller, unserved="allow", **options)
    return app


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "oncekey" and record.levelno == logging.WARNING
    ]


def place() -> str:
    return "placed"


@pytest.mark.parametrize("name", COMMITTING)
def test_i16_a_decorator_above_the_guard_that_commits_is_told_at_the_first_request(
    warnings: Warnings, name: str
) -> None:
    guarded = login_required(COMMITTING[name](login_required(idempotent()(place))))
    guarded.__name__ = "place"
    (text,) = warnings(guarded)
    assert text.startswith(f"{name} ("), text
    assert "outer_layers.py:" in text
    assert "guard of place (" in text
    assert "Put @idempotent above the decorator" in text
    assert warnings(guarded) == []  # told once


def test_i16_all_layers_of_a_view_that_commit_are_told_in_one_warning(warnings: Warnings) -> None:
    (text,) = warnings(transactional(nameless(idempotent()(place))))
    assert "committing (" in text
    assert "committing_too (" in text
    assert "are outside of the guard of place (" in text


@pytest.mark.parametrize("harmless", HARMLESS)
def test_a_decorator_above_the_guard_that_does_not_commit_after_the_view_is_no_fault(
    warnings: Warnings, harmless: Any
) -> None:
    class Orders(MethodView):
        decorators = [harmless]  # noqa: RUF012

        def dispatch_request(self, **kwargs: Any) -> Any:
            session.last_seen = "now"
            return super().dispatch_request(**kwargs)

        @harmless  # type: ignore[untyped-decorator]
        @idempotent()
        def post(self) -> str:
            return "placed"

    assert warnings(Orders.as_view("orders")) == []
    assert warnings(harmless(idempotent()(place))) == []


@pytest.mark.parametrize("decorator", [*COMMITTING.values()])
def test_a_decorator_below_the_guard_may_commit(warnings: Warnings, decorator: Any) -> None:
    assert warnings(idempotent()(decorator(place))) == []


def test_i16_a_view_class_that_commits_around_its_guarded_method_is_told(
    warnings: Warnings,
) -> None:
    class Base(MethodView):
        @idempotent()
        def post(self) -> str:
            return "placed"

    class InDispatch(Base):
        def dispatch_request(self, **kwargs: Any) -> Any:
            response = super().dispatch_request(**kwargs)
            session.commit()
            return response

    class InDecorators(Base):
        decorators = [login_required, transactional]  # noqa: RUF012

    class OverDispatch(Base):
        dispatch_request = unit_of_work()(MethodView.dispatch_request)

    class AboveMethod(MethodView):
        @transactional
        @idempotent()
        def post(self) -> str:
            return "placed"

    for view_class, name in (
        (InDispatch, "InDispatch.dispatch_request ("),
        (InDecorators, "transactional.<locals>.committing ("),
        (OverDispatch, "unit_of_work ("),
        (AboveMethod, "transactional.<locals>.committing ("),
    ):
        (text,) = warnings(view_class.as_view("orders"))
        assert name in text, text
        assert "Base.post (" in text or "AboveMethod.post (" in text


def test_views_that_the_app_guards_from_outside_may_commit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = make_app(rules=[Rule()])
    app.add_url_rule("/orders", view_func=transactional(idempotent()(place)), methods=["POST"])
    assert post_wsgi(app).status_code == 200
    assert told(caplog) == []


def test_i16_a_commit_of_a_decorator_below_the_guard_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the warning tells to write."""
    shop = Shop(tmp_path)

    def committed(view: Any) -> Any:
        @functools.wraps(view)
        def committing() -> Any:
            with shop.make_session() as orders:
                response = view(orders)
                orders.commit()
                return response

        return committing

    app = make_app()

    @app.post("/orders")
    @idempotent(retry_safe=True)
    @committed
    def place_order(orders: Any) -> tuple[str, int]:
        shop.write_order(orders)
        return "placed", 201

    assert post_wsgi(app).status_code == 500
    shop.open_account()
    assert [is_replay(post_wsgi(app)) for _ in range(2)] == [False, True]
    assert (shop.runs, shop.orders(), told(caplog)) == (2, 1, [])
