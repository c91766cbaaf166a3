"""Plays scenarios and sums them up. Prints nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oncekey.demo.environment import Environment
from oncekey.demo.handlers import Handler
from oncekey.demo.provider.ledger import Kind
from oncekey.demo.scenario_result import VERBS, ScenarioResult
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
    #: The same scenarios with the naive handler, in the same order; None if it was not played.
    without: tuple[ScenarioResult, ...] | None = None

    @property
    def ok(self) -> bool:
        """Whether oncekey kept its promises. The naive handler made none."""
        return bool(self.results) and all(result.ok for result in self.results)

    @property
    def summary(self) -> str:
        """The one line to remember."""
        count = f"{len(self.results)} scenario{'s' if len(self.results) != 1 else ''}"
        if self.ok:
            return f"{count}, every operation ran once"
        broken = ", ".join(result.name for result in self.results if not result.ok)
        return f"{count}, promises were broken in {broken or 'all: nothing ran'}"

    def doubled(self, kind: Kind) -> dict[str, int | None]:
        """In how many scenarios a card was charged, an amount refunded, or an order shipped, more
        than once."""

        def count(results: tuple[ScenarioResult, ...]) -> int:
            return sum(result.is_doubled and result.kind == kind for result in results)

        without = None if self.without is None else count(self.without)
        return {"without": without, "with": count(self.results)}

    @property
    def headline(self) -> str:
        """What a comparison is about, in one line; empty if nothing was compared."""
        if self.without is None:
            return ""
        charged = self.doubled("charge")
        others = (
            f"; {verb} twice: {self.doubled(kind)['without']} / {self.doubled(kind)['with']}"
            for kind, verb in VERBS.items()
            if kind != "charge"
        )
        first = f"charged twice: {charged['without']} without oncekey / {charged['with']} with"
        return first + "".join(others)

    def as_data(self) -> dict[str, Any]:
        without = None if self.without is None else [one.as_data() for one in self.without]
        return {
            "ok": self.ok,
            "summary": self.summary,
            "seconds": round(self.seconds, 3),
            "store": self.store,
            "caller": self.caller,
            "kept": self.kept,
            "charged_twice": self.doubled("charge"),
            "refunded_twice": self.doubled("refund"),
            "shipped_twice": self.doubled("shipment"),
            "scenarios": [result.as_data() for result in self.results],
            "without": without,
        }


async def play(
    environment: Environment,
    *,
    store: str,
    kept: bool,
    on_progress: OnProgress,
    scenarios: Sequence[Scenario] = SCENARIOS,
    compare: bool = False,
) -> Report:
    """Plays all scenarios at once in a started environment: each has its own keys, so none disturbs
    another. `compare` plays them with the naive handler too. `on_progress` is called with what is
    being done."""
    started = time.monotonic()
    handlers = (Handler.GUARDED, Handler.NAIVE) if compare else (Handler.GUARDED,)
    tasks = [
        asyncio.create_task(environment.play(scenario, handler, _named(on_progress, scenario.name)))
        for handler in handlers
        for scenario in scenarios
    ]
    try:
        results = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()  # where one could not be played, the others need not go on
        await asyncio.gather(*tasks, return_exceptions=True)
    caller = environment.data_dir.scenario_account.id
    seconds, ours = time.monotonic() - started, tuple(results[: len(scenarios)])
    without = tuple(results[len(scenarios) :]) if compare else None
    return Report(store, caller, kept, ours, seconds, without)


def _named(on_progress: OnProgress, name: str) -> OnProgress:
    return lambda doing: on_progress(f"{name}: {doing}")
