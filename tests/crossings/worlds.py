"""The world of one crossing: its stores and where its keys are in their move, an engine, a surface.

Its clock begins hours ago and stands still until the test moves it. At the end it is moved to the
present, so that the command line, which has the real clock, sees what the engine sees.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.crossings.axes import Crossing
from tests.crossings.places import Place, opened
from tests.crossings.rows import PostgresRows, Rows, SqliteRows
from tests.crossings.shop import Answer, Shop
from tests.crossings.surfaces import (
    CeleryTask,
    DramatiqActor,
    FastStreamHandler,
    Function,
    QueueConsumer,
    RegisteredOperation,
    Surface,
    TaskiqTask,
)
from tests.crossings.web_surfaces import (
    AsgiSurface,
    DjangoSurface,
    FastApiSurface,
    FlaskSurface,
    WsgiSurface,
)
from tests.support.reused_stores import shared_loop

from oncekey import AsyncOnce, Once, Policy
from oncekey.core.identity import Identities
from oncekey.core.search import NEWEST
from oncekey.core.store import StoreLimits
from oncekey.engine.store_urls import async_store, blocking_store
from oncekey.stores.move import AsyncDualStore, DualStore
from oncekey.stores.move.record_copy import copy_page
from oncekey.stores.sqlite import SQLiteStore
from oncekey.testing import Failpoints, FakeClock

HOUR_US = 3_600_000_000
LEASE_US = HOUR_US
# They fit into the ring of the tests. The clock begins so long ago that a lease can end before now,
# and nothing that has ended expires before.
TERMS: dict[str, Any] = {"lease": "1h", "keep": "8h", "audit": "1h"}
BEGINS_US = -4 * HOUR_US
TERMS_US = 11 * HOUR_US  # all of them, and some time
# A slot with a key of oncekey's own in it is emptied when it is to be filled next, so the ring of
# the tests (8 periods of 3 hours) turns round once more.
RING_STEPS = (3 * HOUR_US,) * 13
SWEEPS_MAX = 100  # a sweep removes many records

SURFACES: dict[str, type[Surface]] = {
    "function": Function,
    "operation": RegisteredOperation,
    "asgi": AsgiSurface,
    "fastapi": FastApiSurface,
    "wsgi": WsgiSurface,
    "flask": FlaskSurface,
    "django": DjangoSurface,
    "consumer": QueueConsumer,
    "celery": CeleryTask,
    "dramatiq": DramatiqActor,
    "taskiq": TaskiqTask,
    "faststream": FastStreamHandler,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "any": {},
    "at_most_once": {"require": "at_most_once"},
    "fenced": {"require": "fenced", "retry_safe": True},
    "transactional": {"require": "transactional"},
}
_IN_TRANSACTIONS = ("function", "fastapi", "django", "consumer")


class PastClock(FakeClock):
    """A clock that begins some hours ago."""

    def __init__(self) -> None:
        super().__init__()
        self._begin = time.time_ns() // 1_000 + BEGINS_US - self.now()

    def wall(self) -> int:
        return self._begin + self.now()

    def catch_up(self) -> None:
        """Move on to the present."""
        self.advance(time.time_ns() // 1_000 - self.wall())


class World:
    """One crossing. `surface` is what the judge calls; it is made anew on another store."""

    def __init__(self, crossing: Crossing, folder: Path, stack: ExitStack) -> None:
        self.crossing = crossing
        self.clock = PastClock()
        self.shop = Shop(dedups=crossing.level == "fenced")
        self.rows: Rows | None = None
        self.surface: Any = None  # a Surface
        self.once: Any = None
        self._folder = folder
        self._stack = stack
        self._store: Any = None
        mode = crossing.mode
        own = crossing.change != "none"
        kind = crossing.store, mode, crossing.retention, self.clock, folder
        self.place = stack.enter_context(opened(*kind, changes=own))
        self.partner: Place | None = None
        if crossing.move != "none":
            other = "sqlite", mode, "sweep", self.clock, folder
            self.partner = stack.enter_context(opened(*other))
        self._databases: dict[int, Rows] = {}

    def _rows_beside(self, place: Place) -> Rows | None:
        """The caller's rows, in the database of this place if it is one."""
        crossing = self.crossing
        if crossing.level != "transactional" or crossing.surface not in _IN_TRANSACTIONS:
            return None
        if id(place) not in self._databases:
            if place.url.startswith("postgresql:"):
                made: Rows = PostgresRows()
            elif place.url.startswith("sqlite:"):
                Once(place.url).close()  # creates the tables, which other connections must find
                made = SqliteRows(place.url)
            else:
                made = SqliteRows(f"sqlite:///{self._folder / 'rows.db'}")
            self._databases[id(place)] = made
        return self._databases[id(place)]

    # --- stores and engines -------------------------------------------------------------------

    def open_before(self) -> None:
        """Open what the app uses before its move, if there is one."""
        move = self.crossing.move
        assert self.partner is not None or move == "none"
        is_new = move in ("arriving", "arrived", "unfilled")
        first = self.partner if is_new else self.place
        assert first is not None
        self.open_on(first.store, first)

    def open_after(self) -> None:
        """Open what the app uses now."""
        move = self.crossing.move
        if move == "none":
            return
        assert self.partner is not None
        is_new = move in ("arriving", "arrived", "unfilled")
        old, new = (self.partner, self.place) if is_new else (self.place, self.partner)
        if move in ("arrived", "left"):
            copy(old, new, self.clock)
        both: Any = (AsyncDualStore if self.place.is_async else DualStore)(old.store, new.store)
        if move in ("arriving", "leaving"):
            self.open_on(both, self.place)
            return
        if move == "unfilled":
            bound = both.bind(self.once._jobs.identities.check_value())
            if self.place.is_async:
                shared_loop().run(bound)
        self.open_on(self.place.store, self.place)

    def open_on(self, store: Any, place: Place) -> None:
        """Open an engine on a store, and the surface on it; the caller's rows are at `place`."""
        self.close()
        self.rows = self._rows_beside(place)
        self.once = self._engine(store)
        self.surface = self._surface(self.once)
        self._store = store

    def _engine(self, store: Any) -> Any:
        engine = AsyncOnce if self.crossing.mode == "async" else Once
        required = OPTIONS[self.crossing.level] if self.crossing.policy == "engine" else {}
        policy = Policy(**TERMS, **required)
        return engine(store, policy=policy, raw_keys=True, cache=0, clock=self.clock)

    def _surface(self, once: Any) -> Surface:
        options = OPTIONS[self.crossing.level] if self.crossing.policy == "operation" else {}
        return SURFACES[self.crossing.surface](once, self.shop, dict(options), self.rows)

    # --- what happens -------------------------------------------------------------------------

    def call_and_die(self, key: str, cents: int) -> Answer:
        """A call whose process dies when its body has had its effect. It is another process than
        that of `surface`."""
        if self.rows is not None:
            self.shop.kills.add(key)
            killed: Answer = self.surface.call(key, cents)
            return killed
        failpoints = Failpoints()
        surface = self._surface(self._engine(failpoints.wrap(self._store)))
        failpoints.crash(before="finish")
        answer = surface.call(key, cents)
        assert "finish" in failpoints.verbs(), "the call did not get so far"
        surface.close()
        return answer

    def end_leases(self) -> None:
        """All that a dead owner held ends, and what runs in the background runs."""
        self.clock.advance(LEASE_US + 1)
        self.surface.finish_abandoned()

    def change(self) -> None:
        """Change the guarantee, as the crossing says, for the rest of its life."""
        change = self.crossing.change
        if change == "lowered":
            self._stack.enter_context(self.place.lower())
        elif change != "none":
            self.place.see_replica()
        if change != "none":
            self.place.look_again()

    def sweep(self) -> None:
        """Let everything end that ends, and remove what nothing needs."""
        for step in RING_STEPS if StoreLimits.of(self._store).sweep_lag else (TERMS_US,):
            self.clock.advance(step)
            for _ in range(SWEEPS_MAX):
                if not self._awaited(self.once.sweep()):
                    break
            else:
                raise AssertionError("a sweep finds something for ever")

    def _awaited(self, made: Any) -> Any:
        return shared_loop().run(made) if self.crossing.mode == "async" else made

    def effects(self) -> dict[str, int]:
        """What the outside world, or the caller's database, has seen of each key."""
        counted = self.shop.effects()
        for rows in self._databases.values():
            counted += rows.counts()
        return dict(counted)

    def close(self) -> None:
        """End the surface. The stores stay open."""
        if self.surface is not None:
            self.surface.close()
            self.surface = None


