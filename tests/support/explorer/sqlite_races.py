"""Every order of the statements of racing SQLite programs, on a real file.

Each program has its own connection, and a schedule says whose statement comes next. A transaction
of SQLite cannot be copied halfway, so each schedule is run from the start. A program whose next
statement needs the write lock while another has it cannot go on, which is verified with SQLite
itself. The clock passes the end of the lease at any one of its readings.

Owns the schedules. What races and what must hold is in race_scenarios.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.explorer.race_scenarios import (
    EARLY,
    Race,
    RaceResult,
    SteppingClock,
    Sweep,
    describe_racer,
    judge,
)
from tests.support.explorer.scenario import KEY

from oncekey.core.record import Record
from oncekey.stores.sqlite import program as real_program
from oncekey.stores.sqlite import schema
from oncekey.stores.sqlite.connection import connect, run
from oncekey.stores.sqlite.rows import record_of, record_row

RUNS_MAX = 200_000
_ENDS = ("COMMIT", "ROLLBACK")


@dataclass(frozen=True)
class RaceReport:
    """How many schedules were run, and the first that broke an invariant."""

    race: str
    runs: int
    statements: int
    refusals: int
    invariant: str = ""
    what: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.invariant:
            return f"{self.race:<38} {self.runs:>7,} schedules {self.statements:>9,} statements"
        steps = "\n".join(f"{n:3}. {words}" for n, words in enumerate(self.trace, 1))
        return f"{self.race}: {self.invariant} is broken: {self.what}\n{steps}"


class _Racer:
    """One program on one connection, before its next statement."""

    def __init__(self, steps: Generator[Any, Any, Any], connection: sqlite3.Connection) -> None:
        self._program = steps
        self._connection = connection
        self.reply: Any = None
        self.next: Any = next(steps)

    def step(self) -> None:
        statement = self.next
        if statement.many:
            many = self._connection.executemany(statement.sql, statement.params)
            rows: Sequence[Any] = [(many.rowcount,)]
        else:
            rows = self._connection.execute(statement.sql, statement.params).fetchall()
        try:
            self.next = self._program.send(rows)
        except StopIteration as stop:
            self.next = None
            self.reply = stop.value if isinstance(stop.value, int) else stop.value[0]

    def is_refused(self) -> bool:
        """True if SQLite refuses the lock, because another racer has it."""
        try:
            self._connection.execute(self.next.sql)
        except sqlite3.OperationalError as error:
            return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
        return False


class SQLiteRace:
    """One race on a file, with a connection for each racer and one to read the result."""

    def __init__(self, path: Path, race: Race, module: ModuleType) -> None:
        self._race = race
        self._module = module
        self._judge = connect(str(path), 0, "off")
        run(self._judge, schema.prepare(lambda: EARLY))
        self._connections = [connect(str(path), 0, "off") for _ in race.racers]
        self.refusals = 0
        self.statements = 0

    def close(self) -> None:
        for connection in (*self._connections, self._judge):
            connection.close()

    def play(self, prefix: Sequence[int], early: int) -> _Schedule:
        """Run one schedule: the given choices, then always the first racer that can go on."""
        self._reset()
        schedule = _Schedule(SteppingClock(early))
        for i, (racer, connection) in enumerate(
            zip(self._race.racers, self._connections, strict=True)
        ):
            program = self._module.Program(schedule.clock.of(i))
            steps = program.sweep(10) if isinstance(racer, Sweep) else program.apply([racer])
            schedule.racers.append(_Racer(steps, connection))
        holder: int | None = None
        while any(racer.next is not None for racer in schedule.racers):
            enabled = self._enabled(schedule, holder)
            chosen = (
                prefix[len(schedule.choices)] if len(schedule.choices) < len(prefix) else enabled[0]
            )
            schedule.choices.append((chosen, enabled))
            statement = schedule.racers[chosen].next
            self.statements += 1
            try:
                schedule.racers[chosen].step()
            except sqlite3.Error as error:
                schedule.error = ("error", f"{error!r} from {statement.sql}")
            schedule.note(self._race, chosen, statement)
            if schedule.error is not None:
                break
            if statement.locks:
                holder = chosen
            elif statement.sql in _ENDS:
                holder = None
        return schedule

    def _enabled(self, schedule: _Schedule, holder: int | None) -> tuple[int, ...]:
        enabled = []
        for i, racer in enumerate(schedule.racers):
            if racer.next is None:
                continue
            if racer.next.locks and holder is not None and holder != i:
                self.refusals += 1
                assert racer.is_refused(), "two racers have the write lock"
                continue
            enabled.append(i)
        return tuple(enabled)

    def result(self, schedule: _Schedule) -> RaceResult:
        replies = tuple(racer.reply for racer in schedule.racers)
        readings = tuple(schedule.clock.readings(i) for i in range(len(schedule.racers)))
        return RaceResult(replies, readings, self._record())

    def _record(self) -> Record | None:
        sql = real_program.QUERIES["select_records"].replace("/*ids*/", "?")
        rows = self._judge.execute(sql, (KEY,)).fetchall()
        return record_of(rows[0]) if rows else None

    def _reset(self) -> None:
        self._judge.execute("DELETE FROM oncekey_records")
        self._judge.execute("DELETE FROM oncekey_history")
        self._judge.execute("DELETE FROM oncekey_meta")
        if self._race.before is not None:
            sql = real_program.QUERIES["insert_record"]
            self._judge.execute(sql, record_row(self._race.before))


class _Schedule:
    """One schedule, as far as it was run."""

    def __init__(self, clock: SteppingClock) -> None:
        self.clock = clock
        self.racers: list[_Racer] = []
        self.choices: list[tuple[int, tuple[int, ...]]] = []
        self.words: list[str] = []
        self.error: tuple[str, str] | None = None

    def note(self, race: Race, chosen: int, statement: Any) -> None:
        who = describe_racer(race.racers[chosen])
        verb = " ".join(statement.sql.split()[:3])
        now = self.clock.last
        reply = self.racers[chosen].reply
        replied = f" -> {reply}" if self.racers[chosen].next is None else ""
        self.words.append(f"[clock {now}] {who}: {verb}{replied}")


def race_on_sqlite(race: Race, path: Path, module: ModuleType = real_program) -> RaceReport:
    """Run every schedule with every moment at which the clock can move on, and stop at the first
    that breaks an invariant."""
    runs = 0
    early, most = 0, 1
    with closing(SQLiteRace(path, race, module)) as track:
        while early <= most:
            prefix: list[int] | None = []
            while prefix is not None:
                schedule = track.play(prefix, early)
                runs += 1
                assert runs <= RUNS_MAX, f"{race.name}: too many schedules"
                most = max(most, len(schedule.clock.read))
                wrong = schedule.error or judge(race, track.result(schedule))
                if wrong is not None:
                    counts = (race.name, runs, track.statements, track.refusals)
                    return RaceReport(*counts, *wrong, tuple(schedule.words))
                prefix = next_prefix(schedule.choices)
            early += 1
        return RaceReport(race.name, runs, track.statements, track.refusals)


def next_prefix(choices: list[tuple[int, tuple[int, ...]]]) -> list[int] | None:
    """The next schedule in order: the last choice that can be raised is raised."""
    for depth in range(len(choices) - 1, -1, -1):
        chosen, enabled = choices[depth]
        later = [one for one in enabled if one > chosen]
        if later:
            return [choice for choice, _ in choices[:depth]] + [min(later)]
    return None
