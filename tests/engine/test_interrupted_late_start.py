"""A run that is interrupted while it renews a late start gives back whichever claim it has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.engine.interrupter import Stop

from oncekey import AsyncOnce, Once
from oncekey.core.commands import Command, Lost, Renew, Reply
from oncekey.engine.attempts import attempt_driver as aio_driver
from oncekey.engine.attempts import runner as blocking_runner
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore


class Slow(MemoryStore):
    """A store whose first `lost` renewals come too late; a signal interrupts the next one."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        if type(commands[0]) is Renew:
            self.lost -= 1
            if self.lost < 0:
                raise Stop
            return [Lost()]
        return super().apply(commands)


class AsyncSlow(AsyncMemoryStore):
    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self.memory.apply(commands)


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_run_interrupted_while_it_renews_a_late_start_frees_its_key(
    kind: str, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (aio_driver, blocking_runner):
        monkeypatch.setattr(module, "starts_too_late", lambda grant, now: True)
    store = Slow(lost)
    if kind == "threads":
        with pytest.raises(Stop):
            Once(store).run("op", "k", never)
    else:
        with pytest.raises(Stop):
            asyncio.run(AsyncOnce(AsyncSlow(store)).run("op", "k", never_async))
    (record,) = store._records.values()
    assert record.state.name == "ABSENT"


def never(attempt: Any) -> None:
    raise AssertionError("too late to begin")


async def never_async(attempt: Any) -> None:
    never(attempt)
