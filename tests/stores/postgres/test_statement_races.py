"""Every order of the statements and commits of two PostgreSQL programs (I1, I2, I4-I7, I12, S3).

All claim methods run, plain and on the ring, with claims, takeovers, outcomes, renewals, the
sweeper and rotation.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from tests.support.explorer.postgres_race_schema import PLAIN, RING, Database, Session, Setup
from tests.support.explorer.postgres_races import race_on_postgres
from tests.support.explorer.race_scenarios import EARLY, LATE, RACES, Race
from tests.support.explorer.scenario import KEY
from tests.support.postgres_stores import DATABASE, server
from tests.support.servers.processes import wait_until

from oncekey.core.commands import Done, Renew, Reply, SaveStep
from oncekey.stores.postgres.statements import Statement

SETUPS = {
    "insert": Setup(PLAIN),
    "insert, in batches": Setup(PLAIN, in_batches=True),
    "row_lock": Setup(PLAIN, "row_lock"),
    "advisory_lock": Setup(PLAIN, "advisory_lock"),
    "portable": Setup(PLAIN, "portable", guard=False),
    "ring": Setup(RING),
    "ring, in batches": Setup(RING, in_batches=True),
    "ring, not transactional": Setup(RING, guard=False),
}
PAIRS = [race for race in RACES if len(race.racers) == 2]
# Only `make soak` plays races with these set-ups, and these races, whose orders are many.
SOAK_SETUPS = ("ring, in batches", "ring, not transactional")
SOAK_RACES = {
    ("portable", "an undecided key and the sweeper"),
    ("ring", "an undecided key and the sweeper"),
}


# The default, `insert`, always plays all races; the other set-ups share them out in `make test`,
# and play all of them in `make soak`.
SHARES = {"row_lock": 0, "advisory_lock": 1, "insert, in batches": 2, "portable": 3, "ring": 4}


def is_left_to_soak(setup_name: str, race: Race) -> bool:
    share = SHARES.get(setup_name)
    return (
        setup_name in SOAK_SETUPS
        or (setup_name, race.name) in SOAK_RACES
        or (share is not None and PAIRS.index(race) % len(SHARES) != share)
    )


CASES = [
    pytest.param(
        name,
        race,
        id=f"{name}-{race.name}",
        marks=pytest.mark.soak if is_left_to_soak(name, race) else (),
    )
    for name in SETUPS
    for race in PAIRS
]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.soak if name in SOAK_SETUPS else ()) for name in SETUPS
    ],
)
def setup_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def database(setup_name: str) -> Iterator[Database]:
    made = Database(server().url(DATABASE), SETUPS[setup_name])
    yield made
    made.close()


@pytest.mark.parametrize(("setup_name", "race"), CASES, indirect=["setup_name"])
def test_every_order_of_statements_and_commits_keeps_the_invariants(
    race: Race, database: Database
) -> None:
    # The sweeper passes over what somebody else is writing.
    report = race_on_postgres(replace(race, lazy=True), database)
    assert not report.invariant, f"\n{report}"
    assert report.runs > 5


def test_i14_an_owners_command_succeeds_while_its_other_statement_commits(
    database: Database,
) -> None:
    """A step that waits for the disk must not make the heartbeat believe that the key is lost."""
    race = next(race for race in RACES if race.name == "renewal and a step")
    renewal, step = race.racers
    assert isinstance(renewal, Renew)
    assert isinstance(step, SaveStep)
    database.reset(race.before)
    program = database.setup.program(lambda: EARLY)
    with (
        closing(database.connect()) as first,
        closing(database.connect()) as second,
        ThreadPoolExecutor(1) as thread,
    ):
        steps = program.apply([step])
        rows, _ = first.begin(next(steps))
        _, is_open = first.begin(steps.send(rows))
        assert is_open
        heard = thread.submit(_run, program.apply([renewal]), second)
        wait_until(lambda: heard.done() or database.blocks(second), "the renewal waits")
        assert not heard.done(), f"it did not wait: {heard.result()}"
        first.commit()
        assert heard.result(120) == [Done()]
    (met,) = database.records(KEY)
    assert [done.name for done in met.record.steps] == ["pay"]
    assert met.record.lease_until == EARLY + renewal.lease


def _run(steps: Generator[Statement, Any, list[Reply]], session: Session) -> list[Reply]:
    statement = next(steps)
    while True:
        try:
            statement = steps.send(session.run(statement))
        except StopIteration as stop:
            replies: list[Reply] = stop.value
            return replies


def test_the_races_clock_crosses_a_ring_boundary() -> None:
    assert EARLY // RING.period != LATE // RING.period
