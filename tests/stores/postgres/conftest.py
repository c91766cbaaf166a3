"""Scenes in shops (see tests/support/caller_connections) and a schema for the operators' views.

A connection costs more than most scenes, so a shop stays open from test to test, unless a scene
has failed in it. Blocking shops are played without an event loop, as Django insists.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from tests.support.caller_connections import SHOPS, Shop, empty
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
Scene = Callable[..., Coroutine[Any, Any, None]]
Play = Callable[..., None]

DRIVERS = ("psycopg", "psycopg-async", "asyncpg")
# The others differ from one of these in how a connection is come by, and in nothing later.
MAIN = (
    *DRIVERS,
    "psycopg-implicit",
    "sqlalchemy-session",
    "sqlalchemy-connection",
    "sqlalchemy-async-session",
    "sqlalchemy-async-connection",
    "django",
)


class Stage:
    """Open shops and the event loop of the async ones."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._open: dict[tuple[str, str], list[Shop]] = {}

    def run(self, kind: str, work: Coroutine[Any, Any, T]) -> T:
        if SHOPS[kind].is_async:
            return self._runner.run(work)
        try:
            work.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise AssertionError("a blocking shop has nothing to wait for")

    def play(self, kind: str, scene: Scene, options: dict[str, Any]) -> None:
        """A scene in one shop, or in two if it wants two, the other one on a driver's own
        connection (Django has one connection for each of its databases)."""
        empty(options.get("major"))
        driver = "asyncpg" if SHOPS[kind].is_async else "psycopg"
        count = len(inspect.signature(scene).parameters)
        kinds = (kind, kind if kind in DRIVERS else driver)[:count]
        shops = [self._shop(each, options) for each in kinds]
        try:
            self.run(kind, scene(*shops))
        except BaseException:
            for shop in shops:
                self.run(kind, shop.__aexit__())
            raise
        for each, shop in zip(kinds, shops, strict=True):
            shop.ran = 0
            self._open.setdefault(_name(each, options), []).append(shop)

    def _shop(self, kind: str, options: dict[str, Any]) -> Shop:
        kept = self._open.get(_name(kind, options))
        if kept:
            return kept.pop()
        shop = SHOPS[kind](**options)
        self.run(kind, shop.__aenter__())
        return shop

    def close(self) -> None:
        for (kind, _), shops in self._open.items():
            for shop in shops:
                self.run(kind, shop.__aexit__())
        self._runner.close()


def _name(kind: str, options: dict[str, Any]) -> tuple[str, str]:
    return kind, repr(sorted(options.items()))


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def _player(stage: Stage, kind: str) -> Play:
    def play(scene: Scene, **options: Any) -> None:
        stage.play(kind, scene, options)

    return play


@pytest.fixture(params=SHOPS)
def play(request: pytest.FixtureRequest, stage: Stage) -> Play:
    """Plays a scene in a shop of each kind."""
    return _player(stage, request.param)


@pytest.fixture(params=MAIN)
def play_mainly(request: pytest.FixtureRequest, stage: Stage) -> Play:
    """Plays a scene in a shop of each kind that is a kind of its own."""
    return _player(stage, request.param)


@pytest.fixture(params=DRIVERS)
def play_on_driver(request: pytest.FixtureRequest, stage: Stage) -> Play:
    """Plays a scene on each driver's own connection."""
    return _player(stage, request.param)


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
