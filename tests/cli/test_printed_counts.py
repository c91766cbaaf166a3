"""The counts that `sweep`, `copy` and `stats` print are those that another count finds: the bodies
that ran, and a walk through the store before and after."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from tests.cli.conftest import Command
from tests.support.etcd_stores import etcd
from tests.support.postgres_stores import server
from tests.support.redis_stores import valkey

from oncekey import Once, Policy
from oncekey.stores.postgres import PostgresStore
from oncekey.stores.redis import RedisStore
from oncekey.stores.sqlite import SQLiteStore

HOUR_US = 3_600_000_000
RING: dict[str, Any] = {"retention": "ring", "ring_slots": 8, "ring_period": "3h"}
SHORT = Policy(lease="1m", keep="1h", audit="2h")
LONG = Policy(lease="1m", keep="10h", audit="1h")


class Place(NamedTuple):
    """A store by its URL, and how it is opened on a clock; etcd has its own clock alone."""

    url: str
    on_clock: Callable[[Callable[[], int]], Any] | None = None


def _sqlite(folder: Path) -> Place:
    file = folder / f"{uuid4().hex}.db"
    return Place(f"sqlite:///{file}", lambda clock: SQLiteStore(file, clock=clock))


def _postgres(folder: Path, **shape: Any) -> Place:
    schema = f"counts_{uuid4().hex[:12]}"
    options = "".join(f"&{name}={value}" for name, value in shape.items())
    return Place(
        f"{server().url()}?schema={schema}{options}",
        lambda clock: PostgresStore(server().url(), schema=schema, clock=clock, **shape),
    )


def _valkey(folder: Path) -> Place:
    prefix = f"counts-{uuid4().hex[:12]}"
    return Place(
        f"{valkey().url()}?prefix={prefix}",
        lambda clock: RedisStore(valkey().url(), prefix=prefix, clock=clock),
    )


PLACES: dict[str, Callable[[Path], Place]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "ring": lambda folder: _postgres(folder, **RING),
    "valkey": _valkey,
    "etcd": lambda folder: Place(etcd().url(f"counts-{uuid4().hex[:12]}")),
}


class Count(NamedTuple):
    """What a walk through a store finds."""

    keys: int
    past: int


def counted(url: str, keys: list[str]) -> Count:
    with closing(Once(url, policy=LONG)) as once:
        found = [status for key in keys if (status := once.get("op", key)) is not None]
        past = sum(len(once.past(status)) for status in found)
        listed = once.list(operation="op", expired=True, limit=1_000).keys
    assert len(listed) == len(found), "list and get differ"
    return Count(len(found), past)


@pytest.mark.parametrize("name", [name for name in PLACES if name != "etcd"])
def test_sweep_prints_how_many_records_are_gone(here: Command, tmp_path: Path, name: str) -> None:
    place, ran = PLACES[name](tmp_path), list[str]()
    assert place.on_clock is not None
    clock = [time.time_ns() // 1_000 - 12 * HOUR_US]
    with Once(place.on_clock(lambda: clock[0]), policy=SHORT, cache=0) as once:
        for keys in (("a", "b", "c"), ("a", "b")):  # two of them again, as later generations
            for key in keys:
                once.run("op", key, lambda attempt: ran.append(attempt.key))
            clock[0] += int(1.5 * HOUR_US)
    with Once(place.url, policy=LONG) as once:
        for key in ("d", "e"):
            once.run("op", key, lambda attempt: ran.append(attempt.key))
    all_keys = sorted(set(ran))
    before = counted(place.url, all_keys)
    assert (before, before.keys + before.past) == ((5, 2), len(ran))
    printed = here("sweep", place.url, "--limit", "2", "--json").data["removed"]
    after = counted(place.url, all_keys)
    assert after == (2, 0)
    assert printed == len(ran) - after.keys
    assert here("sweep", place.url, "--json").data["removed"] == 0


@pytest.mark.parametrize(
    ("old", "new"), list(zip(PLACES, [*list(PLACES)[1:], "sqlite"], strict=True))
)
def test_copy_prints_how_many_records_and_generations_are_there_now(
    here: Command, tmp_path: Path, old: str, new: str
) -> None:
    """Every kind is once the old store and once the new one."""
    source, target, ran = PLACES[old](tmp_path), PLACES[new](tmp_path), list[str]()
    with closing(Once(source.url, policy=LONG, cache=0)) as once:
        for key in ("a", "b", "c", "d"):
            try:
                once.run("op", key, lambda attempt: fail(ran, attempt))
            except KeyboardInterrupt:
                status = once.get("op", key)
                assert status is not None
                if key != "d":
                    once.resolve(status, failed="no", by="ana", why="it was refused")
        for key in ("a", "b"):
            status = once.get("op", key)
            assert status is not None
            once.release(status, by="ana", why="mended")
            once.run("op", key, lambda attempt: ran.append(attempt.key))
    there = counted(source.url, sorted(set(ran)))
    assert (there, there.keys + there.past) == ((4, 2), len(ran))
    done = here("copy", source.url, target.url, "--yes", "--json")
    assert done.code == 0, done.err
    arrived = counted(target.url, sorted(set(ran)))
    assert (arrived.keys, arrived.past) == (there.keys, there.past)
    assert (done.data["copied"], done.data["past_generations"]) == (arrived.keys, arrived.past)
    assert (done.data["compared"], done.data["already_there"]) == (arrived.keys, 0)
    again = here("copy", source.url, target.url, "--yes", "--json").data
    assert (again["copied"], again["already_there"]) == (0, arrived.keys)


def fail(ran: list[str], attempt: Any) -> None:
    ran.append(attempt.key)
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", PLACES)
def test_stats_print_the_claims_of_the_last_minute(
    here: Command, tmp_path: Path, name: str
) -> None:
    """Replays are no claims. What leaves the minute while the store is read bounds the figure."""
    place = PLACES[name](tmp_path)
    with closing(Once(place.url, policy=LONG, cache=0)) as once:
        for key in ("a", "b", "a", "c", "a"):
            once.run("op", key, lambda attempt: None)
        before = once.list()
        printed = here("stats", place.url, "--json").data["claims_per_second"]
        after = once.list()
    within = [
        sum(key.created_at > listing.now - timedelta(minutes=1) for key in listing.keys)
        for listing in (after, before)
    ]
    assert len(after.keys) == 3
    assert within[0] <= round(printed * 60) <= within[1]
