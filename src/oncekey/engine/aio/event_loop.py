"""Refuses event loops other than asyncio's, such as Trio's, with an error that says what to do."""

from __future__ import annotations

import asyncio
from typing import Final

from oncekey.core.errors import ConfigurationError

_ENGINE: Final = (
    "AsyncOnce needs asyncio, and this code runs on another event loop, such as Trio's: run it by "
    "asyncio.run(), or use Once in a thread, as trio.to_thread.run_sync() does"
)
_SERVED: Final = (
    "{} asyncio, and this server runs the app on another event loop, such as Trio's: start it with "
    "one of asyncio, as `hypercorn --worker-class asyncio` does"
)


def wrong_event_loop() -> ConfigurationError:
    """The error to raise where an engine finds no loop of asyncio."""
    return ConfigurationError(_ENGINE)


def running_loop() -> asyncio.AbstractEventLoop:
    """The loop that an engine is used on. Raises ConfigurationError on one of another kind."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise wrong_event_loop() from None


def require_asyncio(served: str) -> None:
    """Raise ConfigurationError if a server runs an app on an event loop of another kind. `served`
    is what needs asyncio, with its verb."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(_SERVED.format(served)) from None
