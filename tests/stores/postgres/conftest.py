"""Runs scenarios with callers (see tests/support/caller_connections), and a schema for the views.

A connection costs more than most scenarios, so a caller stays open between tests, unless a scenario
has failed with it. Sync callers run without an event loop, because Django requires that.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from tests.support.caller_connections import CALLERS, Caller, clear_tables
from tests.support.postgres_adapters import STORE_DRIVERS, StoreAdapters
from tests.support.postgres_views import (
    MAJORS,
    QUOTED,
    NewRecord,
    ViewsSchema,
    make_view_schemas,
    record_maker,
)

T = TypeVar("T")
Scenario = Callable[..., Coroutine[Any, Any, None]]
RunScenario = Callable[..., None]

DRIVERS = ("psycopg", "psycopg-async", "asyncpg")
# Every other kind differs from one of these only in how its connection is opened.
MAIN = (
    *DRIVERS,
    "psycopg-implicit",
    "sqlalchemy-session",
    "sqlalchemy-connection",
    "sqlalchemy-async-session",
    "sqlalchemy-async-connection",
    "django",
)


class OpenCallers:
    """Callers that stay open between tests, and the event loop of the async ones."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._open: dict[tuple[str, str], list[Caller]] = {}

    def run(self, kind: str, work: Coroutine[Any, Any, T]) -> T:
        if CALLERS[kind].is_async:
            return self._runner.run(work)
        try:
            work.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise AssertionError("a sync caller never waits")

    def run_scenario(self, kind: str, scenario: Scenario, options: dict[str, Any]) -> None:
        """Run a scenario with one caller, or with two if it has two parameters. The second caller
        has a driver's own connection, because Django has one connection per database."""
        clear_tables(options.get("major"))
        driver = "asyncpg" if CALLERS[kind].is_async else "psycopg"
        count = len(inspect.signature(scenario).parameters)
        kinds = (kind, kind if kind in DRIVERS else driver)[:count]
        callers = [self._caller(each, options) for each in kinds]
        try:
            self.run(kind, scenario(*callers))
        except BaseException:
            for caller in callers:
                self.run(kind, caller.__aexit__())
            raise
        for each, caller in zip(kinds, callers, strict=True):
            caller.ran = 0
            self.run(each, _ended_transaction(each, caller))
            self._open.setdefault(_name(each, options), []).append(caller)

    def _caller(self, kind: str, options: dict[str, Any]) -> Caller:
        kept = self._open.get(_name(kind, options))
        if kept:
            return kept.pop()
        caller = CALLERS[kind](**options)
        self.run(kind, caller.__aenter__())
        return caller

    def close(self) -> None:
        for (kind, _), callers in self._open.items():
            for caller in callers:
                self.run(kind, caller.__aexit__())
        self._runner.close()


async def _ended_transaction(kind: str, caller: Caller) -> None:
    """SQLAlchemy begins a transaction at a query by itself; the next scenario begins its own."""
    if kind.startswith("sqlalchemy"):
        ended = caller.subject.rollback()
        if inspect.isawaitable(ended):
            await ended


def _name(kind: str, options: dict[str, Any]) -> tuple[str, str]:
    return kind, repr(sorted(options.items()))


@pytest.fixture(scope="session")
def open_callers() -> Iterator[OpenCallers]:
    open_callers = OpenCallers()
    yield open_callers
    open_callers.close()


def _runner_of(open_callers: OpenCallers, kind: str) -> RunScenario:
    def run_scenario(scenario: Scenario, **options: Any) -> None:
        open_callers.run_scenario(kind, scenario, options)

    return run_scenario


@pytest.fixture(params=CALLERS)
def run_scenario(request: pytest.FixtureRequest, open_callers: OpenCallers) -> RunScenario:
    """Runs a scenario with a caller of each kind."""
    return _runner_of(open_callers, request.param)


@pytest.fixture(params=MAIN)
def run_scenario_mainly(request: pytest.FixtureRequest, open_callers: OpenCallers) -> RunScenario:
    """Runs a scenario with a caller of each main kind."""
    return _runner_of(open_callers, request.param)


@pytest.fixture(params=DRIVERS)
def run_scenario_on_drivers(
    request: pytest.FixtureRequest, open_callers: OpenCallers
) -> RunScenario:
    """Runs a scenario on each driver's own connection."""
    return _runner_of(open_callers, request.param)


@pytest.fixture(params=STORE_DRIVERS)
def adapters(request: pytest.FixtureRequest) -> Iterator[StoreAdapters]:
    """Opens stores and engines on each driver."""
    adapters = StoreAdapters(request.param)
    yield adapters
    adapters.close()


# --- views ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=MAJORS, ids=lambda major: f"postgres-{major}")
def view_schemas(request: pytest.FixtureRequest) -> Iterator[dict[str, ViewsSchema]]:
    made = make_view_schemas(request.param)
    yield made
    for views in made.values():
        views.connection.close()


@pytest.fixture
def views(view_schemas: dict[str, ViewsSchema]) -> ViewsSchema:
    view_schemas["plain"].connection.execute(f"TRUNCATE {QUOTED}.records".encode())
    return view_schemas["plain"]


@pytest.fixture
def new(views: ViewsSchema) -> NewRecord:
    """Makes records of the server's present hour."""
    return record_maker(views.now())
