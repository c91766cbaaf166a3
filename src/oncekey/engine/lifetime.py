"""Ends an engine, and opens it again: what `Once` and `AsyncOnce` do alike.

After `close` nothing answers, replays from the cache included. An app that is started again in the
same process (a test client per test, a function that is frozen and thawed) reopens it. One that is
dropped without `close` frees its threads and connections and says so: what runs for an engine
refers to it weakly only.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from oncekey.core.errors import ConfigurationError, StoreUnavailable


def was_closed(engine: object) -> StoreUnavailable:
    """The error of every call after `close`: trying again cannot help."""
    name = type(engine).__name__
    return StoreUnavailable(
        f"this {name} was closed and nothing is run; make a new one, or reopen() it. One that is "
        "shared is closed last, by whoever made it (close=False for an app's middleware)",
        ambiguous=False,
        final=True,
    )


def reopen_store(store: Any) -> None:
    """Have a store that was closed work again; ConfigurationError where it cannot."""
    reopen = getattr(store, "reopen", None)
    if reopen is None:
        raise ConfigurationError(
            f"a {type(store).__name__} cannot be opened again after it was closed; make a new "
            "engine, or do not close this one with the app (close=False)"
        )
    reopen()


class _Stoppable(Protocol):
    def abandon(self) -> None:
        """Stop, without waiting for it."""


class Holdings:
    """What an engine holds that no garbage collector frees: its threads, timers and connections.

    `running` are the parts to be stopped, which change at a fork and with `reopen`; `store` is one
    that the engine has opened itself, else None; `opened` tells whether it was used.
    """

    def __init__(self, store: Any, *, opened: bool) -> None:
        self.running: list[_Stoppable] = []
        self.store = store
        self.opened = opened


def free_when_dropped(engine: object, holdings: Holdings) -> weakref.finalize[[Any, Any], Any]:
    """Free them when nobody refers to the engine any more, unless this is detached before."""
    watch = weakref.finalize(engine, _dropped, type(engine).__name__, holdings)
    watch.atexit = False  # the process frees everything by itself
    return watch


def _dropped(name: str, holdings: Holdings) -> None:
    for part in holdings.running:
        part.abandon()
    store = holdings.store
    if store is None or store.immediate or not holdings.opened:
        return
    with suppress(Exception):  # nobody is left to be told
        getattr(store, "abandon", store.close)()
    way = "await its close(), or use it by `async with`" if name == "AsyncOnce" else _BY_WITH
    warnings.warn(
        f"{name}: nobody closed it before it was dropped; {way}",
        ResourceWarning,
        stacklevel=2,
    )


_BY_WITH: Final = "call its close(), or use it by `with`"


def weakly(method: Callable[..., Any]) -> Callable[[], Callable[..., Any] | None]:
    """A way to the method that does not keep its object alive; gives None once that is gone."""
    return weakref.WeakMethod(method)
