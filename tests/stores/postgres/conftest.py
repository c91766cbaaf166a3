"""Scenes in shops: see tests/shops.

A connection costs more than most scenes, so a shop stays open from test to test, unless a scene
has failed in it. Blocking shops are played without an event loop, as Django insists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from tests.shops import SHOPS, Shop, empty

T = TypeVar("T")
Scene = Callable[[Shop], Coroutine[Any, Any, None]]
Play = Callable[..., None]

DRIVERS = ("psycopg", "psycopg-async", "asyncpg")


class Stage:
    """Open shops and the event loop of the async ones."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._open: dict[tuple[str, str], Shop] = {}

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
        empty(options.get("major"))
        name = (kind, repr(sorted(options.items())))
        shop = self._open.pop(name, None)
        if shop is None:
            shop = SHOPS[kind](**options)
            self.run(kind, shop.__aenter__())
        try:
            self.run(kind, scene(shop))
        except BaseException:
            self.run(kind, shop.__aexit__())
            raise
        shop.ran = 0
        self._open[name] = shop

    def close(self) -> None:
        for (kind, _), shop in self._open.items():
            self.run(kind, shop.__aexit__())
        self._runner.close()


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


@pytest.fixture(params=DRIVERS)
def play_on_driver(request: pytest.FixtureRequest, stage: Stage) -> Play:
    """Plays a scene on each driver's own connection."""
    return _player(stage, request.param)
