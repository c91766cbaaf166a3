"""The end of an engine, and what may come after it: what `Once` and `AsyncOnce` do alike.

After `close` nothing answers, replays from the cache included. An app that is started again in the
same process (a test client per test, a function that is frozen and thawed) reopens it.
"""

from __future__ import annotations

from typing import Any

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
