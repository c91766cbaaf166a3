"""`python -m bench dashboard`: the dashboard's pages on large stores, beside an indexed SELECT.

A million rows on SQLite and ten million on PostgreSQL, with some open keys among the newest. Pages
are asked of the ASGI app itself, without a socket; the SELECT of one record by its id runs on the
same event loop and machine, in turns with them. `ONCEKEY_BENCH_ROWS` sets another number of rows
for PostgreSQL.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
from tests.dashboard.sample_keys import fill

from bench.figures import Ratio, Report, Timing, median, progress
from bench.postgres import large_table
from bench.postgres import server as servers
from oncekey.dashboard import Dashboard
from oncekey.engine.store_urls import blocking_store
from oncekey.stores.sql_files import load_queries

SQLITE_ROWS = 1_000_000
POSTGRES_ROWS = int(os.environ.get("ONCEKEY_BENCH_ROWS", "10000000"))
ROUNDS = 15
SELECTS = 200
WANTED_MS = 200.0
TOKEN = "a token for the benchmark"
SQL = load_queries("bench", "dashboard.sql")

Contestants = dict[str, Callable[[], Awaitable[object]]]


def run() -> list[Report]:
    with tempfile.TemporaryDirectory() as folder:
        reports = [_sqlite(Path(folder) / "large.db")]
    with servers.started() as server:
        url = large_table.make(server, "large", live=POSTGRES_ROWS)
        reports.append(_postgres(url))
    return reports


def _sqlite(path: Path) -> Report:
    url = f"sqlite:///{path}"
    store = blocking_store(url)
    with sqlite3.connect(path) as connection:
        connection.execute(SQL["fill"], {"rows": SQLITE_ROWS, "now": time.time_ns() // 1_000})
    progress(f"SQLite: {SQLITE_ROWS:,} rows")
    ids = fill(store)
    store.close()

    async def measure() -> dict[str, Timing]:
        connection.execute("PRAGMA query_only = on")

        async def select() -> None:
            for _ in range(SELECTS):
                connection.execute(SQL["by_id"], (bytes.fromhex(ids["http"]),)).fetchone()

        return await _in_turns(url, ids, select)

    timings = asyncio.run(measure())
    connection.close()
    return _report(f"Dashboard on SQLite with {SQLITE_ROWS:,} rows", timings)


def _postgres(url: str) -> Report:
    store = blocking_store(url)
    ids = fill(store)
    store.close()

    async def measure() -> dict[str, Timing]:
        connection = await asyncpg.connect(url)
        statement = await connection.prepare(SQL["postgres_by_id"])

        async def select() -> None:
            for _ in range(SELECTS):
                await statement.fetch(ids["http"])

        timings = await _in_turns(url, ids, select)
        await connection.close()
        return timings

    timings = asyncio.run(measure())
    return _report(f"Dashboard on PostgreSQL with {POSTGRES_ROWS:,} rows", timings)


async def _in_turns(
    url: str, ids: dict[str, str], select: Callable[[], Awaitable[object]]
) -> dict[str, Timing]:
    app = Dashboard(url, token=TOKEN)
    cookie = f"{app._access.cookie_name}={app._access.new_cookie()}"
    paths = {
        "overview": "/",
        "search, everything": "/keys",
        "search, by tag": f"/keys?tag={ids['steps'][:12]}",
        "search, by scope": "/keys?scope=acct_2",
        "search, by route and state": "/keys?route=POST%20/charges&state=unknown",
        "one key": f"/keys/{ids['steps']}",
    }
    seen: dict[str, list[float]] = {name: [] for name in ("SELECT by id", *paths)}
    for turn in range(ROUNDS + 1):
        start = time.perf_counter()
        await select()
        took = {"SELECT by id": (time.perf_counter() - start) / SELECTS}
        for name, path in paths.items():
            start = time.perf_counter()
            await _get(app, path, cookie)
            took[name] = time.perf_counter() - start
        if turn:  # the first one opens connections and compiles templates
            for name, seconds in took.items():
                seen[name].append(seconds * 1_000_000)
    await app.close()
    return {name: median(name, values) for name, values in seen.items()}


async def _get(app: Dashboard, path: str, cookie: str) -> None:
    """One page, as an ASGI server asks for it."""
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": path.replace("%20", " "),
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1"), (b"cookie", cookie.encode())],
        "client": ("127.0.0.1", 1),
    }
    statuses: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    if statuses != [200]:
        raise RuntimeError(f"{path}: {statuses}")


def _report(title: str, timings: dict[str, Timing]) -> Report:
    select = timings["SELECT by id"].us
    ratios = []
    for name, timing in timings.items():
        if name != "SELECT by id":
            ratios.append(Ratio(f"{name}, over a SELECT by id", timing.us / select))
            ratios.append(Ratio(name, timing.us / 1_000, WANTED_MS, at_most=True, unit=" ms"))
    return Report(title, list(timings.values()), ratios)
