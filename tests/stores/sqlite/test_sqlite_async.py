"""The async store: opened by its first call, on a thread of its own, for several event loops."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from oncekey.core.commands import Claim, Claimed, Reply
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.stores.sqlite import AsyncSQLiteStore


def claim(n: int, owner: bytes = b"o") -> Claim:
    id = n.to_bytes(16, "big")
    return Claim(id, owner, b"\x01f", 30_000_000, 60_000_000, 0, retry_safe=False)


def test_two_event_loops_in_two_threads_share_an_async_store(tmp_path: Path) -> None:
    store = AsyncSQLiteStore(tmp_path / "keys.db")
    start = threading.Barrier(2)
    replies: dict[bytes, list[Reply]] = {}

    async def work(owner: bytes) -> list[Reply]:
        start.wait(90)
        batches = [store.apply([claim(n, owner)]) for n in range(100)]
        return [reply for batch in await asyncio.gather(*batches) for reply in batch]

    def loop(owner: bytes) -> None:
        replies[owner] = asyncio.run(work(owner))

    threads = [threading.Thread(target=loop, args=(owner,)) for owner in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(replies[b"a"], replies[b"b"], strict=True):
        assert isinstance(one, Claimed) != isinstance(other, Claimed)
    asyncio.run(store.close())


def test_the_event_loop_runs_while_the_store_waits(tmp_path: Path) -> None:
    async def work() -> None:
        store = AsyncSQLiteStore(tmp_path / "keys.db", busy_timeout="60s")
        await store.bind(b"check")
        other = sqlite3.connect(tmp_path / "keys.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(store.apply([claim(1)]))
        for _ in range(100):
            await asyncio.sleep(0)  # the loop turns although the store cannot go on
        assert not waiting.done()
        other.execute("ROLLBACK")
        assert isinstance((await waiting)[0], Claimed)
        other.close()
        await store.close()

    asyncio.run(work())


def test_an_async_store_reports_an_unusable_file_at_the_first_call(tmp_path: Path) -> None:
    async def work() -> None:
        store = AsyncSQLiteStore(tmp_path / "nowhere" / "keys.db")
        with pytest.raises(ConfigurationError, match="directory exists"):
            await store.bind(b"check")
        (tmp_path / "nowhere").mkdir()
        await store.bind(b"check")
        with pytest.raises(ConfigurationError, match="another secret"):
            await store.bind(b"other")
        assert await store.sweep() == 0
        assert await store.history(b"i" * 16) == []
        await store.close()

    asyncio.run(work())


def test_a_cancelled_call_leaves_the_store_usable(tmp_path: Path) -> None:
    async def work() -> None:
        store = AsyncSQLiteStore(tmp_path / "keys.db")
        await store.bind(b"check")
        task = asyncio.create_task(store.apply([claim(1)]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Applied or not, the same owner claims again and has it (I9).
        assert isinstance((await store.apply([claim(1)]))[0], Claimed)
        await store.close()

    asyncio.run(work())


def test_calls_on_a_closed_async_store_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        unused = AsyncSQLiteStore(tmp_path / "keys.db")
        await unused.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await unused.apply([claim(1)])

    asyncio.run(work())
    assert not (tmp_path / "keys.db").exists()
