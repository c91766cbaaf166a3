"""Plays scenarios for the page, one at a time in a task, and keeps their latest results."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from oncekey.demo.scenarios.scenario import Scenario
from oncekey.demo.scenarios.scenarios import SCENARIOS

if TYPE_CHECKING:
    from oncekey.demo.environment import Environment


class WebRunner:
    """Knows what is playing now and the latest result of each scenario."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._task: asyncio.Task[None] | None = None
        self._results: dict[str, dict[str, Any]] = {}
        self._playing = ""
        self._doing = ""
        self.version = 0

    def start(self, *scenarios: Scenario) -> bool:
        """Starts playing them; False if others are being played."""
        if self._task is not None and not self._task.done():
            return False
        self._task = asyncio.create_task(self._play(scenarios))
        return True

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def state(self) -> dict[str, Any]:
        results = [self._results[s.name] for s in SCENARIOS if s.name in self._results]
        return {"playing": self._playing, "doing": self._doing, "results": results}

    async def _play(self, scenarios: tuple[Scenario, ...]) -> None:
        try:
            for scenario in scenarios:
                self._playing = scenario.name
                self._results.pop(scenario.name, None)
                self._on_progress("")
                try:
                    result = await self._environment.play(scenario, self._on_progress)
                    self._results[scenario.name] = result.as_data()
                except Exception as error:
                    # It could not be played: the result says so, and the next scenario goes on.
                    self._results[scenario.name] = _failed(scenario.name, error)
        finally:
            self._playing = ""
            self._on_progress("")

    def _on_progress(self, doing: str) -> None:
        self._doing = doing
        self.version += 1


def _failed(name: str, error: Exception) -> dict[str, Any]:
    message = f"it could not be played: {type(error).__name__}: {error}"
    counted = {"asked": 0, "acted": 0}
    return {"name": name, "ok": False, "answers": [], "faults": [message], "counted": counted}
