"""When connections must end: before a fork, and with their event loop.

Objects that must not stay open across a fork are called before it, and after it on both sides. No
thread holds the lock on their list while a child process is created. `asyncio.run` and the like
close the async generators of their loop at its end; so whatever a store has open in one event loop
holds a generator that closes it, even if nobody closed the store. This module knows no driver.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar


class Forkable(Protocol):
    def _before_fork(self) -> None: ...
    def _after_in_parent(self) -> None: ...
    def _after_in_child(self) -> None: ...


F = TypeVar("F", bound=Forkable)


class Forkables(Generic[F]):
    """All living objects of one kind. Create one list per kind, when its module is imported."""

    def __init__(self) -> None:
        self._all: weakref.WeakSet[F] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._held: list[F] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before,
                after_in_parent=self._after_in_parent,
                after_in_child=self._after_in_child,
            )

    def add(self, one: F) -> None:
        with self._lock:
            self._all.add(one)

    def _before(self) -> None:
        self._lock.acquire()
        self._held.extend(self._all)
        for one in self._held:
            one._before_fork()

    def _after_in_parent(self) -> None:
        for one in self._held:
            one._after_in_parent()
        self._held.clear()
        self._lock.release()

    def _after_in_child(self) -> None:
        for one in self._held:
            one._after_in_child()
        self._held.clear()
        self._lock.release()


def file_identity(path: str) -> tuple[int, int] | None:
    """Device and inode of the file at this path, None if there is no file. Two files that had the
    same name one after the other differ in it."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class ClosedWithLoop:
    """What one event loop has open: a subclass says how to close it."""

    def __init__(self) -> None:
        self._closer = self._close_with_the_loop()

    async def close_all(self) -> None:
        raise NotImplementedError

    async def begin(self) -> None:
        """Start the generator, in the loop whose end closes everything."""
        await anext(self._closer)

    async def _close_with_the_loop(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.close_all()


L = TypeVar("L", bound=ClosedWithLoop)


class PerLoop(Generic[L]):
    """One object that is closed with its loop for each event loop; loops may run in many threads.

    A forked child starts with none: the open ones are its parent's. If the child closed them, the
    event loop's selector, which both share, would stop reporting them to the parent.
    """

    def __init__(self, make: Callable[[], L]) -> None:
        self._make = make
        self._inherited: list[Any] = []
        self._reset()
        _alive.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, L]
        self._by_loop = weakref.WeakKeyDictionary()

    def disown(self) -> None:
        """Called in a forked child."""
        self._inherited.append(list(self._by_loop.items()))
        self._reset()

    def find(self) -> L | None:
        """The running loop's object, if it was added."""
        return self._by_loop.get(asyncio.get_running_loop())

    async def add(self) -> L:
        """The running loop's object, which may have been added meanwhile."""
        own = self._make()
        with self._lock:
            # Forget loops that were closed; what they had open was closed with them.
            for closed in [other for other in self._by_loop if other.is_closed()]:
                del self._by_loop[closed]
            first = self._by_loop.setdefault(asyncio.get_running_loop(), own)
        if first is own:
            await own.begin()
        return first

    async def close(self) -> None:
        """Close what the running loop has open, and let other loops close theirs."""
        current = asyncio.get_running_loop()
        self.abandon(except_in=current)
        own = self._by_loop.get(current)
        if own is not None:
            await own.close_all()

    def abandon(self, *, except_in: asyncio.AbstractEventLoop | None = None) -> None:
        """Let each loop close what it has open, without waiting. May be called in any thread."""
        with self._lock:
            by_loop = list(self._by_loop.items())
        for loop, own in by_loop:
            if loop is not except_in:
                _close_elsewhere(loop, own)


def _close_elsewhere(loop: asyncio.AbstractEventLoop, own: ClosedWithLoop) -> None:
    """Let a loop close what it has open, unless it was closed, and that with it."""
    tasks: set[asyncio.Task[None]] = set()

    def close() -> None:
        task = loop.create_task(own.close_all())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    with suppress(RuntimeError):
        loop.call_soon_threadsafe(close)


_alive: weakref.WeakSet[PerLoop[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    for one in list(_alive):
        one.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
