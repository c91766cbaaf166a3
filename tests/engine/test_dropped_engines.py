"""An engine that is dropped without close() frees its threads and descriptors, and warns."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import etcd_stores
from tests.support.postgres_stores import address

from oncekey import AsyncOnce, Once
from oncekey.stores.sqlite import SQLiteStore
from oncekey.testing.contract.engine_case import wait_until_true
from oncekey.testing.sync_facade import yield_until

ENGINES = 60
OPTIONS: dict[str, Any] = {"sweep_every": "1h", "complete_every": "1h"}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def later(attempt: Any) -> int:
    return 1


@pytest.fixture
def nothing_left() -> Iterator[None]:
    etcd_stores.close_reused()  # their channels open and close connections whenever they like
    gc.collect()
    threads, before = set(threading.enumerate()), descriptors()
    yield
    gc.collect()
    wait_until_true(lambda: set(threading.enumerate()) <= threads)
    wait_until_true(lambda: descriptors() <= before)


@pytest.mark.usefixtures("nothing_left")
def test_sixty_dropped_engines_leave_no_thread_and_no_descriptor(tmp_path: Path) -> None:
    for number in range(ENGINES):
        once = Once(f"sqlite:///{tmp_path}/{number % 3}.db", **OPTIONS)
        assert once.run("op", f"k{number}", lambda attempt: 1).value == 1
        with pytest.warns(ResourceWarning, match=r"Once: nobody closed it.*call its close\(\)"):
            del once


@pytest.mark.usefixtures("nothing_left")
def test_sixty_dropped_async_engines_leave_no_thread_and_no_descriptor(tmp_path: Path) -> None:
    async def main() -> None:
        for number in range(ENGINES):
            once = AsyncOnce(f"sqlite:///{tmp_path}/{number % 3}.db", **OPTIONS)
            await once.run("op", f"k{number}", later)
            with pytest.warns(ResourceWarning, match=r"AsyncOnce: nobody closed it.*await"):
                del once

    asyncio.run(main())


@pytest.fixture
def postgres() -> str:
    return address({})


@pytest.mark.usefixtures("postgres", "nothing_left")
def test_dropped_engines_on_postgresql_leave_no_thread_and_no_descriptor(postgres: str) -> None:
    async def main() -> None:
        once = AsyncOnce(postgres, **OPTIONS)
        await once.run("op", "async dropped", later)
        with pytest.warns(ResourceWarning, match="AsyncOnce: nobody closed it"):
            del once
        await asyncio.sleep(0)

    once = Once(postgres, **OPTIONS)
    once.run("op", "dropped", lambda attempt: 1)
    with pytest.warns(ResourceWarning, match="Once: nobody closed it"):
        del once
    asyncio.run(main())


@pytest.mark.usefixtures("nothing_left")
def test_an_engine_that_holds_nothing_open_is_dropped_without_a_warning(tmp_path: Path) -> None:
    memory = Once("memory://", **OPTIONS)  # has a thread, which ends with it
    memory.run("op", "k", lambda attempt: 1)
    AsyncOnce(f"sqlite:///{tmp_path}/never-used.db")
    closed = Once(f"sqlite:///{tmp_path}/shop.db")
    closed.close()
    del memory, closed


def test_a_dropped_engine_leaves_a_store_object_of_the_user_open(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "shop.db")
    once = Once(store)
    once.run("op", "k", lambda attempt: 1)
    del once
    with Once(store) as other:
        assert other.run("op", "k", lambda attempt: 2).value == 1


def test_i14_an_engine_is_not_dropped_under_an_attempt_whose_caller_has_left(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"

    async def main() -> None:
        inside, go = asyncio.Event(), asyncio.Event()

        async def body(attempt: Any) -> str:
            inside.set()
            await go.wait()
            return "kept"

        async def call() -> None:
            await AsyncOnce(url).run("op", "k", body)

        caller = asyncio.create_task(call())
        await inside.wait()
        caller.cancel()
        await asyncio.wait([caller])
        del caller
        gc.collect()
        go.set()
        await yield_until(lambda: len(asyncio.all_tasks()) == 1)

    with pytest.warns(ResourceWarning):
        asyncio.run(main())
    with Once(url) as once:
        status = once.get("op", "k")
        assert status is not None
        assert (status.state, status.value) == ("succeeded", "kept")
