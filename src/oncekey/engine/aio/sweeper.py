"""A task that sweeps the store while its engine is elected to.

It lives on the event loop that first used the engine; when that loop ends, the next use starts it
again on its own. Owns the task; when and how much is in engine/sweeping.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context

from oncekey.core.contract import AsyncStore
from oncekey.engine.aio.heart import sleep
from oncekey.engine.clock import Clock, new_owner
from oncekey.engine.sweeping import SweepPlan, rest_after, warn


class AsyncSweeper:
    def __init__(
        self,
        store: AsyncStore,
        plan: SweepPlan,
        clock: Clock,
        ended: Callable[[], None],
    ) -> None:
        self._store = store
        self._plan = plan
        self._clock = clock
        self._tell_ended = ended
        self._stopped = False
        self.reset()

    def reset(self) -> None:
        """No task yet: at the start, and in a forked child, which is another candidate."""
        self._lock = threading.Lock()  # loops in several threads may share an engine
        self._task: asyncio.Task[None] | None = None
        self._token = new_owner()

    def start(self) -> None:
        """On the running loop, unless it runs already."""
        with self._lock:
            if self._task is None and not self._stopped:
                # In no context: it must not keep alive what the first caller's holds.
                create_task = asyncio.get_running_loop().create_task
                self._task = Context().run(create_task, self._run())
                self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        with self._lock:
            self._stopped = True
            task = self._task
        if task is None:
            return
        if task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])
        else:
            with suppress(RuntimeError):  # that loop is closed already
                task.get_loop().call_soon_threadsafe(task.cancel)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Its loop is about to end, or the engine was closed."""
        if self._task is task:
            self._task = None
            self._tell_ended()

    async def _run(self) -> None:
        while True:
            await sleep(self._clock, self._clock.jitter(self._plan.every))
            try:
                await self._sweep()
            except Exception as error:  # whatever it was: the next period is another try
                warn(error)

    async def _sweep(self) -> None:
        """Until nothing is left or the next period is due, if we are the elected one."""
        due = self._clock.now() + self._plan.every
        if not await self._store.elect(self._token, self._plan.lease):
            return
        began = self._clock.now()
        while await self._store.sweep(self._plan.limit):
            ended = self._clock.now()
            if ended >= due:
                return
            if rest := rest_after(ended - began):
                await sleep(self._clock, rest)
            began = self._clock.now()
