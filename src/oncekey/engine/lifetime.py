"""Closes an engine, reopens it, and frees one that was dropped: for `Once` and `AsyncOnce` alike.

After `close` every call raises, also one that the replay cache could answer. An app that is started
again in the same process (a test client per test, a function that is frozen and thawed) reopens its
engine. An engine that is dropped without `close` frees its threads and connections and warns; for
that, what runs in the background for an engine refers to it weakly only.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from oncekey.core.errors import ConfigurationError, StoreUnavailable


def closed_error(engine: object) -> StoreUnavailable:
    """The error of every call after `close`: trying again cannot help."""
    name = type(engine).__name__
    return StoreUnavailable(
        f"this {name} was closed and nothing is run; make a new one, or reopen() it. One that is "
        "shared is closed last, by whoever made it (close=False for an app's middleware)",
        ambiguous=False,
        final=True,
    )


def reopen_store(store: Any) -> None:
    """Reopen a store that was closed; ConfigurationError if it cannot be."""
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


class EngineResources:
    """What an engine has that no garbage collector frees: threads, timers and connections.

    running  the parts to stop; they change at a fork and with `reopen`
    store    the store if the engine has opened it itself, else None
    opened   whether the store was used
    """

    def __init__(self, store: Any, *, opened: bool) -> None:
        self.running: list[_Stoppable] = []
        self.store = store
        self.opened = opened


def free_when_dropped(
    engine: object, resources: EngineResources
) -> weakref.finalize[[Any, Any], Any]:
    """Free the resources once nobody refers to the engine any more, unless detached before."""
    finalizer = weakref.finalize(engine, _free, type(engine).__name__, resources)
    finalizer.atexit = False  # the process frees everything by itself
    return finalizer


def _free(name: str, resources: EngineResources) -> None:
    for part in resources.running:
        part.abandon()
    store = resources.store
    if store is None or store.immediate or not resources.opened:
        return
    with suppress(Exception):  # there is nobody to raise it to
        getattr(store, "abandon", store.close)()
    advice = "await its close(), or use it by `async with`" if name == "AsyncOnce" else _BY_WITH
    warnings.warn(
        f"{name}: nobody closed it before it was dropped; {advice}",
        ResourceWarning,
        stacklevel=2,
    )


_BY_WITH: Final = "call its close(), or use it by `with`"


def weak_method(method: Callable[..., Any]) -> Callable[[], Callable[..., Any] | None]:
    """A reference to a method that does not keep its object alive; gives None once that is gone."""
    return weakref.WeakMethod(method)
