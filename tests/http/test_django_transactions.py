"""A Django view's rows, its key and its answer commit together, on PostgreSQL and on SQLite."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import psycopg
import pytest
from tests.http.app_server import ServedApp, is_replay, serve_app
from tests.http.socket_client import Response
from tests.support.postgres_stores import server
from tests.support.servers import require
from tests.support.servers.http_servers import Gunicorn
from tests.support.servers.processes import fresh_name, wait_until

DJANGO = "tests.http.wsgi_apps.django_app:app"


class Shop(NamedTuple):
    """The app, and what others see of its rows."""

    app: ServedApp
    send: Callable[[str], list[Any]]
    records: str

    def rows(self) -> list[str]:
        return [item for (item,) in self.send("SELECT item FROM orders")]


def on_postgres() -> Iterator[Shop]:
    url = server().create_database(fresh_name("django"))

    def send(sql: str) -> list[Any]:
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    with serve_app(Gunicorn, DJANGO, threads=8, env={"GUARDED_STORE": url}) as app:
        yield Shop(app, send, "oncekey.records")


def on_sqlite() -> Iterator[Shop]:
    with serve_app(Gunicorn, DJANGO, threads=8) as app:

        def send(sql: str) -> list[Any]:
            connection = sqlite3.connect(app.folder / "keys.db", timeout=20)
            try:
                with connection:
                    return connection.execute(sql).fetchall()
            finally:
                connection.close()

        yield Shop(app, send, "oncekey_records")


STORES = {"postgres": on_postgres, "sqlite": on_sqlite}


@pytest.fixture(scope="module", params=STORES)
def running(request: pytest.FixtureRequest) -> Iterator[Shop]:
    require(lambda: Gunicorn("x:y"))
    for shop in STORES[request.param]():
        shop.send("CREATE TABLE orders (item text)")
        yield shop


@pytest.fixture
def shop(running: Shop) -> Shop:
    running.app.reset()
    running.send("DELETE FROM orders")
    return running


def test_rows_and_response_are_committed_together(shop: Shop) -> None:
    key = shop.app.fresh_key()
    first, again = shop.app.post("/buy/book", key, {}), shop.app.post("/buy/book", key, {})
    assert (first.status, first.body) == (again.status, again.body)
    assert first.one("Location") == again.one("Location") == "/orders/book"
    assert (first.status, is_replay(first), is_replay(again)) == (201, False, True)
    assert shop.rows() == ["book"]
    assert shop.app.effects("buy") == 1
    assert shop.app.effects("committed book") == 1
    assert shop.app.post("/buy/book", key, {"other": 1}).status == 422


@pytest.mark.parametrize(("how", "status"), [("poor", 402), ("missing", 404)])
def test_4xx_response_is_stored_and_its_rows_are_rolled_back(
    shop: Shop, how: str, status: int
) -> None:
    key = shop.app.fresh_key()
    answers = [shop.app.post(f"/buy/{how}", key, {}) for _ in range(2)]
    assert [answer.status for answer in answers] == [status, status]
    assert answers[0].body == answers[1].body
    assert is_replay(answers[1])
    assert shop.rows() == []
    assert shop.app.effects("buy") == 1
    assert shop.app.effects("committed") == 0, "what was to be done on commit was done"


@pytest.mark.parametrize(("how", "status"), [("fails", 500), ("raises", 500), ("limited", 429)])
def test_failure_leaves_no_rows_and_frees_the_key(shop: Shop, how: str, status: int) -> None:
    key = shop.app.fresh_key()
    assert shop.app.post("/buy/ink", shop.app.fresh_key(), {}).status == 201
    count = f"SELECT count(*) FROM {shop.records}"  # noqa: S608
    before = shop.send(count)
    shop.app.reset()
    for runs in (1, 2):
        answer = shop.app.post(f"/buy/{how}", key, {})
        assert (answer.status, is_replay(answer)) == (status, False)
        assert b"s3cret" not in answer.body
        assert shop.app.effects("buy") == runs
    assert shop.rows() == ["ink"]
    assert shop.send(count) == before, "not even a trace of the claim"
    assert shop.app.effects("committed") == 0


def test_i1_eight_concurrent_duplicates_run_once(shop: Shop) -> None:
    key = shop.app.fresh_key()
    start = threading.Barrier(8)

    def ask(_: int) -> Response:
        with shop.app.connect() as connection:
            start.wait()
            return shop.app.request_on(connection, "/buy/pen", key, {})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert {answer.status for answer in answers} <= {201, 409}
    assert sum(answer.status == 201 and not is_replay(answer) for answer in answers) == 1
    assert shop.rows() == ["pen"]
    assert is_replay(shop.app.post("/buy/pen", key, {}))


def test_i4_killed_server_leaves_neither_rows_nor_a_claim(shop: Shop) -> None:
    """Killed with its rows written and not committed: gone, and the next retry runs at once."""
    key = shop.app.fresh_key()
    with shop.app.connect() as connection:
        connection.send_request("POST", "/buy/gated", shop.app.headers(key), b"{}")
        shop.app.wait_at_gate("buy")
        shop.app.server.kill()
    shop.app.open_gate("buy")
    shop.app.server.start()
    assert shop.rows() == []
    answers: list[Response] = []

    def is_through() -> bool:
        answers.append(shop.app.post("/buy/gated", key, {}))
        return answers[-1].status == 201

    wait_until(is_through, "the database has noticed that its client is gone")
    assert not is_replay(answers[-1])
    assert {json.loads(answer.body).get("status", 201) for answer in answers} <= {201, 409}
    assert shop.rows() == ["gated"]


def test_middleware_with_transaction_commits_every_view_with_its_key() -> None:
    with serve_app(Gunicorn, DJANGO, env={"GUARDED_KIND": "middleware-transaction"}) as app:
        connection = sqlite3.connect(app.folder / "keys.db", isolation_level=None)
        connection.execute("CREATE TABLE orders (item text)")
        for how, status, runs in (("book", 201, 1), ("poor", 402, 1), ("raises", 500, 2)):
            answers = [app.post(f"/buy/{how}", f"key-{how}", {}) for _ in range(2)]
            assert [answer.status for answer in answers] == [status, status]
            assert app.effects(f"buy {how}") == runs
        assert connection.execute("SELECT item FROM orders").fetchall() == [("book",)]
        assert app.effects("committed") == 1
        connection.close()


def test_atomic_requests_need_a_view_in_a_transaction() -> None:
    """Else its rows would be committed when its answer is stored already."""
    with serve_app(Gunicorn, DJANGO, env={"GUARDED_KIND": "atomic"}) as app:
        with sqlite3.connect(app.folder / "keys.db") as connection:
            connection.execute("CREATE TABLE orders (item text)")
        connection.close()
        assert app.post("/charges", "a", {}).status == 500
        assert "ATOMIC_REQUESTS" in app.server.log
        assert app.effects() == 0
        assert [app.post("/buy/poor", "b", {}).status for _ in range(2)] == [402, 402]
        assert [is_replay(app.post("/buy/book", "c", {})) for _ in range(2)] == [False, True]
        assert (app.effects("buy poor"), app.effects("buy book")) == (1, 1)
