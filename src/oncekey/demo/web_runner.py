"""Plays scenarios for the page, one at a time in a task, and keeps their latest results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oncekey.demo.handlers import Handler
from oncekey.demo.scenarios.scenario import Scenario
from oncekey.demo.scenarios.scenarios import SCENARIOS

if TYPE_CHECKING:
    from oncekey.demo.environment import Environment


class WebRunner:
    """Knows what is playing now, and the latest result of each scenario with each handler."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._task: asyncio.Task[None] | None = None
        self._results: dict[tuple[str, Handler], dict[str, Any]] = {}
        self._playing = ""
        self._doing = ""
        self.version = 0

    def start(self, scenarios: Sequence[Scenario], handlers: Sequence[Handler]) -> bool:
        """Starts playing them; False if others are being played."""
        if self._task is not None and not self._task.done():
            return False
        self._task = asyncio.create_task(self._play(scenarios, handlers))
        return True

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def state(self) -> dict[str, Any]:
        known = ((scenario.name, handler) for scenario in SCENARIOS for handler in Handler)
        results = [self._results[one] for one in known if one in self._results]
        return {"playing": self._playing, "doing": self._doing, "results": results}

    async def _play(self, scenarios: Sequence[Scenario], handlers: Sequence[Handler]) -> None:
        try:
            for scenario in scenarios:
                self._playing = scenario.name
                for handler in handlers:
                    self._results.pop((scenario.name, handler), None)
                self._on_progress("")
                await asyncio.gather(*(self._play_one(scenario, handler) for handler in handlers))
        finally:
            self._playing = ""
            self._on_progress("")

    async def _play_one(self, scenario: Scenario, handler: Handler) -> None:
        try:
            result = await self._environment.play(scenario, handler, self._on_progress)
            self._results[scenario.name, handler] = result.as_data()
        except Exception as error:
            # It could not be played: the result says so, and the next scenario goes on.
            self._results[scenario.name, handler] = _failed(scenario, handler, error)
        self._on_progress(self._doing)

    def _on_progress(self, doing: str) -> None:
        self._doing = doing
        self.version += 1


def _failed(scenario: Scenario, handler: Handler, error: Exception) -> dict[str, Any]:
    message = f"it could not be played: {type(error).__name__}: {error}"
    return {
        "name": scenario.name,
        "handler": handler,
        "kind": scenario.kind,
        "ok": False,
        "answers": [],
        "faults": [message],
        "effect": "not played",
        "doubled": False,
        "counted": {"asked": 0, "acted": 0, "declined": 0},
    }
