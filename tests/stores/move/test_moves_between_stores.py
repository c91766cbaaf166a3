"""A whole move, from every kind of store to every kind: what may be used alone, and when.

Before the copy the new store alone is refused, during it both work, and after it the old store
alone is refused, while the new one replays everything. Nothing runs twice.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.stores.move.places import CLUSTER, PLACES, Place

from oncekey import AsyncOnce, ConfigurationError, Once, Policy
from oncekey.cli.commands.copy import CopyProgress, copy_all
from oncekey.core.store import AsyncStore, Store
from oncekey.stores.move import AsyncDualStore, DualStore

POLICY = Policy(keep="1h", audit="1h")  # which a ring has room for
FILLED = "still being filled"
LEFT = "open the new store"
PAIRS = list(itertools.product(PLACES, PLACES))
# Every kind is once the old store and once the new one.
RING_OF_PAIRS = list(zip(PLACES, [*list(PLACES)[1:], next(iter(PLACES))], strict=True))


class Stop:
    requested = False


def copy(both: DualStore) -> None:
    """What `oncekey copy` does."""
    progress = CopyProgress()
    copy_all(both, progress, lambda now: None, Stop(), limit=100, history=True)  # type: ignore[arg-type]
    assert progress.is_complete
    both.finish_copy()


# --- sync ------------------------------------------------------------------------------------


def run(store: Store, *keys: str, value: str = "again") -> list[Any]:
    """What an engine on this store returns; `value`, if it runs the key. The engine stays open,
    because it would close the store too."""
    once = Once(store, policy=POLICY, cache=0)
    return [once.run("op", key, lambda attempt: value).value for key in keys]


def refused(store: Store, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        run(store, "before")


def move(old: Place, new: Place) -> None:
    with closing(DualStore(old.open_sync(), new.open_sync())) as both:
        run(both.old, "before", value="first")
        assert run(both, "before") == ["first"]
        refused(both.new, FILLED)
        run(both, "during", value="first")
        assert run(both.old, "during") == ["first"]
        copy(both)
        refused(both.old, LEFT)
        run(both, "after", value="first")
        assert run(both.new, "before", "during", "after") == ["first"] * 3
        assert run(both, "before", "during", "after") == ["first"] * 3


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_i1_each_store_is_used_alone_only_while_that_is_safe(
    tmp_path: Path, old: str, new: str
) -> None:
    move(PLACES[old](tmp_path, "old"), PLACES[new](tmp_path, "new"))


@pytest.mark.soak
@pytest.mark.parametrize("other", PLACES)
def test_i1_a_cluster_of_redis_is_used_alone_only_while_that_is_safe(
    tmp_path: Path, other: str
) -> None:
    move(CLUSTER(tmp_path, "old"), PLACES[other](tmp_path, "new"))
    move(PLACES[other](tmp_path, "old"), CLUSTER(tmp_path, "new"))


# --- asyncio ---------------------------------------------------------------------------------


async def run_async(store: AsyncStore, *keys: str, value: str = "again") -> list[Any]:
    async def body(attempt: Any) -> str:
        return value

    once = AsyncOnce(store, policy=POLICY, cache=0)
    return [(await once.run("op", key, body)).value for key in keys]


async def refused_async(store: AsyncStore, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        await run_async(store, "before")


async def move_async(old: Place, new: Place) -> None:
    both = AsyncDualStore(old.open_async(), new.open_async())
    try:
        await run_async(both.old, "before", value="first")
        await run_async(both, "during", value="first")
        assert await run_async(both, "before", "during") == ["first"] * 2
        await refused_async(both.new, FILLED)
        with closing(DualStore(old.open_sync(), new.open_sync())) as copied:
            await asyncio.to_thread(copy, copied)
        await refused_async(both.old, LEFT)
        assert await run_async(both.new, "before", "during") == ["first"] * 2
    finally:
        await both.close()


@pytest.mark.parametrize(("old", "new"), RING_OF_PAIRS)
def test_i1_each_async_store_is_used_alone_only_while_that_is_safe(
    tmp_path: Path, old: str, new: str
) -> None:
    asyncio.run(move_async(PLACES[old](tmp_path, "old"), PLACES[new](tmp_path, "new")))
