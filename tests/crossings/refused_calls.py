"""Tries what a crossing cannot do, as an app or an operator would, and says how it was refused."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from tests.crossings.axes import Crossing
from tests.crossings.judge import CENTS
from tests.crossings.shop import Answer
from tests.crossings.surfaces import answered
from tests.crossings.worlds import World, open_ring, world_of

from oncekey.cli.main import main
from oncekey.cli.output import ExitCode


class Said(NamedTuple):
    """The names of the error's classes, and its text."""

    errors: tuple[str, ...]
    text: str


def refused_with(crossing: Crossing, folder: Path, capfd: pytest.CaptureFixture[str]) -> Said:
    """How the crossing is refused. Raises AssertionError if it is not, or if a body has run."""
    if (crossing.store, crossing.reader) == ("memory", "cli"):
        code = main(["stats", "memory://"])
        return Said((f"ExitCode.{ExitCode(code).name}",), capfd.readouterr().err)
    plain = crossing._replace(retention="sweep") if crossing.store != "postgres" else crossing
    with world_of(plain, folder) as world:
        answer = _first_refusal(world, crossing, folder)
        assert answer.kind == "refused", answer
        assert world.shop.runs["a"] == 0, "it ran all the same"
        assert answer.error is not None
        return Said(tuple(kind.__name__ for kind in type(answer.error).__mro__), str(answer.error))


def _first_refusal(world: World, crossing: Crossing, folder: Path) -> Answer:
    """The app is set up and called; it may be refused at any of these steps."""

    def set_up() -> None:
        if crossing.retention == "ring" and crossing.store != "postgres":
            world.open_on(open_ring(crossing, folder), world.place)
        else:
            world.open_before()

    made = answered(set_up)
    if made.kind == "done" and (crossing.move != "none" or crossing.change != "none"):
        made = world.surface.call("m", CENTS)
    if made.kind == "done":
        made = answered(world.open_after)
    if made.kind == "done" and crossing.change != "none":
        made = world.surface.call("m", CENTS)  # the engine has used its store
        if made.kind == "done":
            world.change()
    return world.surface.call("a", CENTS) if made.kind == "done" else made
