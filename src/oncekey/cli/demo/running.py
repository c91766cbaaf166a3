"""Runs the demo's event loop for the command, and ends it in order when a signal says so.

Owns the signals. SIGINT and SIGTERM mean the same: stop, with nothing left behind.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from oncekey.demo.play import Report, play
from oncekey.demo.scenarios.scenarios import BY_NAME, SCENARIOS
from oncekey.demo.stage import Stage

T = TypeVar("T")

NAMES = tuple(BY_NAME)


def serve(
    folder: Path, *, store: str | None, port: int | None, started: Callable[[Stage], None]
) -> None:
    """Serve until a signal comes; `started` is called when it can be used."""

    async def serving() -> None:
        async with Stage(folder, store_url=store, port=port) as stage:
            started(stage)
            await asyncio.Event().wait()

    _run(serving())


def play_all(
    folder: Path,
    *,
    store: str | None,
    port: int | None,
    shown: Callable[[str], str],
    kept: bool,
    only: Sequence[str],
    tell: Callable[[str], None],
) -> Report | None:
    """Start everything, play, stop everything; None if a signal came first."""
    chosen = [one for one in SCENARIOS if not only or one.name in only]

    async def playing() -> Report:
        async with Stage(folder, store_url=store, port=port or 0) as stage:
            url = shown(stage.store_url)
            return await play(stage, store=url, kept=kept, tell=tell, scenarios=chosen)

    return _run(playing())


def _run(work: Coroutine[Any, Any, T]) -> T | None:
    """Run it to its end, or until a signal cancels it: then None."""

    async def interruptible() -> T | None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            # Once: a second signal must not break off what cleans up after the first.
            if not task.cancelling():
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        try:
            return await task
        except asyncio.CancelledError:
            return None

    return asyncio.run(interruptible())
