"""What a scenario is: how it is played and what it promises. Which there are is in scenarios.py."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from oncekey.demo.crew import Crew
from oncekey.demo.provider.books import Books, Counts, Kind
from oncekey.demo.scenarios.client import Client, Tell
from oncekey.demo.scene import Answer, Got, Scene


@dataclass(frozen=True, slots=True)
class Set:
    """What a scenario is played with."""

    client: Client
    books: Books
    crew: Crew
    tell: Tell


# What every caller got, and what else went wrong.
Played = tuple[tuple[Answer, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One of them: its name for commands, what it is about, and how it is played."""

    name: str
    title: str
    story: str
    play: Callable[[Set, str], Awaitable[Played]]
    expected: tuple[Got, ...]
    promised: Counts = field(default_factory=Counts)
    kind: Kind = "charge"

    async def run(self, on: Set) -> Scene:
        key = f"{self.name}-{secrets.token_hex(3)}"
        answers, problems = await self.play(on, key)
        counted = await asyncio.to_thread(on.books.counts, key, self.kind)
        return Scene(
            self.name,
            self.title,
            self.story,
            key,
            answers,
            self.expected,
            counted,
            self.promised,
            problems,
        )
