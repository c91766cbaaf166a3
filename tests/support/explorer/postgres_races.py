"""Every order of the statements and commits of racing PostgreSQL programs, on a real server.

Each program has its own connection. A statement that writes is two steps: it is executed, and later
it is committed. In between the others go on, and see nothing of it or wait for its locks; the
server itself says who waits. A schedule says whose step comes next, and each is run from the start.
The clock passes the end of the lease at any one of its readings.

Owns the schedules. What races and what must hold is in race_scenarios.py.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import closing
from typing import Any

from tests.support.explorer.postgres_race_schema import Database, Session
from tests.support.explorer.race_scenarios import (
    Race,
    RaceResult,
    SteppingClock,
    Sweep,
    describe_racer,
    judge,
)
from tests.support.explorer.scenario import KEY
from tests.support.explorer.sqlite_races import RUNS_MAX, RaceReport, next_prefix

from oncekey.stores.postgres.rows import Row
from oncekey.stores.postgres.statements import Statement

_GLANCE_SECONDS = 0.001
_PATIENCE_SECONDS = 120.0


class Disagreement(Exception):
    """The program noticed that the database has not done what the state machine decides."""


class _Racer:
    """One program on one connection: before a statement, before its commit, or waiting."""

    def __init__(
        self,
        steps: Generator[Statement, Any, Any],
        session: Session,
        thread: ThreadPoolExecutor,
    ) -> None:
        self._program = steps
        self._session = session
        self._thread = thread
        self._rows: Sequence[Row] = ()
        self._running: Future[tuple[Sequence[Row], bool]] | None = None
        self.is_open = False
        self.reply: Any = None
        self.next: Statement | None = next(steps)

    @property
    def is_waiting(self) -> bool:
        return self._running is not None

    def step(self, database: Database) -> None:
        """Execute the next statement, or commit the last one."""
        assert self.next is not None
        if self.is_open:
            self._session.commit()
            self.is_open = False
            self._go_on()
        else:
            self._running = self._thread.submit(self._session.begin, self.next)
            self.goes_on(database)

    def goes_on(self, database: Database) -> bool:
        """True once the statement is done, False if it waits for another racer's lock."""
        assert self._running is not None
        assert self.next is not None
        while True:
            try:
                self._rows, self.is_open = self._running.result(_GLANCE_SECONDS)
            except NotYet:
                # A rotation waits only briefly and then gives up, so wait for that.
                if self.next.name != "rotate" and database.blocks(self._session):
                    return False
                continue
            self._running = None
            if not self.is_open:
                self._go_on()
            return True

    def _go_on(self) -> None:
        try:
            self.next = self._program.send(self._rows)
        except AssertionError as error:
            raise Disagreement(error) from error
        except StopIteration as stop:
            self.next = None
            self.reply = stop.value if isinstance(stop.value, int) else stop.value[0]

    def finish(self) -> None:
        """End the open transaction, if the schedule was stopped early."""
        if self._running is not None:
            self._rows, self.is_open = self._running.result(_PATIENCE_SECONDS)
        if self.is_open:
            self._session.commit()


class _Schedule:
    """One schedule, as far as it was run."""

    def __init__(self, early: int) -> None:
        self.clock = SteppingClock(early)
        self.racers: list[_Racer] = []
        self.choices: list[tuple[int, tuple[int, ...]]] = []
        self.words: list[str] = []
        self.error: tuple[str, str] | None = None

    def enabled(self) -> tuple[int, ...]:
        racers = enumerate(self.racers)
        return tuple(i for i, one in racers if one.next is not None and not one.is_waiting)

    def note(self, race: Race, chosen: int, what: str) -> None:
        racer = self.racers[chosen]
        replied = f" -> {racer.reply}" if racer.next is None else ""
        waits = " (waits)" if racer.is_waiting else ""
        who = describe_racer(race.racers[chosen])
        self.words.append(f"[clock {self.clock.last}] {who}: {what}{waits}{replied}")


class PostgresRace:
    """One race on a schema, with a connection for each racer."""

    def __init__(self, database: Database, race: Race) -> None:
        self.database = database
        self._race = race
        self._sessions = [database.connect() for _ in race.racers]
        self._threads = [ThreadPoolExecutor(1) for _ in race.racers]
        self.steps = 0

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown()
        for session in self._sessions:
            session.close()

    def play(self, prefix: Sequence[int], early: int) -> _Schedule:
        """Run one schedule: the given choices, then always the first racer that can go on."""
        self.database.reset(self._race.before)
        schedule = _Schedule(early)
        for i, racer in enumerate(self._race.racers):
            setup = self.database.setup
            program = setup.program(schedule.clock.of(i))
            steps: Any
            if isinstance(racer, Sweep):
                steps = program.sweep(10)
            else:
                steps = program.apply(setup.batch(racer, i))
            schedule.racers.append(_Racer(steps, self._sessions[i], self._threads[i]))
        try:
            while any(racer.next is not None for racer in schedule.racers):
                self._one_step(schedule, prefix)
        except Disagreement as error:
            schedule.error = ("S1", str(error))
        finally:
            for one in schedule.racers:
                one.finish()
        return schedule

    def _one_step(self, schedule: _Schedule, prefix: Sequence[int]) -> None:
        enabled = schedule.enabled()
        assert enabled, "everybody waits for somebody else"
        chosen = (
            prefix[len(schedule.choices)] if len(schedule.choices) < len(prefix) else enabled[0]
        )
        schedule.choices.append((chosen, enabled))
        racer = schedule.racers[chosen]
        assert racer.next is not None
        what = "COMMIT" if racer.is_open else racer.next.name
        racer.step(self.database)
        self.steps += 1
        schedule.note(self._race, chosen, what)
        for i, other in enumerate(schedule.racers):
            if i != chosen and other.is_waiting and other.goes_on(self.database):
                schedule.note(self._race, i, "goes on")

    def judge(self, schedule: _Schedule) -> tuple[str, str] | None:
        found = self.database.records(KEY)
        if len(found) > 1:
            return "I1", f"the key has {len(found)} records"
        result = RaceResult(
            tuple(racer.reply for racer in schedule.racers),
            tuple(schedule.clock.readings(i) for i in range(len(schedule.racers))),
            found[0].record if found else None,
        )
        return judge(self._race, result)


def race_on_postgres(race: Race, database: Database) -> RaceReport:
    """Run every schedule with every moment at which the clock can move on, and stop at the first
    that breaks an invariant."""
    runs = 0
    early, most = 0, 1
    with closing(PostgresRace(database, race)) as track:
        while early <= most:
            prefix: list[int] | None = []
            while prefix is not None:
                schedule = track.play(prefix, early)
                runs += 1
                assert runs <= RUNS_MAX, f"{race.name}: too many schedules"
                most = max(most, len(schedule.clock.read))
                wrong = schedule.error or track.judge(schedule)
                if wrong is not None:
                    return RaceReport(
                        race.name, runs, track.steps, 0, *wrong, tuple(schedule.words)
                    )
                prefix = next_prefix(schedule.choices)
            early += 1
        return RaceReport(race.name, runs, track.steps, 0)