@contextmanager
def world_of(crossing: Crossing, folder: Path) -> Iterator[World]:
    with ExitStack() as stack:
        world = World(crossing, folder, stack)
        stack.callback(world.close)
        yield world


def open_ring(crossing: Crossing, folder: Path) -> Any:
    """A store that has no ring, asked for one by its URL."""
    clock = PastClock()
    with opened(crossing.store, crossing.mode, "sweep", clock, folder) as place:
        url = place.url or "memory://"
    separator = "&" if "?" in url else "?"
    asked = f"{url}{separator}retention=ring"
    return (async_store if crossing.mode == "async" else blocking_store)(asked)


def copy(old: Place, new: Place, clock: PastClock) -> None:
    """Copy everything, as `oncekey copy` does."""
    if not old.is_async:
        dual = DualStore(old.store, new.store)
    elif old.url and new.url:  # as the command does, by the real clock
        dual = DualStore(blocking_store(old.url), blocking_store(new.url))
    else:
        dual = DualStore(_blocking(old, clock), _blocking(new, clock))
    dual.bind(Identities().check_value())
    page = copy_page(dual, NEWEST)
    assert not page.held
    assert page.next is None
    dual.finish_copy()
    if old.is_async:
        dual.close()


def _blocking(place: Place, clock: PastClock) -> Any:
    """A sync store on the records of memory, or of the file beside it."""
    if not place.url:
        return place.store.memory
    return SQLiteStore(place.url.removeprefix("sqlite:///"), clock=clock.wall)
