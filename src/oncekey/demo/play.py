"""Plays scenarios and sums them up. Prints nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oncekey.demo.scenarios.scenario import Scenario
from oncekey.demo.scenarios.scenarios import SCENARIOS
from oncekey.demo.scene import Scene
from oncekey.demo.stage import Stage

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Report:
    """One whole run. `store` is a URL that may be shown, `caller` whose keys they were."""

    store: str
    caller: str
    kept: bool
    scenes: tuple[Scene, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return bool(self.scenes) and all(scene.ok for scene in self.scenes)

    @property
    def summary(self) -> str:
        """The one line to remember."""
        count = f"{len(self.scenes)} scenario{'s' if len(self.scenes) != 1 else ''}"
        if self.ok:
            return f"{count}, every operation ran once"
        broken = ", ".join(scene.name for scene in self.scenes if not scene.ok)
        return f"{count}, promises were broken in {broken or 'all: nothing ran'}"

    def as_data(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "summary": self.summary,
            "seconds": round(self.seconds, 3),
            "store": self.store,
            "caller": self.caller,
            "kept": self.kept,
            "scenarios": [scene.as_data() for scene in self.scenes],
        }


async def play(
    stage: Stage,
    *,
    store: str,
    kept: bool,
    tell: Tell,
    scenarios: Sequence[Scenario] = SCENARIOS,
) -> Report:
    """Play on a stage that is up, all at once: each has keys of its own, and none gets into
    another's way. `tell` hears what is being done."""
    started = time.monotonic()
    tasks = [
        asyncio.create_task(stage.play(scenario, _named(tell, scenario.name)))
        for scenario in scenarios
    ]
    try:
        scenes = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()  # where one could not be played, the others need not go on
        await asyncio.gather(*tasks, return_exceptions=True)
    caller = stage.keeping.player.id
    return Report(store, caller, kept, tuple(scenes), time.monotonic() - started)


def _named(tell: Tell, name: str) -> Tell:
    return lambda doing: tell(f"{name}: {doing}")
