"""Closing an engine waits for attempts on other loops (I14); a closed engine raises, and can be
reopened.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from oncekey import AsyncOnce, ConfigurationError, Once, StoreUnavailable
from oncekey.core.record import State
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore

LOOPS = 4
PATIENCE = 60


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/shop.db"


async def body(attempt: Any) -> str:
    return "ran"


def plain(attempt: Any) -> str:
    return "ran"


# --- several loops ------------------------------------------------------------------------------


def test_i14_close_on_one_loop_waits_for_attempts_on_other_loops(tmp_path: Path) -> None:
    once = AsyncOnce(f"sqlite:///{tmp_path}/shop.db")
    inside = threading.Barrier(LOOPS + 1)
    go = threading.Event()

    async def slow(attempt: Any) -> str:
        await asyncio.to_thread(inside.wait, PATIENCE)
        await asyncio.to_thread(go.wait, PATIENCE)
        await once.run("inner", f"of {attempt.key}", body)
        return "done"

    def other(number: int) -> str:
        return asyncio.run(once.run("op", f"k{number}", slow)).value

    async def close() -> None:
        await once.run("op", "first", body)
        await asyncio.to_thread(inside.wait, PATIENCE)
        closing = asyncio.ensure_future(once.close())
        await asyncio.sleep(0)
        go.set()
        await closing

    with ThreadPoolExecutor(LOOPS + 1) as pool:
        others = [pool.submit(other, number) for number in range(LOOPS)]
        pool.submit(asyncio.run, close()).result(PATIENCE)
        assert [future.result(PATIENCE) for future in others] == ["done"] * LOOPS
    with Once(f"sqlite:///{tmp_path}/shop.db") as reader:
        for number in range(LOOPS):
            status = reader.get("op", f"k{number}")
            assert status is not None
            assert status.state == "succeeded"


def test_an_attempt_on_another_loop_is_cancelled_after_the_drain() -> None:
    memory = MemoryStore()
    once = AsyncOnce(AsyncMemoryStore(memory))
    inside = threading.Event()

    async def endless(attempt: Any) -> None:
        inside.set()
        await asyncio.Event().wait()

    def other() -> None:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(once.run("op", "k", endless))

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(PATIENCE)
    asyncio.run(once.close(drain="10ms"))
    thread.join(PATIENCE)
    (record,) = memory._records.values()
    assert record.state is State.UNKNOWN, "decided, not left in flight"


# --- after close --------------------------------------------------------------------------------


def closed_calls(once: Any, connection: Any, inside: Any) -> list[Callable[[], Any]]:
    """Every method of an engine that uses its store."""

    @once.operation("registered")  # type: ignore[untyped-decorator]
    async def registered(attempt: Any, request: Any) -> str:
        return "ran"

    return [
        lambda: once.run("op", "known", body),
        lambda: once.run("op", "new", body),
        lambda: once.get("op", "known"),
        lambda: registered.run("k"),
        once.sweep,
        once.complete,
        lambda: inside.run("op", "in", body),
        lambda: once.in_transaction(connection).run("op", "in", body),
    ]


def test_a_closed_async_engine_raises_on_every_call(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"

    async def main() -> None:
        once = AsyncOnce(f"sqlite:///{path}")
        await once.run("op", "known", body)
        connection = sqlite3.connect(path)
        calls = closed_calls(once, connection, once.in_transaction(connection))
        await once.close()
        for call in calls:
            with pytest.raises(StoreUnavailable, match="was closed") as caught:
                await call()
            assert caught.value.final
        connection.close()

    asyncio.run(main())


def test_a_closed_sync_engine_raises_on_every_call(url: str) -> None:
    once = Once(url)
    once.run("op", "known", plain)
    once.close()
    for call in (
        lambda: once.run("op", "known", plain),
        lambda: once.run("op", "new", plain),
        lambda: once.get("op", "known"),
        lambda: once.in_transaction(None),
    ):
        with pytest.raises(StoreUnavailable, match="was closed") as caught:
            call()
        assert caught.value.final


# --- reopen -------------------------------------------------------------------------------------


def test_a_closed_engine_works_again_when_it_is_reopened(url: str) -> None:
    options: dict[str, Any] = {"sweep_every": "1h", "complete_every": "1h"}
    before = set(threading.enumerate())
    once = Once(url, **options)
    for number in range(3):
        with once:
            assert once.run("op", "k", plain).replayed is (number > 0)
            assert once.run("op", f"k{number}", plain).value == "ran"
            assert once.run("op", f"k{number}", plain).replayed
            threads = {thread.name for thread in set(threading.enumerate()) - before}
            assert threads == {"oncekey-heartbeat", "oncekey-sweeper", "oncekey-completer"}
        assert set(threading.enumerate()) <= before

    async def main() -> None:
        later = AsyncOnce(url, **options)
        for number in range(3):
            async with later:
                assert (await later.run("op", "later", body)).replayed is (number > 0)
                assert later._background[0]._task is not None
            assert later._background[0]._task is None

    asyncio.run(main())


def test_a_closed_async_engine_can_be_reopened_on_another_loop(url: str) -> None:
    once = AsyncOnce(url)

    async def life(number: int) -> None:
        async with once:
            assert (await once.run("op", "k", body)).replayed is (number > 0)

    for number in range(3):
        asyncio.run(life(number))


class Final(MemoryStore):
    reopen = None  # type: ignore[assignment]


def test_reopening_an_engine_whose_store_cannot_be_reopened_raises() -> None:
    once = Once(Final())
    once.reopen()  # it is open: nothing happens
    once.close()
    with pytest.raises(ConfigurationError, match="a Final cannot be opened again"):
        once.reopen()
