"""Callers of both colours that claim and finish without pause, and remember what they were told.

What a caller was told is an acknowledgement: it must be true for ever, whatever becomes of the
server (I4). A call whose reply was lost is repeated with the same owner until it is answered, as
the engine does.
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


class Told(NamedTuple):
    """What was acknowledged: the claim, and with a body the finish too."""

    owner: bytes
    fence: int
    body: bytes | None = None


class Load:
    """Threads on a blocking store and tasks on an async one, all on one schema."""

    def __init__(self, url: str, *, threads: int = 4, tasks: int = 6, **options: Any) -> None:
        self.told: dict[bytes, Told] = {}
        self.wrong: list[str] = []
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self.blocking = PostgresStore(url, **options)
        self.async_ = AsyncPostgresStore(url, **options)
        self._loop = LoopThread()
        self._threads = [threading.Thread(target=self._work) for _ in range(threads)]
        self._tasks = tasks

    # --- one wave: a batch of claims, then their finishes -----------------------------------------

    def _wave(self) -> Wave:
        """Every other claim stays open, so that a crash finds both."""
        claims = [
            Claim(os.urandom(16), os.urandom(16), b"\x01f", LEASE, LEASE, 0, retry_safe=False)
            for _ in range(BATCH)
        ]
        replies = yield claims
        finishes = []
        for claim, reply in zip(claims, replies, strict=True):
            if not isinstance(reply, Claimed):
                self.wrong.append(f"a claim of a new key was told {reply}")
                continue
            self.told[claim.id] = Told(claim.owner, reply.fence)
            if next(self._numbers) % 2:
                body = b"%d" % reply.fence
                finishes.append(Finish(claim.id, claim.owner, reply.fence, State.SUCCEEDED, body))
        if not finishes:
            return
        replies = yield finishes
        for finish, reply in zip(finishes, replies, strict=True):
            if isinstance(reply, Done):
                self.told[finish.id] = Told(finish.owner, finish.fence, finish.body)
            else:
                self.wrong.append(f"the finish of an owner was told {reply}")

    def _work(self) -> None:
        while not self._stop.is_set():
            wave = self._wave()
            commands = next(wave)
            try:
                while True:
                    commands = wave.send(self._answered(commands))
            except StopIteration:
                continue
            except _Stopped:
                return

    def _answered(self, commands: Sequence[Command]) -> list[Reply]:
        while not self._stop.is_set():
            try:
                return self.blocking.apply(commands)
            except StoreUnavailable:
                self._stop.wait(_PAUSE_SECONDS)
        raise _Stopped

    async def _work_async(self) -> None:
        while not self._stop.is_set():
            wave = self._wave()
            commands = next(wave)
            try:
                while True:
                    commands = wave.send(await self._answered_async(commands))
            except StopIteration:
                continue
            except _Stopped:
                return

    async def _answered_async(self, commands: Sequence[Command]) -> list[Reply]:
        while not self._stop.is_set():
            try:
                return await self.async_.apply(commands)
            except StoreUnavailable:
                await asyncio.sleep(_PAUSE_SECONDS)
        raise _Stopped

    # --- life -------------------------------------------------------------------------------------

    def __enter__(self) -> Load:
        self.blocking.prepare()
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
        self.blocking.close()
        self._loop.run(self.async_.close())
        self._loop.close()

    def wait_for(self, more: int) -> None:
        """Until that many more keys were acknowledged."""
        aim = len(self.told) + more
        while len(self.told) < aim and not self._stop.wait(0.001):
            pass


class _Stopped(Exception):
    """The run is over; the call was never answered."""


def lost(server: Postgres, told: dict[bytes, Told], schema: str = "oncekey") -> list[str]:
    """What was acknowledged and is not so."""
    query = f"SELECT uuid_send(id), uuid_send(owner), fence, state, body FROM {schema}.records"  # noqa: S608
    found = {bytes(row[0]): row[1:] for row in server.execute(query)}
    wrong = []
    for id, one in told.items():
        owner, fence, state, body = found.get(id, (b"", 0, 0, b""))
        if (bytes(owner), fence) != (one.owner, one.fence):
            wrong.append(f"claim {id.hex()} is gone")
        elif one.body is not None and (state, bytes(body)) != (State.SUCCEEDED, one.body):
            wrong.append(f"finish {id.hex()} is gone")
    return wrong
