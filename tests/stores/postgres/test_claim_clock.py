"""A claim that had to wait reads the server's clock after the wait and not before (S3)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from tests.support.explorer.postgres_race_schema import PLAIN, RING, Database, Session, Setup
from tests.support.explorer.race_scenarios import claim, held
from tests.support.explorer.scenario import KEY
from tests.support.postgres_stores import DATABASE, server
from tests.support.servers.processes import wait_until

from oncekey.core.commands import Claim, Claimed
from oncekey.stores.postgres import errors
from oncekey.stores.postgres.statements import Statement

# What somebody else holds while the claim comes: the claims' lock of a new key, or a dead owner's
# row.
SETUPS = {
    "advisory_lock": (Setup(PLAIN, "advisory_lock"), False),
    "ring": (Setup(RING), False),
    "row_lock": (Setup(PLAIN, "row_lock"), True),
}


class WaitingClaim:
    """A claim, and another session that makes it wait."""

    def __init__(self, database: Database, has_row: bool) -> None:
        self.database = database
        self.layout = database.setup.layout
        database.reset(held(keep=1 << 60) if has_row else None)
        schema, lock = self.layout.quoted, f"uuid_hash_extended(%s::uuid, {self.layout.seed} + 1)"
        self.holding = f"SELECT pg_advisory_xact_lock({lock})"
        if has_row:
            self.holding = f"SELECT 1 FROM {schema}.records WHERE id = %s::uuid FOR UPDATE"  # noqa: S608
        self.claim: Claim = claim("B")

    def now(self) -> int:
        return int(self.database.judge.run(Statement("clock", (None,)))[0][0])

    def hold(self, session: Session) -> None:
        session.connection.execute(b"BEGIN")
        session.connection.execute(self.holding.encode(), (KEY.hex(),))


@pytest.fixture(params=SETUPS)
def waiting(request: pytest.FixtureRequest) -> Iterator[WaitingClaim]:
    setup, has_row = SETUPS[request.param]
    with closing(Database(server().url(DATABASE), setup)) as database:
        yield WaitingClaim(database, has_row)


def test_a_lease_starts_when_the_claim_stops_waiting(waiting: WaitingClaim) -> None:
    database = waiting.database
    steps = database.setup.program().apply([waiting.claim])
    with (
        closing(database.connect()) as other,
        closing(database.connect()) as mine,
        ThreadPoolExecutor(1) as thread,
    ):
        waiting.hold(other)
        asked = thread.submit(mine.run, next(steps))
        wait_until(lambda: asked.done() or database.blocks(mine), "the claim waits")
        released_at = waiting.now()
        other.commit()
        with pytest.raises(StopIteration) as stop:
            steps.send(asked.result(60))
    (reply,) = stop.value.value
    assert isinstance(reply, Claimed)
    (met,) = database.records(KEY)
    assert met.record.fence == reply.fence >= released_at
    assert met.record.lease_until == reply.fence + waiting.claim.lease


def test_a_claim_that_waited_too_long_is_not_made(waiting: WaitingClaim) -> None:
    database = waiting.database
    program = database.setup.program()
    not_after = waiting.now() + 100_000
    program._not_after = lambda end: not_after  # type: ignore[method-assign]
    before = database.records(KEY)
    steps = program.apply([waiting.claim])
    with (
        closing(database.connect()) as other,
        closing(database.connect()) as mine,
        ThreadPoolExecutor(1) as thread,
    ):
        waiting.hold(other)
        asked = thread.submit(mine.run, next(steps))
        wait_until(lambda: asked.done() or database.blocks(mine), "the claim waits")
        wait_until(lambda: waiting.now() > not_after, "its caller has left")
        other.commit()
        with pytest.raises(psycopg.Error) as refused:
            asked.result(60)
    assert errors.sqlstate_of(refused.value) == "OK005"
    assert database.records(KEY) == before
