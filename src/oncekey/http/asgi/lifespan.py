"""Starts and ends engines with their apps, and holds a shutdown back until no request runs.

1. Engines. An app may live several times in one process (a test client per test, Mangum), also
   several times at once, and several apps may share an engine. The first app that starts reopens an
   engine that was closed; the last one that ends closes it.
2. Running requests. A shutdown waits for their tasks (request_tasks.py).
3. Mounted apps. A server sends its lifespan events to the app it serves, and that app does not pass
   them on to apps that are mounted in it. So whoever gets the events waits for the mounted guards
   too: another guard of the process, or `draining()` in the lifespan of the app that is served.

`AppGuard` is what is drained: the base of the middleware and of FastAPI's set-up, which run an app
under keys. Owns the counts and sets behind these three. Knows no framework.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakSet

from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.event_loop import require_asyncio
from oncekey.engine.once import Once
from oncekey.http.asgi.request_tasks import RequestTasks
from oncekey.http.exchange import Exchange
from oncekey.http.message import App, Message, Receive, Scope, Send
from oncekey.http.unguarded_keys import UnguardedKeys

_log = logging.getLogger("oncekey")

# --- engines ------------------------------------------------------------------------------------

_lock = threading.Lock()
_apps: weakref.WeakKeyDictionary[AsyncOnce | Once, int] = weakref.WeakKeyDictionary()


def acquire_engines(*engines: AsyncOnce | Once) -> None:
    """An app that uses these engines starts: open those that were closed. Raises
    ConfigurationError for one that cannot be opened again."""
    with _lock:
        for engine in engines:
            engine.reopen()
        for engine in engines:
            _apps[engine] = _apps.get(engine, 0) + 1


def release_engine(engine: AsyncOnce | Once) -> bool:
    """An app that uses this engine has ended. True if no other app uses it: close it then."""
    with _lock:
        left = _apps.pop(engine, 1) - 1
        if left > 0:
            _apps[engine] = left
        return left <= 0


class AppGuard:
    """Guards the requests of one ASGI app.

    lifespans    counts the app's running lifespans
    is_noted     whether it has served a request outside of one
    unprotected  counts runs without a key's protection because the store was down
    tasks        those of its requests
    """

    lifespans = 0
    is_noted = False
    unprotected = 0

    def __init__(
        self, once: AsyncOnce, exchange: Exchange, drain: Duration, unguarded: str
    ) -> None:
        if not isinstance(once, AsyncOnce):
            raise ConfigurationError(f"once must be an AsyncOnce, not a {type(once).__name__}")
        self.once = once
        self.exchange = exchange
        self.tasks = RequestTasks()
        self.unguarded = UnguardedKeys(exchange, once.notify, unguarded)
        self._drain = microseconds(drain, name="drain") / 1_000_000

    async def drain(self) -> None:
        """Wait for the running requests, also for those whose clients are gone."""
        until = time.monotonic() + self._drain
        await self.once.drain(self._drain)
        await self.tasks.wait(max(0.0, until - time.monotonic()))


# --- apps that are mounted in another -----------------------------------------------------------

_without_lifespan: WeakSet[Any] = WeakSet()  # guards that have served a request outside of one
_warned: WeakSet[Any] = WeakSet()
_covered: WeakSet[asyncio.AbstractEventLoop] = WeakSet()  # loops that `draining()` is used in


def check_event_loop() -> None:
    """Raise ConfigurationError on an event loop of another kind than asyncio's, such as Trio's."""
    require_asyncio("oncekey's guards for ASGI need")


def note_request(guard: AppGuard, scope: Scope) -> None:
    """Called when a guard gets a request. Remembers a guard that gets no lifespan events, and logs
    a warning if nobody else will wait for its requests."""
    root_path = scope.get("root_path")
    if guard.lifespans or (guard.is_noted and not root_path):
        return
    check_event_loop()
    guard.is_noted = True
    _without_lifespan.add(guard)
    if not root_path or guard in _warned:
        return
    _warned.add(guard)
    if asyncio.get_running_loop() not in _covered:
        _log.warning(
            "the guarded app at %s gets no lifespan events, so a server that shuts down does not "
            "wait for what it runs. In the lifespan of the app that is served: "
            "async with oncekey.http.asgi.draining(): yield",
            root_path,
        )


@asynccontextmanager
async def draining() -> AsyncIterator[None]:
    """Waits at the end for the requests that mounted guards are running, for each at most as long
    as its own `drain`. Use it in the lifespan of the app that is served, around whatever the
    handlers need."""
    loop = asyncio.get_running_loop()
    _covered.add(loop)
    try:
        yield
    finally:
        _covered.discard(loop)
        await drain_mounted()


async def drain_mounted() -> None:
    """Wait for the requests of every guard that gets no lifespan events."""
    guards = [guard for guard in _without_lifespan if not guard.lifespans]
    await asyncio.gather(*(guard.drain() for guard in guards))


# --- the lifespan events of an ASGI app ---------------------------------------------------------


async def run_lifespan(
    app: App, guard: AppGuard, engine: AsyncOnce | None, scope: Scope, receive: Receive, send: Send
) -> None:
    """Run the lifespan of a guarded app. The app gets its shutdown event when no request runs any
    more, because the app then closes what these need. `engine` starts and ends with the app; None
    if somebody else closes it."""
    is_acquired = False

    async def receive_event() -> Message:
        nonlocal is_acquired
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                check_event_loop()
                if engine is not None:
                    acquire_engines(engine)
            except ConfigurationError as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                raise
            is_acquired = engine is not None
        elif message["type"] == "lifespan.shutdown":
            await guard.drain()
            await drain_mounted()
        return message

    async def send_event(message: Message) -> None:
        nonlocal is_acquired
        # The engine is closed before the event is sent, because some servers then cancel this
        # task; and not when the app returns, because an app without a lifespan does so at once.
        if engine is not None and message["type"].startswith("lifespan.shutdown."):
            is_acquired = False
            if release_engine(engine):
                await engine.close()
        await send(message)

    guard.lifespans += 1
    try:
        await app(scope, receive_event, send_event)
    finally:
        guard.lifespans -= 1
        if engine is not None and is_acquired:  # the app failed to start, or sent no shutdown event
            release_engine(engine)
