"""The judge can fail: for every rule it finds a fault. The table is whole, and on its page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.crossings import figures as figures_of
from tests.crossings import judge
from tests.crossings.axes import Crossing
from tests.crossings.covering_cases import Choice, all_parts, parts_of, refused, working
from tests.crossings.judge import CENTS, Judge, Judgement
from tests.crossings.page import PAGE, written
from tests.crossings.refusals import (
    MISSING,
    REFUSALS,
    Missing,
    Refusal,
    check_table,
    is_missing,
    refusals_of,
)
from tests.crossings.rules import RULES
from tests.crossings.shop import Answer
from tests.crossings.surfaces import Function
from tests.crossings.worlds import SURFACES, World, world_of

PLAIN = Crossing()
Call = Callable[[str, int], Answer]


class Faulty(Function):
    """A function whose guard has a fault, for one key or for all."""

    fault = ""

    def call(self, key: str, cents: int) -> Answer:
        faulty: dict[str, Call] = {
            "first": self._run_twice,
            "replay": self._run_again_for("a"),
            "mismatch": lambda key, cents: super(Faulty, self).call(key, CENTS),
            "error": self._run_again_for("b"),
            "death": self._run_again_for("c"),
            "moved": self._run_again_for("m"),
            "swept": self._never_run_again("a"),
        }
        return faulty.get(self.fault, super().call)(key, cents)

    def _run_twice(self, key: str, cents: int) -> Answer:
        self.shop.charge(key, cents)
        return super().call(key, cents)

    def _run_again_for(self, faulty: str) -> Call:
        """Whoever comes again with this key is not recognised."""

        def call(key: str, cents: int) -> Answer:
            if key == faulty and self.shop.runs[key]:
                return Answer("done", self.shop.charge(key, cents))
            return Function.call(self, key, cents)

        return call

    def _never_run_again(self, faulty: str) -> Call:
        """A key that is not fresh when it should be."""

        def call(key: str, cents: int) -> Answer:
            if key == faulty and self.shop.runs[key] and cents == CENTS:
                return Answer("done", {"charge": f"ch_{key}_1", "cents": cents})
            return Function.call(self, key, cents)

        return call


@pytest.mark.parametrize("rule", RULES)
def test_the_judge_finds_a_fault_of_every_rule(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Faulty, "fault", rule)
    monkeypatch.setitem(SURFACES, "function", Faulty)
    effects = World.effects

    def shown(world: World, said: Any) -> Any:
        figures = figures_of.read(world, said)
        if rule == "label":
            return figures._replace(guarantee="fenced")
        return figures._replace(rows=0) if rule == "figures" else figures

    def seen(world: World) -> dict[str, int]:
        counted = effects(world)
        return {**counted, "b": 2, "a": 2} if rule == "effects" else counted

    monkeypatch.setattr(judge, "read", shown)
    monkeypatch.setattr(World, "effects", seen)
    with world_of(PLAIN, tmp_path) as world, pytest.raises(Judgement) as found:
        Judge(world).play(str)
    assert found.value.rule == rule


def test_every_pair_runs_or_is_refused_or_does_not_exist() -> None:
    check_table()
    runs = set().union(*(parts_of(crossing, 2) for crossing in working()))
    ends = set().union(*(parts_of(crossing, 2) for crossing, _ in refused()))
    for crossing in working():
        assert not refusals_of(crossing)
        assert not is_missing(crossing)
    for crossing, refusal in refused():
        assert refusals_of(crossing) == [refusal]
    for pair in all_parts(2):
        if not is_named(pair, MISSING):
            assert pair in (ends if is_named(pair, REFUSALS) else runs), pair


def is_named(pair: tuple[Choice, ...], rules: Iterable[Refusal | Missing]) -> bool:
    """True if a rule forbids these two values, whatever the others are."""
    chosen = dict(pair)
    return any(
        all(chosen.get(axis) in values for axis, values in rule.values.items()) for rule in rules
    )


def test_the_page_has_the_table_as_it_is() -> None:
    page = PAGE.read_text()
    assert written(page) == page, "the matrix has changed: make docs"
