"""Runs the demo's event loop for the command, and ends it when a signal comes.

Owns the signals. SIGINT and SIGTERM both stop it and clean up.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from oncekey.demo.environment import Environment
from oncekey.demo.scenario_runner import Report, play
from oncekey.demo.scenarios.scenarios import BY_NAME, SCENARIOS

T = TypeVar("T")

NAMES = tuple(BY_NAME)


def serve(
    folder: Path, *, store: str | None, port: int | None, started: Callable[[Environment], None]
) -> None:
    """Serves until a signal comes; calls `started` as soon as the servers are up."""

    async def serve_until_cancelled() -> None:
        async with Environment(folder, store_url=store, port=port) as environment:
            started(environment)
            await asyncio.Event().wait()

    _run(serve_until_cancelled())


def play_all(
    folder: Path,
    *,
    store: str | None,
    port: int | None,
    shown: Callable[[str], str],
    kept: bool,
    only: Sequence[str],
    compare: bool,
    on_progress: Callable[[str], None],
) -> Report | None:
    """Starts everything, plays, stops everything; None if a signal came first."""
    chosen = [one for one in SCENARIOS if not only or one.name in only]

    async def play_scenarios() -> Report:
        async with Environment(folder, store_url=store, port=port or 0) as environment:
            url = shown(environment.store_url)
            return await play(
                environment,
                store=url,
                kept=kept,
                on_progress=on_progress,
                scenarios=chosen,
                compare=compare,
            )

    return _run(play_scenarios())


def _run(work: Coroutine[Any, Any, T]) -> T | None:
    """Runs it to its end and returns its result; None if a signal cancelled it."""

    async def interruptible() -> T | None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            # Only once: a second signal must not interrupt the clean-up after the first.
            if not task.cancelling():
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        try:
            return await task
        except asyncio.CancelledError:
            return None

    return asyncio.run(interruptible())
