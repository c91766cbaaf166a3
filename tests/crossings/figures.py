"""The readers: whoever shows figures of a store, each asked for the same ones.

The judge compares them with what it has counted itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import httpx
from tests.crossings.worlds import World
from tests.support.reused_stores import shared_loop

from oncekey.cli.main import main
from oncekey.core.search import Measures
from oncekey.dashboard import Dashboard
from oncekey.dashboard.display import size
from oncekey.engine.keys.administration import run_plan, run_plan_async
from oncekey.metrics.store_gauges import PREFIX, StoreWatch, gauges_of

Said = Callable[[], str]  # what a command has printed since the last look


class Figures(NamedTuple):
    """What a reader shows; None for what it has no figure of.

    states     the state of each key of the surface
    rows       how many records are stored, and how many bytes they take
    guarantee  the label of the store's level
    """

    states: Mapping[str, str] | None
    pending: int
    unknown: int
    rows: int
    bytes: int
    guarantee: str | None = None


def read(world: World, said: Said) -> Figures:
    return _READERS[world.crossing.reader](world, said)


def _by_engine(world: World, said: Said) -> Figures:
    once, is_async = world.once, world.place.is_async
    listing, stats = once.list(operation=world.surface.operation), once.stats()
    if is_async:
        listing, stats = shared_loop().run(listing), shared_loop().run(stats)
    states = {key.key: key.state for key in listing.keys}
    for key, state in states.items():
        status = once.get(world.surface.operation, key, scope=world.surface.scope)
        status = shared_loop().run(status) if is_async else status
        assert status.state == state, f"get says {status.state} of {key!r}, list {state}"
    level = once.guarantee.level.label
    return Figures(states, stats.pending, stats.unknown, stats.rows, stats.bytes, level)


def url_of(world: World) -> str:
    """What an operator gives to a command."""
    move, place, partner = world.crossing.move, world.place, world.partner
    if move == "arriving" and partner is not None:
        return f"moving://{partner.url},{place.url}"
    if move == "leaving" and partner is not None:
        return f"moving://{place.url},{partner.url}"
    return place.url


def _by_command(world: World, said: Said) -> Figures:
    def run(*arguments: str) -> Any:
        said()
        code = main([*arguments, "--json"])
        out = said()
        assert code == 0, out
        return json.loads(out)

    url = url_of(world)
    listed = run("list", url, "--operation", world.surface.operation)
    states = {key["key"]: key["state"] for key in listed["keys"]}
    stats = run("stats", url)
    level = None
    if not url.startswith("moving:"):
        level = run("guarantee", url)["guarantee"]
    return Figures(states, stats["pending"], stats["unknown"], stats["rows"], stats["bytes"], level)


_TILE = re.compile(r"<dt>([^<]+)</dt><dd[^>]*>([^<]*)</dd><dd class=\"more\">([^<]*)<")
_ROW = re.compile(r"<tr role=\"row\">(.*?)</tr>", re.S)
_CELL = re.compile(r"data-label=\"(State|Key|Operation)\"[^>]*>(.*?)</td>", re.S)


def _by_dashboard(world: World, said: Said) -> Figures:
    app = Dashboard(world.once, token="a long random token", authenticate=lambda scope: "ana")

    async def pages() -> tuple[str, str]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            overview = await client.get("/")
            keys = await client.get(f"/keys?operation={world.surface.operation}")
        assert (overview.status_code, keys.status_code) == (200, 200), overview.text
        return overview.text, keys.text

    overview, keys = shared_loop().run(pages())
    tiles = {name: (value, more) for name, value, more in _TILE.findall(overview)}
    states = {}
    for row in _ROW.findall(keys):
        cells = {name: re.sub(r"<[^>]+>", " ", cell).split() for name, cell in _CELL.findall(row)}
        if "Key" in cells:
            states[cells["Key"][0]] = cells["State"][-1]
    pending = int(tiles["Stuck"][1].split()[1])
    rows = int(tiles["Stored"][1].split()[0])
    shown, own = tiles["Stored"][0], measured(world).bytes
    if is_exact(world):
        assert shown == size(own), f"the page shows {shown} of {own} bytes"
    stored = own if is_exact(world) else _bytes(shown)  # the page rounds
    return Figures(states, pending, int(tiles["Unknown"][0]), rows, stored)


def _bytes(shown: str) -> int:
    figure, unit = shown.split()
    return int(float(figure) * 1024 ** ("bytes", "KiB", "MiB", "GiB").index(unit))


def is_exact(world: World) -> bool:
    """Whether two looks at a store that nobody changes find the same number of bytes. Other stores
    tell an estimate, or write by themselves."""
    return world.crossing.store in ("memory", "sqlite") and world.crossing.move == "none"


def measured(world: World) -> Measures:
    """What the store itself says that it holds."""
    store = world.once._store
    found: Measures = (
        shared_loop().run(store.measure()) if world.place.is_async else store.measure()
    )
    return found


def _by_exporter(world: World, said: Said) -> Figures:
    plan, store = StoreWatch().read(), world.once._store
    reading = (
        shared_loop().run(run_plan_async(store, plan))
        if world.place.is_async
        else run_plan(store, plan)
    )
    gauges = {gauge.name.removeprefix(PREFIX): gauge.value for gauge in gauges_of(reading)}
    assert gauges["open_complete"] == 1
    pending, unknown, rows, stored = (
        int(gauges[name]) for name in ("pending", "unknown", "rows", "bytes")
    )
    return Figures(None, pending, unknown, rows, stored)


_READERS: dict[str, Callable[[World, Said], Figures]] = {
    "engine": _by_engine,
    "cli": _by_command,
    "dashboard": _by_dashboard,
    "exporter": _by_exporter,
}
