"""Opens and closes engines with the apps that use them.

An app may live several times in one process (a test client per test, Mangum), also several times
at once, and several apps may share an engine. The first to begin reopens an engine that was closed,
the last to end closes it. Owns the count of those in between.
"""

from __future__ import annotations

import threading
import weakref

from oncekey.engine.aio.once import AsyncOnce
from oncekey.engine.blocking.once import Once

_lock = threading.Lock()
_apps: weakref.WeakKeyDictionary[AsyncOnce | Once, int] = weakref.WeakKeyDictionary()


def begin(*engines: AsyncOnce | Once) -> None:
    """An app that uses these engines begins: they work from now on. Raises ConfigurationError for
    one that was closed and cannot be opened again."""
    with _lock:
        for engine in engines:
            engine.reopen()
        for engine in engines:
            _apps[engine] = _apps.get(engine, 0) + 1


def end(engine: AsyncOnce | Once) -> bool:
    """An app that uses this engine has ended; whether it was the last one."""
    with _lock:
        left = _apps.pop(engine, 1) - 1
        if left > 0:
            _apps[engine] = left
        return left <= 0
