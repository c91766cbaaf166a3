"""Plays scenarios and sums them up. Prints nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oncekey.demo.environment import Environment
from oncekey.demo.scenario_result import ScenarioResult
from oncekey.demo.scenarios.scenario import Scenario
from oncekey.demo.scenarios.scenarios import SCENARIOS

OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Report:
    """One whole run. `store` is a URL without secrets, `caller` the account that was used."""

    store: str
    caller: str
    kept: bool
    results: tuple[ScenarioResult, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return bool(self.results) and all(result.ok for result in self.results)

    @property
    def summary(self) -> str:
        """The one line to remember."""
        count = f"{len(self.results)} scenario{'s' if len(self.results) != 1 else ''}"
        if self.ok:
            return f"{count}, every operation ran once"
        broken = ", ".join(result.name for result in self.results if not result.ok)
        return f"{count}, promises were broken in {broken or 'all: nothing ran'}"

    def as_data(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "summary": self.summary,
            "seconds": round(self.seconds, 3),
            "store": self.store,
            "caller": self.caller,
            "kept": self.kept,
            "scenarios": [result.as_data() for result in self.results],
        }


async def play(
    environment: Environment,
    *,
    store: str,
    kept: bool,
    on_progress: OnProgress,
    scenarios: Sequence[Scenario] = SCENARIOS,
) -> Report:
    """Plays all scenarios at once in a started environment: each has its own keys, so none disturbs
    another. `on_progress` is called with what is being done."""
    started = time.monotonic()
    tasks = [
        asyncio.create_task(environment.play(scenario, _named(on_progress, scenario.name)))
        for scenario in scenarios
    ]
    try:
        results = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()  # where one could not be played, the others need not go on
        await asyncio.gather(*tasks, return_exceptions=True)
    caller = environment.data_dir.scenario_account.id
    return Report(store, caller, kept, tuple(results), time.monotonic() - started)


def _named(on_progress: OnProgress, name: str) -> OnProgress:
    return lambda doing: on_progress(f"{name}: {doing}")
