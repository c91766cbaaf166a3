"""`AsyncOnce` on an event loop of another kind than asyncio's: an error that says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from oncekey import AsyncOnce, ConfigurationError


async def body(attempt: Any) -> int:
    return 1


async def enter(once: AsyncOnce) -> None:
    async with once:
        raise AssertionError


USES: dict[str, Callable[[AsyncOnce], Awaitable[Any]]] = {
    "run": lambda once: once.run("pay", "k", body),
    "get": lambda once: once.get("pay", "k"),
    "list": lambda once: once.list(),
    "complete": lambda once: once.complete(),
    "with": enter,
    "close": lambda once: once.close(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_first_use_on_trio_says_that_it_needs_asyncio(store: str, use: str, tmp_path: Path) -> None:
    once = AsyncOnce("memory://" if store == "memory" else f"sqlite:///{tmp_path / 'keys.db'}")

    async def main() -> None:
        await USES[use](once)

    with pytest.raises(ConfigurationError, match=r"AsyncOnce needs asyncio, .* trio\.to_thread"):
        trio.run(main)


@pytest.mark.parametrize("use", ["run", "get"])
def test_engine_that_is_in_use_on_asyncio_says_so_too_and_goes_on_there(use: str) -> None:
    once = AsyncOnce("memory://")
    assert asyncio.run(once.run("pay", "first", body)).value == 1

    async def main() -> None:
        await USES[use](once)

    with pytest.raises(ConfigurationError, match="needs asyncio"):
        trio.run(main)
    assert not asyncio.run(once.run("pay", "k", body)).replayed
