"""The log tells of steps that outlive a failed commit: a row that was written in one of them is
rolled back, and a retry does not write it again. Only the user can know what a step wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends
from flask import Flask, Response, g
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from tests.http.failing_commits import Shop, is_replay, post, post_wsgi, sync_session
from tests.http.fastapi_set_up import GUARDS, GuardedApp
from tests.support.log_records import Written, written_log

from oncekey import Once, current_attempt
from oncekey.http.flask import Idempotency, idempotent
from oncekey.http.rules import Rule

KEY = "key-of-order-17"
PLACES = ["after_request", "answered", "teardown_request"]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def log() -> Iterator[Written]:
    with written_log("oncekey") as written:
        yield written


def told(log: Written) -> list[str]:
    return [line for line in log.lines if "steps stay finished" in line]


def assert_told_once(log: Written, *steps: str) -> None:
    (line,) = told(log)
    for part in (*steps, "http", "POST /orders", "a retry skips them", "not written again"):
        assert part in line, line
    assert re.search(r" \[[0-9a-f]{12}\] ", line), line
    assert KEY not in log.text, "a key is a secret"


def write_in_step(shop: Shop, session: Session, name: str = "insert") -> None:
    def insert(key: str) -> str:
        shop.write_order(session)
        return "inserted"

    attempt: Any = current_attempt()
    attempt.step(name, insert)


async def write_in_async_step(shop: Shop, session: Session) -> None:
    async def insert(key: str) -> str:
        shop.write_order(session)
        return "inserted"

    attempt: Any = current_attempt()
    await attempt.step("insert", insert)


# --- FastAPI --------------------------------------------------------------------------------------


def fastapi_app(shop: Shop, how: str, scope: Any = None, *, in_step: bool = True) -> Any:
    guarded = GuardedApp(how, retry_safe=True)
    dependency = sync_session(shop)
    depends = Depends(dependency) if scope is None else Depends(dependency, scope=scope)

    @guarded.post
    async def place(session: Session = depends) -> dict[str, str]:
        if in_step:
            await write_in_async_step(shop, session)
        else:
            shop.write_order(session)
        return {"order": "placed"}

    return guarded.app


@pytest.mark.parametrize("how", GUARDS)
def test_fastapi_tells_of_steps_that_a_failed_commit_leaves_behind(
    shop: Shop, how: str, log: Written
) -> None:
    app = fastapi_app(shop, how)
    assert post(app, KEY).status_code == 500
    assert_told_once(log, "'insert'")
    shop.open_account()
    again = post(app, KEY)
    assert (again.status_code, is_replay(again), shop.orders()) == (201, False, 0), "as it was told"
    assert len(told(log)) == 1


def test_fastapi_tells_of_them_too_if_the_session_ends_before_the_response(
    shop: Shop, log: Written
) -> None:
    assert post(fastapi_app(shop, "guard", "function"), KEY).status_code == 500
    assert_told_once(log, "'insert'")


@pytest.mark.parametrize("how", GUARDS)
def test_fastapi_tells_nothing_where_nothing_was_left_behind(
    shop: Shop, how: str, log: Written
) -> None:
    assert post(fastapi_app(shop, how, in_step=False), KEY).status_code == 500
    shop.open_account()
    assert post(fastapi_app(shop, how), KEY).status_code == 201
    assert told(log) == []


@pytest.mark.parametrize("how", GUARDS)
def test_handler_that_fails_after_a_step_is_what_steps_are_for(
    shop: Shop, how: str, log: Written
) -> None:
    guarded, depends = GuardedApp(how, retry_safe=True), Depends(sync_session(shop))

    @guarded.post
    async def place(session: Session = depends) -> dict[str, str]:
        await write_in_async_step(shop, session)
        raise ConnectionError("the second service does not answer")

    assert post(guarded.app, KEY).status_code == 500
    assert told(log) == []


# --- Flask and WSGI -------------------------------------------------------------------------------


def flask_app(shop: Shop, how: str, place: str, *, view_fails: bool = False) -> Flask:
    app = Flask("shop")
    rules = [Rule(retry_safe=True)] if how == "middleware" else None
    caller: Any = (lambda environ: "me") if rules else (lambda: "me")
    Idempotency(app, once=Once("memory://"), caller=caller, rules=rules)

    @app.before_request
    def begin() -> None:
        g.session = shop.make_session()

    @app.after_request
    def commit(response: Response) -> Response:
        try:
            if place != "teardown_request":
                g.session.commit()
        except IntegrityError:
            if place != "answered":
                raise
            return Response("not saved", 500)
        return response

    @app.teardown_request
    def end(error: BaseException | None) -> None:
        with g.session as session:
            if place == "teardown_request":
                session.rollback() if error else session.commit()

    def order() -> tuple[str, int]:
        write_in_step(shop, g.session, "insert")
        if view_fails:
            raise ConnectionError("the second service does not answer")
        return "placed", 201

    app.post("/orders")(order if rules else idempotent(retry_safe=True)(order))
    return app


@pytest.mark.parametrize("place", PLACES)
def test_flask_tells_of_steps_that_a_failed_commit_leaves_behind(
    shop: Shop, place: str, log: Written
) -> None:
    app = flask_app(shop, "decorator", place)
    assert post_wsgi(app, KEY).status_code == 500
    assert_told_once(log, "'insert'")


def test_wsgi_tells_of_steps_that_a_failed_commit_leaves_behind(shop: Shop, log: Written) -> None:
    assert post_wsgi(flask_app(shop, "middleware", "teardown_request"), KEY).status_code == 500
    assert_told_once(log, "'insert'")


@pytest.mark.parametrize("how", ["decorator", "middleware"])
def test_view_that_fails_after_a_step_is_what_steps_are_for(
    shop: Shop, how: str, log: Written
) -> None:
    app = flask_app(shop, how, "teardown_request", view_fails=True)
    assert post_wsgi(app, KEY).status_code == 500
    assert told(log) == []
