"""Objects that must not stay open across a fork are called before it, and after it on both sides.

This module owns the list of those objects and its lock, which no thread holds while a child process
is created. What an object does about a fork is its own concern.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Generic, Protocol, TypeVar


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
