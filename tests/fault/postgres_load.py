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
from typing import Any, NamedTuple

from tests.support.servers import Postgres

from oncekey.core.commands import Claim, Claimed, Command, Done, Finish, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import State
from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore
from oncekey.testing.sync_facade import LoopThread

LEASE = 3_600_000_000
BATCH = 4
_PAUSE_SECONDS = 0.01

Wave = Generator[Sequence[Command], list[Reply], None]


class Acknowledged(NamedTuple):
    """An acknowledged claim; with a body, an acknowledged finish too."""

    owner: bytes
    fence: int
    body: bytes | None = None


class Load:
    """Threads on a sync store and tasks on an async one, all on one schema."""

    def __init__(self, url: str, *, threads: int = 4, tasks: int = 6, **options: Any) -> None:
        self.acknowledged: dict[bytes, Acknowledged] = {}
        self.wrong_replies: list[str] = []
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self.sync_store = PostgresStore(url, **options)
        self.async_store = AsyncPostgresStore(url, **options)
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

    def __enter__(self) -> Load:
        self.sync_store.prepare()
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
        while len(self.acknowledged) < target and not self._stop.wait(0.001):
            pass


class _Stopped(Exception):
    """The run is over and the call got no reply."""


def lost(
    server: Postgres, acknowledged: dict[bytes, Acknowledged], schema: str = "oncekey"
) -> list[str]:
    """Return a line for every acknowledged claim or finish that the server does not have."""
    query = f"SELECT uuid_send(id), uuid_send(owner), fence, state, body FROM {schema}.records"  # noqa: S608
    found = {bytes(row[0]): row[1:] for row in server.execute(query)}
    wrong = []
    for id, one in acknowledged.items():
        owner, fence, state, body = found.get(id, (b"", 0, 0, b""))
        if (bytes(owner), fence) != (one.owner, one.fence):
            wrong.append(f"claim {id.hex()} is gone")
        elif one.body is not None and (state, bytes(body)) != (State.SUCCEEDED, one.body):
            wrong.append(f"finish {id.hex()} is gone")
    return wrong
