"""The scenario type: how one is played and what it promises. scenarios.py has all of them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from oncekey.demo.handlers import Handler
from oncekey.demo.provider.ledger import Counts, Kind, ProviderLedger
from oncekey.demo.scenario_result import CallerResult, ResponseKind, ScenarioResult
from oncekey.demo.scenarios.scenario_client import Client, OnProgress
from oncekey.demo.workers import Workers


@dataclass(frozen=True, slots=True)
class ScenarioTools:
    """What a scenario works with."""

    client: Client
    ledger: ProviderLedger
    workers: Workers
    #: The file of the queues of orders.
    queues: Path
    on_progress: OnProgress


# What every caller got, and what went wrong besides.
Played = tuple[tuple[CallerResult, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario: its name on the command line, its story, and the function that plays it."""

    name: str
    title: str
    #: What goes wrong, whichever handler there is; then what each of the two makes of it.
    story: str
    with_oncekey: str
    without_oncekey: str
    play: Callable[[ScenarioTools, str], Awaitable[Played]]
    expected: tuple[ResponseKind, ...]
    promised: Counts = field(default_factory=Counts)
    kind: Kind = "charge"

    async def run(self, tools: ScenarioTools) -> ScenarioResult:
        key = f"{self.name}-{secrets.token_hex(3)}"
        answers, problems = await self.play(tools, key)
        counted = await asyncio.to_thread(tools.ledger.counts, key, self.kind)
        return ScenarioResult(
            self.name,
            self.title,
            self.story,
            key,
            answers,
            self.expected,
            counted,
            self.promised,
            problems,
            self.kind,
            tools.client.handler,
            self.reason(tools.client.handler),
        )

    def reason(self, handler: Handler) -> str:
        return self.without_oncekey if handler is Handler.NAIVE else self.with_oncekey
