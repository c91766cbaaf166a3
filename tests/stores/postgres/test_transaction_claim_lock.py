"""The moment between a transaction's first read of a key and its lock (I1), held open by the test.

A function of the test replaces PostgreSQL's lock function on one connection: it waits until the
test lets it continue, and then takes the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.stores.postgres.conftest import OpenCallers
from tests.support.caller_connections import MUST_NOT_RUN, RING, Body, Caller, orders, query

GATE = 4711
HOOK = f"""
CREATE SCHEMA hook;
CREATE FUNCTION hook.pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_lock({GATE});
    PERFORM pg_advisory_unlock({GATE});
    RETURN pg_catalog.pg_try_advisory_xact_lock($1);
END $$;
"""
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {} AND NOT granted"


@pytest.fixture
def hook() -> Iterator[None]:
    query(HOOK)
    yield
    query("DROP SCHEMA hook CASCADE")


@pytest.mark.parametrize("options", [{}, RING], ids=["plain", "ring"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_i1_a_claim_reads_again_after_it_took_the_lock(
    open_callers: OpenCallers, hook: None, options: dict[str, Any], ending: str
) -> None:
    async def scenario(caller: Caller) -> None:
        async with type(caller)(**options) as slow:
            slow.db.execute("SET search_path = hook, pg_catalog, public")
            slow.db.execute("SET lock_timeout = 0")
            query(f"SELECT pg_advisory_lock({GATE})")
            replies: list[Any] = []

            def look_and_wait() -> None:
                with slow.db.transaction():
                    tx = slow.once.in_transaction(slow.db)
                    replies.append(tx.run("order", "k", slow.make_body(Body())))

            thread = threading.Thread(target=look_and_wait)
            try:
                thread.start()
                while query(WAITING.format(GATE)) == [(0,)]:
                    assert thread.is_alive()
                # It has looked and found nothing. Now the key is run elsewhere, start to end.
                await caller.begin()
                await caller.run_inside("k", Body(value="first"))
                await (caller.commit() if ending == "commit" else caller.rollback())
            finally:
                query(f"SELECT pg_advisory_unlock({GATE})")
                thread.join()
            committed = ending == "commit"
            assert (replies[0].value, replies[0].replayed) == (
                ("first", True) if committed else ("done", False)
            )
            assert (slow.ran, orders()) == (0 if committed else 1, ["tea"])
        async with caller.transaction():
            assert (await caller.run_inside("k", MUST_NOT_RUN)).value == replies[0].value

    open_callers.run_scenario("psycopg", scenario, options)
