"""Transactions of the app's own sessions on PostgreSQL, over a real socket; and the example."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psycopg
import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from tests.http.app_server import ServedApp, serve_app
from tests.http.socket_client import Response
from tests.support.postgres_stores import server
from tests.support.servers import require
from tests.support.servers.http_servers import Uvicorn
from tests.support.servers.processes import fresh_name, wait_until

from oncekey import AsyncOnce
from oncekey.http.fastapi import Idempotency

KINDS = pytest.mark.parametrize("kind", ["async", "blocking"])
ALL_KINDS = pytest.mark.parametrize("kind", ["async", "blocking", "begun", "stubborn"])


class Database:
    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)

    def all(self, sql: str) -> list[Any]:
        return [row[0] for row in self._connection.execute(sql.encode())]

    def things(self) -> list[str]:
        return self.all("SELECT what FROM things ORDER BY 1")

    def empty(self) -> None:
        self._connection.execute("CREATE TABLE IF NOT EXISTS things (what text)")
        self._connection.execute("TRUNCATE things")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    made = Database(server().create_database(fresh_name("fastapi")))
    made.empty()
    yield made
    made.close()


@pytest.fixture(scope="module")
def running(database: Database) -> Iterator[ServedApp]:
    require(lambda: Uvicorn("x:y"))
    app = "tests.http.fastapi_apps.transactions:app"
    with serve_app(Uvicorn, app, env={"DATABASE_URL": database.url}) as made:
        yield made


@pytest.fixture
def app(running: ServedApp, database: Database) -> ServedApp:
    running.reset()
    database.empty()
    return running


def replayed(response: Response) -> bool:
    return response.one("X-Idempotency-Replayed") == "true"


def twice(app: ServedApp, path: str) -> tuple[Response, Response]:
    key = app.fresh_key()
    return app.post(path, key), app.post(path, key)


@ALL_KINDS
def test_rows_record_and_response_commit_together(
    app: ServedApp, database: Database, kind: str
) -> None:
    first, again = twice(app, f"/{kind}/book")
    assert (first.status, first.body) == (200, b'{"what":"book"}')
    assert first.body == again.body
    assert (replayed(first), replayed(again)) == (False, True)
    assert database.things() == ["book"]
    assert app.effects("book") == 1


@ALL_KINDS
@pytest.mark.parametrize("how", ["404", "1409"])
def test_a_4xx_is_stored_and_its_rows_are_rolled_back(
    app: ServedApp, database: Database, kind: str, how: str
) -> None:
    first, again = twice(app, f"/{kind}/{how}")
    assert first.status == again.status == int(how) % 1000
    assert first.body == again.body
    assert first.body in (b'{"detail":"because"}', b"returned")
    assert replayed(again)
    assert app.effects(how) == 1
    assert database.things() == []


@ALL_KINDS
@pytest.mark.parametrize("how", ["500", "1500", "crash"])
def test_a_5xx_or_an_exception_rolls_back_and_frees_the_key(
    app: ServedApp, database: Database, kind: str, how: str
) -> None:
    first, again = twice(app, f"/{kind}/{how}")
    assert first.status == again.status == 500
    assert not replayed(again)
    assert first.one("X-Idempotency-Retention") is None
    assert app.effects(how) == 2
    assert database.things() == []


@KINDS
def test_a_response_that_fails_validation_rolls_back(
    app: ServedApp, database: Database, kind: str
) -> None:
    first, again = twice(app, f"/{kind}/wrong")
    assert first.status == again.status == 500
    assert app.effects("wrong") == 2
    assert database.things() == []


def test_the_sessions_dependency_sees_the_endpoints_exception(app: ServedApp) -> None:
    twice(app, "/async/crash")
    assert app.effects("dependency saw ValueError") == 2


def test_a_dependency_sees_the_exception_after_the_rollback(
    app: ServedApp, database: Database
) -> None:
    twice(app, "/stubborn/crash")
    assert app.effects("stubborn: committed") == 2, "there was nothing left to refuse"
    assert database.things() == []


@KINDS
def test_an_endpoint_that_commits_by_itself_is_an_error(
    app: ServedApp, database: Database, kind: str
) -> None:
    first, _ = twice(app, f"/{kind}/commits")
    assert first.status == 500
    assert database.things() == []


@KINDS
def test_i1_twenty_concurrent_requests_insert_one_row(
    app: ServedApp, database: Database, kind: str
) -> None:
    key = app.fresh_key()
    start = threading.Barrier(20)

    def ask(_: int) -> int:
        with app.connect() as connection:
            start.wait()
            return app.request_on(connection, f"/{kind}/once", key).status

    with ThreadPoolExecutor(20) as pool:
        statuses = set(pool.map(ask, range(20)))
    assert statuses <= {200, 409}
    assert replayed(app.post(f"/{kind}/once", key))
    assert database.things() == ["once"]


def test_i13_response_and_background_task_come_after_the_commit(
    app: ServedApp, database: Database
) -> None:
    assert app.post("/async/seen", app.fresh_key()).status == 200
    assert database.things() == ["seen"], "the answer came after the commit"
    wait_until(lambda: app.effects("task saw seen") == 1, "the task has run")
    assert app.effects("task saw seen 1") == 1


def test_i14_the_result_of_a_disconnected_client_is_committed(
    app: ServedApp, database: Database
) -> None:
    key = app.fresh_key()
    with app.connect() as connection:
        connection.send_request("POST", "/async/gated", app.headers(key))
        app.wait_at_gate("tx")
        busy = app.post("/async/gated", key)
        assert busy.status == 409
        connection.abort()
    app.open_gate("tx")
    wait_until(lambda: app.post("/async/gated", key).status == 200, "it has ended")
    assert replayed(app.post("/async/gated", key))
    assert database.things() == ["gated"]


def test_i14_a_cancelled_request_is_committed(database: Database) -> None:
    """By a server that cancels, or a timeout around the app."""
    database.empty()

    async def main() -> None:
        engine = create_async_engine(database.url.replace("://", "+asyncpg://"))
        idempotency = Idempotency(AsyncOnce(database.url), caller=lambda request: "acct")
        app = FastAPI()
        idempotency.attach(app)
        here, go = asyncio.Event(), asyncio.Event()

        async def get_session() -> AsyncIterator[AsyncSession]:
            async with AsyncSession(engine) as session:
                yield session

        @app.post("/")
        @idempotency.guard(transaction=get_session)
        async def run(session: AsyncSession = Depends(get_session)) -> None:  # noqa: B008
            await session.execute(text("INSERT INTO things VALUES ('kept')"))
            here.set()
            await go.wait()

        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://x"
        ) as client:
            request = asyncio.create_task(client.post("/", headers={"Idempotency-Key": "cut"}))
            await here.wait()
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
        go.set()
        await idempotency.end()
        await engine.dispose()

    asyncio.run(main())
    assert database.things() == ["kept"]


def test_a_streamed_response_writes_in_the_transaction(app: ServedApp, database: Database) -> None:
    first, again = twice(app, "/stream")
    assert first.body == again.body == b"part 0\npart 1\npart 2\n"
    assert database.things() == ["part"] * 3


# --- the example --------------------------------------------------------------------------------


def test_the_example_places_an_order_once() -> None:
    require(lambda: Uvicorn("x:y"))
    database = Database(server().create_database(fresh_name("fastapi")))
    environment = {"DATABASE_URL": database.url}
    try:
        with serve_app(Uvicorn, "examples.fastapi_sqlalchemy:app", env=environment) as app:
            _place_orders(app, database)
    finally:
        database.close()


def _place_orders(app: ServedApp, database: Database) -> None:
    book = {"item": "book", "cents": 500}
    first, again = (app.post("/orders", "order-1", book) for _ in range(2))
    assert (first.status, json.loads(first.body)) == (201, {**book, "id": 1})
    assert (again.body, replayed(again)) == (first.body, True)

    bad = ("Authorization", "Bearer mallory")
    assert app.post("/orders", "order-1", book, who=bad).status == 401

    dear = {"item": "car", "cents": 9_900}
    for _ in range(2):
        assert app.post("/orders", "order-2", dear).status == 402
    assert app.post("/orders", "order-3", {"item": "unicorn", "cents": 1}).status == 500
    assert app.post("/orders", "order-3", {"item": "pen", "cents": 1}).status == 201
    assert database.all("SELECT item FROM example_orders ORDER BY item") == ["book", "pen"]
