"""The task that keeps etcd's sessions alive outlives whatever its client raises."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from oncekey.stores.etcd.shared_store import SharedStore


def test_the_beat_goes_on_after_an_error_that_nobody_expects(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else the sessions of the process would end, and with them its claims, without a word."""

    class Sessions:
        interval = 60.0

        def __init__(self) -> None:
            self.changed = asyncio.Event()
            self.beats = 0

        async def keep_alive(self, of_session: object) -> None:
            self.beats += 1
            if self.beats == 1:
                self.changed.set()
                raise Exception("of no class that anybody names")
            second.set()

    async def main() -> None:
        sessions: Any = Sessions()
        store: Any = SharedStore.__new__(SharedStore)
        store.sessions = sessions
        store.held = type("Held", (), {"of_session": None})

        async def nothing() -> None:
            return None

        store.let_lapse = nothing
        beat = asyncio.create_task(store._beat())
        while not sessions.beats:
            await asyncio.sleep(0)
            sessions.changed.set()
        await asyncio.wait_for(_until(second, sessions), 60)
        beat.cancel()

    async def _until(event: asyncio.Event, sessions: Any) -> None:
        while not event.is_set():
            sessions.changed.set()
            await asyncio.sleep(0)

    second = asyncio.Event()
    with caplog.at_level(logging.ERROR, "oncekey"):
        asyncio.run(main())
    assert "of no class that anybody names" in caplog.text
