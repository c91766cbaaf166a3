"""Every order of the statements and commits of two PostgreSQL programs (I1, I2, I4-I7, I12, S3).

Each claim, plain and on the ring: claims, takeovers, endings, renewals, the sweeper and rotation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.postgres_stores import DATABASE, server

from oncekey.testing.explore.database import PLAIN, RING, Database, Setup
from oncekey.testing.explore.overlap import overlap
from oncekey.testing.explore.races import EARLY, LATE, RACES, Race

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
SETUPS = {
    "insert": Setup(PLAIN),
    "insert, in batches": Setup(PLAIN, in_batches=True),
    "row_lock": Setup(PLAIN, "row_lock"),
    "advisory_lock": Setup(PLAIN, "advisory_lock"),
    "portable": Setup(PLAIN, "portable", guard=False),
    "ring": Setup(RING),
}
if SOAK:
    SETUPS["ring, in batches"] = Setup(RING, in_batches=True)
    SETUPS["ring, not transactional"] = Setup(RING, guard=False)
PAIRS = [race for race in RACES if len(race.racers) == 2]


@pytest.fixture(scope="module", params=SETUPS)
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    made = Database(server().url(DATABASE), SETUPS[request.param])
    yield made
    made.close()


@pytest.mark.parametrize("race", PAIRS, ids=lambda race: race.name)
def test_every_order_can_be_explained(race: Race, database: Database) -> None:
    # The sweeper passes over what somebody else is writing.
    report = overlap(replace(race, lazy=True), database)
    assert not report.invariant, f"\n{report}"
    assert report.runs > 5


def test_the_clock_crosses_a_boundary_of_the_ring() -> None:
    assert EARLY // RING.period != LATE // RING.period
