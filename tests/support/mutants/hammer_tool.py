"""Whether the hammer catches a mutant: the violations that its checker finds in a short run."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from urllib.parse import urlencode

from tests.support.hammer import HammerPlan, run_hammer
from tests.support.mutants.core_mutants import Mutant
from tests.support.mutants.source_tree import source_tree
from tests.support.mutants.sql_mutants import SQLMutant
from tests.support.postgres_stores import DATABASE, server
from tests.support.servers.processes import MEMORY

RUNS_MAX = 6
SECONDS = 2.0
_SCHEMA = "hammer on a mutant"
# A boundary every 5 ms: many claims of one key are on both sides of one.
_RING = {"retention": "ring", "ring_slots": 32, "ring_period": "5ms"}


@dataclass(frozen=True)
class HammerRun:
    """How many runs it took, what happened in them, and the violations that were found."""

    runs: int
    commands: int
    violations: tuple[str, ...]


def hammer_mutant(mutant: Mutant | SQLMutant | None, rule: str, runs: int = RUNS_MAX) -> HammerRun:
    """Run the hammer on SQLite, or for a mutant of the SQL on PostgreSQL, until this rule is
    violated, or for so many times."""
    commands = 0
    found: tuple[str, ...] = ()
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with source_tree(mutant) as environment, tempfile.TemporaryDirectory(dir=memory) as folder:
        for run in range(runs):
            on_postgres = isinstance(mutant, SQLMutant)
            store = _emptied_ring() if on_postgres else f"sqlite:///{folder}/{run}.db"
            report = run_hammer(_plan(store, run, keys=3 if on_postgres else 12), environment)
            commands += report.counts["commands"]
            found = (*found, *report.violations)
            if any(words.startswith(rule) for words in found):
                return HammerRun(run + 1, commands, found)
    return HammerRun(runs, commands, found)


def _plan(store: str, run: int, keys: int) -> HammerPlan:
    """Keys expire and are swept soon, while a body may last twice as long as a lease."""
    return HammerPlan(
        store,
        seconds=SECONDS,
        processes=8,
        keys=keys,
        keep=20_000,
        audit=0,
        seed=run,
        through_once=0.3,
    )


def _emptied_ring() -> str:
    server().execute(f'DROP SCHEMA IF EXISTS "{_SCHEMA}" CASCADE')
    options = {"schema": _SCHEMA, "pool_size": 2, **_RING}
    return f"{server().url(DATABASE)}?{urlencode(options)}"
