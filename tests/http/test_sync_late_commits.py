"""I16 in Flask and WSGI: what the app does after its view belongs to the attempt. If a COMMIT there
fails, so does the attempt, and no retry gets a success."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, Response, after_this_request, g, stream_with_context
from sqlalchemy.exc import IntegrityError
from tests.http.failing_commits import Shop, is_replay, post_wsgi

from oncekey import Once
from oncekey.http.flask import Idempotency, idempotent
from oncekey.http.rules import Rule
from oncekey.http.wsgi import IdempotencyWSGI

GUARDS = ["decorator", "middleware"]
PLACES = ["after_request", "after_this_request", "teardown_request", "teardown_appcontext"]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def flask_app(shop: Shop, how: str, **options: Any) -> tuple[Flask, Callable[[Any], Any]]:
    """An app whose views write into `g.session`, and the decorator of its guarded view."""
    app = Flask("shop")
    rules = [Rule(**options)] if how == "middleware" else None
    caller: Any = (lambda environ: "me") if rules else (lambda: "me")
    Idempotency(app, once=Once("memory://"), caller=caller, rules=rules)

    @app.before_request
    def open_session() -> None:
        g.session = shop.make_session()

    @app.teardown_appcontext
    def close_session(error: BaseException | None) -> None:
        g.session.close()

    def decorate(view: Any) -> Any:
        guarded = idempotent(**options)(view) if how == "decorator" else view
        return app.post("/orders")(guarded)

    return app, decorate


def commit_in(app: Flask, place: str) -> Callable[[], None]:
    """Have the app commit at this place; returns what a view calls for that."""

    def commit(response: Response) -> Response:
        g.session.commit()
        return response

    def commit_or_roll_back(error: BaseException | None) -> None:
        with g.session as session:  # one that raises keeps the others from being called
            session.rollback() if error else session.commit()

    if place == "after_request":
        app.after_request(commit)
    elif place == "teardown_request":
        app.teardown_request(commit_or_roll_back)
    elif place == "teardown_appcontext":
        app.teardown_appcontext(commit_or_roll_back)
    else:

        def begin() -> None:
            after_this_request(commit)

        return begin
    return lambda: None


def orders_app(shop: Shop, how: str, place: str, **options: Any) -> Flask:
    app, guarded = flask_app(shop, how, **options)
    begin = commit_in(app, place)

    @guarded
    def place_order() -> tuple[str, int]:
        begin()
        shop.write_order(g.session)
        return "placed", 201

    return app


@pytest.mark.parametrize("how", GUARDS)
@pytest.mark.parametrize("place", PLACES)
def test_i16_a_retry_runs_again_after_a_failed_commit(shop: Shop, how: str, place: str) -> None:
    app = orders_app(shop, how, place, retry_safe=True)
    assert post_wsgi(app).status_code == 500
    assert shop.orders() == 0
    shop.open_account()
    first, again = post_wsgi(app), post_wsgi(app)
    assert [one.status_code for one in (first, again)] == [201, 201]
    assert (is_replay(first), is_replay(again)) == (False, True)
    assert (shop.runs, shop.orders()) == (2, 1)


@pytest.mark.parametrize("how", GUARDS)
@pytest.mark.parametrize("place", PLACES)
def test_i16_a_failed_commit_is_stored_as_a_failure_where_nothing_runs_twice(
    shop: Shop, how: str, place: str
) -> None:
    app = orders_app(shop, how, place)
    assert post_wsgi(app).status_code == 500
    shop.open_account()
    assert post_wsgi(app).status_code == 500
    assert (shop.runs, shop.orders()) == (1, 0)


@pytest.mark.parametrize("how", GUARDS)
def test_i16_an_after_request_function_that_answers_a_failed_commit_is_believed(
    shop: Shop, how: str
) -> None:
    app, guarded = flask_app(shop, how, retry_safe=True)

    @app.after_request
    def commit(response: Response) -> Response:
        try:
            g.session.commit()
        except IntegrityError:
            g.session.rollback()
            return Response("not saved", 500)
        return response

    @guarded
    def place_order() -> tuple[str, int]:
        shop.write_order(g.session)
        return "placed", 201

    assert post_wsgi(app).status_code == 500
    shop.open_account()
    assert [post_wsgi(app).status_code for _ in range(2)] == [201, 201]
    assert (shop.runs, shop.orders()) == (2, 1)


def test_hooks_run_once_for_a_guarded_view_and_once_for_a_replay(shop: Shop) -> None:
    app, guarded = flask_app(shop, "decorator")
    events: list[str] = []

    @app.after_request
    def count(response: Response) -> Response:
        events.append("after")
        response.headers["X-Times"] = str(events.count("after"))
        return response

    app.teardown_request(lambda error: events.append("request ends"))
    app.teardown_appcontext(lambda error: events.append("context ends"))

    @guarded
    def view() -> str:
        events.append("view")
        return "done"

    first = post_wsgi(app)
    ends = ["after", "request ends", "context ends"]
    assert events == ["view", *ends]
    assert first.headers["X-Times"] == "1"
    again = post_wsgi(app)
    assert is_replay(again)
    assert events == ["view", *ends, *ends]
    assert again.headers["X-Times"] == "2"


@pytest.mark.parametrize("how", GUARDS)
def test_i16_a_stream_is_read_before_its_commit(shop: Shop, how: str) -> None:
    app, guarded = flask_app(shop, how, retry_safe=True)
    commit_in(app, "teardown_request")

    @guarded
    def place_order() -> Response:
        def parts() -> Iterator[str]:
            shop.write_order(g.session)
            yield "pla"
            yield "ced"

        return Response(stream_with_context(parts()), 201)

    assert post_wsgi(app).status_code == 500
    shop.open_account()
    first, again = post_wsgi(app), post_wsgi(app)
    assert (first.text, again.text) == ("placed", "placed")
    assert (is_replay(again), shop.runs, shop.orders()) == (True, 2, 1)


def test_i16_a_response_too_long_to_be_held_replays_no_success(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its context may be in use while it is sent, so it ends as Flask ends it."""
    monkeypatch.setattr("oncekey.http.wsgi.request_guard.HOLD_MAX_BYTES", 10)
    app, guarded = flask_app(shop, "decorator")
    commit_in(app, "teardown_request")

    @guarded
    def place_order() -> Response:
        def parts() -> Iterator[str]:
            for _ in range(5):
                shop.write_order(g.session)
                yield "placed"

        return Response(stream_with_context(parts()), 201)

    shop.open_account()
    assert post_wsgi(app).text == "placed" * 5
    assert shop.orders() == 5
    again = post_wsgi(app)
    assert (again.status_code, is_replay(again)) == (409, False)
    assert again.json()["code"] == "not-replayable"


# --- any WSGI app -------------------------------------------------------------------------------


class CommittingBody:
    """The body of a WSGI response that commits when the server closes it."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __iter__(self) -> Iterator[bytes]:
        yield b"placed"

    def close(self) -> None:
        with self._session:
            self._session.commit()


@pytest.mark.parametrize("how", ["close", "generator"])
def test_i16_a_commit_at_the_end_of_a_wsgi_response_is_waited_for(shop: Shop, how: str) -> None:
    def parts(session: Any) -> Iterator[bytes]:
        with session:
            yield b"placed"
            session.commit()

    def app(environ: Any, start_response: Any) -> Any:
        session = shop.make_session()
        shop.write_order(session)
        start_response("201 Created", [("Content-Type", "text/plain")])
        return CommittingBody(session) if how == "close" else parts(session)

    guarded = IdempotencyWSGI(
        app, Once("memory://"), caller=lambda environ: "me", rules=[Rule(retry_safe=True)]
    )
    assert post_wsgi(guarded).status_code == 500
    shop.open_account()
    assert [is_replay(post_wsgi(guarded)) for _ in range(2)] == [False, True]
    assert (shop.runs, shop.orders()) == (2, 1)
