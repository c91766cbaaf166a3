"""A claim in a caller's transaction looks at the key again after it has the lock (I1, mutant m11).

The claim is held between its first look and its lock, by an edit of the SQL function, while another
process claims the key in the next slot of the ring. Without the second look both would run.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest
from tests.support.explorer.mutation import Edit
from tests.support.explorer.postgres_race_schema import RING, Database, Session, Setup
from tests.support.explorer.race_scenarios import EARLY, LATE, claim
from tests.support.postgres_stores import DATABASE, server
from tests.support.servers.processes import wait_until

from oncekey.core.commands import Busy, Claimed, Reply
from oncekey.stores.postgres import PostgresStore

GATE = 7_000_001
_TRY = "IF strpos(v_running, v_name) > 0"
PAUSE = Edit(_TRY, f"PERFORM pg_advisory_xact_lock_shared({GATE});\n        {_TRY}")
NO_SECOND_LOOK = Edit(
    "-- Look again, in a statement of its own: its snapshot must be taken after the lock.\n"
    "        SELECT o.* INTO t FROM {schema}.records o WHERE o.id = p_id;",
    "",
)


@contextmanager
def gate_closed(database: Database) -> Iterator[Session]:
    """Hold every claim at the pause until this session unlocks it."""
    with closing(database.connect()) as session:
        session.connection.execute("SELECT pg_advisory_lock(%s)", (GATE,))
        yield session


def replies(*edits: Edit) -> tuple[Reply, Reply]:
    """The replies to a claim in a caller's transaction, and to another process that claims
    meanwhile."""
    url = server().url(DATABASE)
    options = {"retention": "ring", "ring_slots": RING.slots, "ring_period": f"{RING.period}us"}
    database = Database(url, Setup(RING, edits=(PAUSE, *edits)))
    early = PostgresStore(url, schema=RING.schema, clock=lambda: EARLY, **options)
    late = PostgresStore(url, schema=RING.schema, clock=lambda: LATE, **options)
    with (
        closing(database),
        closing(early),
        closing(late),
        ThreadPoolExecutor(1) as thread,
        closing(psycopg.connect(url)) as connection,
        gate_closed(database) as gate,
    ):
        mine = Session(connection, database.queries)
        transaction = late.join(connection)
        running = thread.submit(transaction.apply, [claim("B")._replace(in_transaction=True)])
        wait_until(lambda: database.blocks(mine), "the claim is held between look and lock")
        (other,) = early.apply([claim("C")])
        gate.connection.execute("SELECT pg_advisory_unlock(%s)", (GATE,))
        (reply,) = running.result(60)
        return reply, other


def test_i1_a_key_claimed_between_look_and_lock_is_seen() -> None:
    reply, other = replies()
    assert isinstance(other, Claimed)
    assert isinstance(reply, Busy)


def test_without_the_second_look_both_claims_are_granted() -> None:
    reply, other = replies(NO_SECOND_LOOK)
    assert isinstance(other, Claimed)
    assert isinstance(reply, Claimed)


def test_the_two_claims_go_to_different_slots() -> None:
    slots = [now // RING.period % RING.slots for now in (EARLY, LATE)]
    assert slots[0] != slots[1]


def test_an_edit_whose_text_is_not_in_the_sql_is_refused() -> None:
    with pytest.raises(ValueError, match="occurs 0 times"):
        Database(server().url(DATABASE), Setup(RING, edits=(Edit("no such text", ""),)))
