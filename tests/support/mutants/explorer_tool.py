"""Whether the explorer catches a mutant: by a scenario of the core, or by a race on a database."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from tests.support.explorer.code_under_test import REAL, CodeUnderTest
from tests.support.explorer.mutation import mutated
from tests.support.explorer.race_scenarios import RACES
from tests.support.explorer.scenarios import SCENARIOS
from tests.support.explorer.search import explore
from tests.support.explorer.sqlite_races import race_on_sqlite
from tests.support.mutants.core_mutants import Mutant
from tests.support.mutants.sql_mutants import SQLMutant, look_for
from tests.support.postgres_stores import DATABASE, server

from oncekey.core import attempt_flow, heartbeat_flow, state_machine
from oncekey.stores.sqlite import program


@dataclass(frozen=True)
class Violation:
    """How the explorer caught a mutant: the invariant, what was wrong, and what it took."""

    invariant: str
    what: str
    effort: str


def explore_mutant(mutant: Mutant | SQLMutant) -> Violation | None:
    """The violation that the explorer finds in the scenario or race of this mutant."""
    if isinstance(mutant, SQLMutant):
        return _race_on_postgres(mutant)
    copy = mutated(mutant.module, *mutant.edits)
    if mutant.module is program:
        return _race_on_sqlite(mutant, copy)
    return _in_scenario(mutant, copy)


def code_of(mutant: Mutant, copy: ModuleType) -> CodeUnderTest:
    """The functions of the core, one of them from the changed copy of its module."""
    if mutant.module is state_machine:
        return replace(
            REAL,
            decide=copy.decide,
            is_garbage=copy.is_garbage,
            reply_to_duplicate=copy.reply_to_duplicate,
        )
    if mutant.module is heartbeat_flow:
        return replace(REAL, heartbeat=copy.heartbeat)
    assert mutant.module is attempt_flow
    return replace(REAL, attempt=copy.attempt)


def _in_scenario(mutant: Mutant, copy: ModuleType) -> Violation | None:
    scenario = next(one for one in SCENARIOS if one.name == mutant.where)
    report = explore(scenario, code_of(mutant, copy))
    if report.violation is None:
        return None
    effort = f"{report.states:,} states, {len(report.violation.trace)} steps"
    return Violation(report.violation.invariant, str(report.violation), effort)


def _race_on_sqlite(mutant: Mutant, copy: ModuleType) -> Violation | None:
    race = next(one for one in RACES if one.name == mutant.where)
    with tempfile.TemporaryDirectory(prefix="oncekey-race-") as directory:
        report = race_on_sqlite(race, Path(directory) / "race.db", copy)
    if not report.invariant:
        return None
    return Violation(report.invariant, str(report), f"{report.runs:,} schedules")


def _race_on_postgres(mutant: SQLMutant) -> Violation | None:
    report = look_for(mutant, server().url(DATABASE))
    if not report.invariant:
        return None
    return Violation(report.invariant, str(report), f"{report.runs:,} schedules")
