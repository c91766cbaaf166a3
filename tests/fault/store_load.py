"""Sync and async callers that claim and finish without pause, and store every acknowledgement.

An acknowledgement must stay true whatever happens to the server (I4). A call whose reply was lost
is repeated with the same owner until a reply comes, as the engine does.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, NamedTuple, Self

from tests.support.servers.processes import wait_until

from oncekey.core.commands import Claim, Claimed, Command, Done, Finish, Look, Reply, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import State
from oncekey.core.store import AsyncStore, Store
from oncekey.engine.store_urls import async_store, blocking_store
from oncekey.testing.sync_facade import LoopThread

LEASE = 3_600_000_000
BATCH = 4
LOOKS = 100
_PAUSE_SECONDS = 0.01

Wave = Generator[Sequence[Command], list[Reply], None]


class Acknowledged(NamedTuple):
    """An acknowledged claim; with a body, an acknowledged finish too."""

    owner: bytes
    fence: int
    body: bytes | None = None


class StoreLoad:
    """Threads on a sync store and tasks on an async one, which share their records."""

    def __init__(
        self, sync: Store | str, asynchronous: AsyncStore | str, *, threads: int = 4, tasks: int = 6
    ) -> None:
        self.acknowledged: dict[bytes, Acknowledged] = {}
        self.wrong_replies: list[str] = []
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self.sync_store = blocking_store(sync)
        self.async_store = async_store(asynchronous)
        self._loop = LoopThread()
        self._threads = [threading.Thread(target=self._work) for _ in range(threads)]
        self._tasks = tasks

    # --- one wave: a batch of claims, then their finishes -----------------------------------------

    def _wave(self) -> Wave:
        """Claim new keys and finish half of them, so that a crash meets claims and finishes."""
        claims = [
            Claim(os.urandom(16), os.urandom(16), b"\x01f", LEASE, LEASE, 0, retry_safe=False)
            for _ in range(BATCH)
        ]
        replies = yield claims
        finishes = []
        for claim, reply in zip(claims, replies, strict=True):
            if not isinstance(reply, Claimed):
                self.wrong_replies.append(f"a claim of a new key got {reply}")
                continue
            self.acknowledged[claim.id] = Acknowledged(claim.owner, reply.fence)
            if next(self._numbers) % 2:
                body = b"%d" % reply.fence
                finishes.append(Finish(claim.id, claim.owner, reply.fence, State.SUCCEEDED, body))
        if not finishes:
            return
        replies = yield finishes
        for finish, reply in zip(finishes, replies, strict=True):
            if isinstance(reply, Done):
                self.acknowledged[finish.id] = Acknowledged(finish.owner, finish.fence, finish.body)
            else:
                self.wrong_replies.append(f"the finish of an owner got {reply}")

    def _work(self) -> None:
        while not self._stop.is_set():
            wave = self._wave()
            commands = next(wave)
            try:
                while True:
                    commands = wave.send(self._reply(commands))
            except StopIteration:
                continue
            except _Stopped:
                return

    def _reply(self, commands: Sequence[Command]) -> list[Reply]:
        while not self._stop.is_set():
            try:
                return self.sync_store.apply(commands)
            except StoreUnavailable:
                self._stop.wait(_PAUSE_SECONDS)
        raise _Stopped

    async def _work_async(self) -> None:
        while not self._stop.is_set():
            wave = self._wave()
            commands = next(wave)
            try:
                while True:
                    commands = wave.send(await self._reply_async(commands))
            except StopIteration:
                continue
            except _Stopped:
                return

    async def _reply_async(self, commands: Sequence[Command]) -> list[Reply]:
        while not self._stop.is_set():
            try:
                return await self.async_store.apply(commands)
            except StoreUnavailable:
                await asyncio.sleep(_PAUSE_SECONDS)
        raise _Stopped

    # --- lifetime ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        # A lazy store creates its tables on first use, and only then knows its guarantee.
        self.sync_store.sweep(0)
        self._loop.run(self.async_store.sweep(0))
        for thread in self._threads:
            thread.start()
        self._running = [self._start(self._work_async) for _ in range(self._tasks)]
        return self

    def _start(self, work: Callable[[], Awaitable[None]]) -> Any:
        return asyncio.run_coroutine_threadsafe(work(), self._loop.loop)  # type: ignore[arg-type]

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for task in self._running:
            task.result(60)
        self.sync_store.close()
        self._loop.run(self.async_store.close())
        self._loop.close()

    def wait_for(self, more: int) -> None:
        """Wait until that many more keys were acknowledged."""
        target = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= target, f"{more} keys are acknowledged", 60)

    @property
    def finished(self) -> dict[bytes, Acknowledged]:
        """The keys whose finish was acknowledged."""
        everything = dict(self.acknowledged)
        return {id: one for id, one in everything.items() if one.body is not None}


class _Stopped(Exception):
    """The run is over and the call got no reply."""


def lost(store: Store, acknowledged: dict[bytes, Acknowledged]) -> list[str]:
    """Return a line for every acknowledged claim or finish that the store does not have."""
    wrong = []
    everything = list(acknowledged)
    for first in range(0, len(everything), LOOKS):
        ids = everything[first : first + LOOKS]
        for id, seen in zip(ids, store.apply([Look(id) for id in ids]), strict=True):
            one, record = acknowledged[id], seen.record if isinstance(seen, Seen) else None
            if record is None or (record.owner, record.fence) != (one.owner, one.fence):
                wrong.append(f"claim {id.hex()} is gone")
            elif one.body is not None and (record.state, record.body) != (
                State.SUCCEEDED,
                one.body,
            ):
                wrong.append(f"finish {id.hex()} is gone")
    return wrong
