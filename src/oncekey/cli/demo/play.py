"""Plays the scenarios one after the other and sums them up. Prints nothing."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncekey.cli.demo.scenarios import SCENARIOS, Scenario
from oncekey.cli.demo.scene import Scene
from oncekey.cli.demo.stage import Stage, Tell, store_url


@dataclass(frozen=True, slots=True)
class Report:
    """One whole run."""

    folder: Path
    kept: bool
    scenes: tuple[Scene, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return bool(self.scenes) and all(scene.ok for scene in self.scenes)

    @property
    def summary(self) -> str:
        """The one line to remember."""
        # "3a" and "3b" are two levels of one scenario.
        count = len({scene.number[0] for scene in self.scenes})
        if self.ok:
            return f"{count} scenarios, every operation ran once"
        broken = ", ".join(scene.number for scene in self.scenes if not scene.ok)
        return f"{count} scenarios, promises were broken in {broken or 'all: nothing ran'}"

    def as_data(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "summary": self.summary,
            "seconds": round(self.seconds, 3),
            "store": store_url(self.folder),
            "kept": self.kept,
            "scenarios": [
                {**dataclasses.asdict(scene), "ok": scene.ok, "faults": scene.faults}
                for scene in self.scenes
            ],
        }


def play(
    folder: Path, *, kept: bool, tell: Tell, scenarios: Sequence[Scenario] = SCENARIOS
) -> Report:
    """Play everything on files in `folder`; `tell` hears what is being done."""
    started = time.monotonic()
    with Stage(folder, tell) as stage:
        scenes = []
        for number, scenario in enumerate(scenarios, 1):
            name = scenario.__name__.replace("_", " ")
            stage.begin(f"{number}/{len(scenarios)} {name}")
            scenes.append(scenario(stage))
    return Report(folder, kept, tuple(scenes), time.monotonic() - started)
