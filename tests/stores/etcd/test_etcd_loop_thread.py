"""The thread of an etcd store: whatever ends it, no caller waits for ever (I14)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.stores.etcd.two_stores import Process, fresh_prefix
from tests.support.etcd_stores import etcd

from oncekey.core.commands import Claimed
from oncekey.core.errors import StoreUnavailable
from oncekey.stores.etcd import AsyncEtcdStore, EtcdStore
from oncekey.stores.etcd.etcd_store import StoreLoop
from oncekey.stores.etcd.shared_store import SharedStore
from oncekey.testing.contract.store_case import claim, token

SECONDS = 30  # only a call that hangs takes so long


def test_a_call_in_flight_ends_when_the_store_is_closed() -> None:
    process = Process(fresh_prefix())
    stalled = _stall(process.store)
    raised: list[StoreUnavailable] = []

    def call() -> None:
        with pytest.raises(StoreUnavailable, match="closed during the call") as caught:
            process.send(claim(token("id"), token("own")))
        raised.append(caught.value)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert stalled.wait(SECONDS)
    process.close()
    thread.join(SECONDS)
    assert [error.ambiguous for error in raised] == [True]


def test_an_async_call_in_flight_ends_when_the_store_is_closed() -> None:
    async def main() -> None:
        store = AsyncEtcdStore(etcd().addresses.split(","), prefix=fresh_prefix())
        stalled = _stall(store)
        call = asyncio.create_task(store.apply([claim(token("id"), token("own"))]))
        assert await asyncio.to_thread(stalled.wait, SECONDS)
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed during the call"):
            await asyncio.wait_for(call, SECONDS)

    asyncio.run(main())


def test_a_cancelled_async_call_stays_cancelled() -> None:
    async def main() -> None:
        store = AsyncEtcdStore(etcd().addresses.split(","), prefix=fresh_prefix())
        stalled = _stall(store)
        call = asyncio.create_task(store.apply([claim(token("id"), token("own"))]))
        assert await asyncio.to_thread(stalled.wait, SECONDS)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await store.close()

    asyncio.run(main())


def _stall(store: EtcdStore | AsyncEtcdStore) -> threading.Event:
    """Let no request of a store be answered. The event is set once one was sent."""
    stalled = threading.Event()

    async def call(name: str, request: object, end: float) -> None:
        stalled.set()
        await asyncio.Event().wait()

    async def prepare(cluster: SharedStore) -> None:
        cluster.members.call = call  # type: ignore[method-assign]

    store._loop.run(store._on_loop(prepare))
    return stalled


def test_a_thread_that_cannot_start_fails_the_call_and_the_next_one_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = StoreLoop()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            loop.run(_nothing)
    assert loop.run(_nothing) is None
    loop.close(_nothing)


@pytest.mark.timeout(SECONDS)
def test_a_dropped_store_is_abandoned_from_the_thread_of_its_own_loop() -> None:
    """A garbage collector runs in any thread, and so does what it calls."""
    store = EtcdStore(etcd().addresses.split(","), prefix=fresh_prefix())
    (reply,) = store.apply([claim(token("id"), token("own"))])
    assert isinstance(reply, Claimed)
    thread = store._loop._thread
    assert thread is not None

    async def collect(cluster: SharedStore) -> None:
        store.abandon()

    with pytest.raises(StoreUnavailable, match="closed during the call"):
        store._loop.run(store._on_loop(_then_wait(collect)))
    thread.join(SECONDS)
    assert not thread.is_alive()


def _then_wait(work: Any) -> Any:
    async def run(cluster: SharedStore) -> None:
        await work(cluster)
        await asyncio.Event().wait()

    return run


async def _nothing() -> None:
    return
