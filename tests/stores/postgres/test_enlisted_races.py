"""The moment between a transaction's look and its lock (I1), held open by the test.

A function of the test's own stands in front of PostgreSQL's on one connection: it waits until the
test lets it go on, and then asks for the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.stores.postgres.conftest import Stage
from tests.support.caller_connections import NEVER, RING, Order, Shop, rows, watch

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
    watch(HOOK)
    yield
    watch("DROP SCHEMA hook CASCADE")


@pytest.mark.parametrize("options", [{}, RING], ids=["plain", "ring"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_i1_the_look_after_the_lock_is_younger_than_it(
    stage: Stage, hook: None, options: dict[str, Any], ending: str
) -> None:
    async def scene(shop: Shop) -> None:
        async with type(shop)(**options) as slow:
            slow.db.execute("SET search_path = hook, pg_catalog, public")
            slow.db.execute("SET lock_timeout = 0")
            watch(f"SELECT pg_advisory_lock({GATE})")
            told: list[Any] = []

            def look_and_wait() -> None:
                with slow.db.transaction():
                    tx = slow.once.in_transaction(slow.db)
                    told.append(tx.run("order", "k", slow.body(Order())))

            thread = threading.Thread(target=look_and_wait)
            try:
                thread.start()
                while watch(WAITING.format(GATE)) == [(0,)]:
                    assert thread.is_alive()
                # It has looked and found nothing. Now the key is run elsewhere, start to end.
                await shop.begin()
                await shop.inside("k", Order(value="first"))
                await (shop.commit() if ending == "commit" else shop.rollback())
            finally:
                watch(f"SELECT pg_advisory_unlock({GATE})")
                thread.join()
            committed = ending == "commit"
            assert (told[0].value, told[0].replayed) == (
                ("first", True) if committed else ("done", False)
            )
            assert (slow.ran, rows()) == (0 if committed else 1, ["tea"])
        async with shop.transaction():
            assert (await shop.inside("k", NEVER)).value == told[0].value

    stage.play("psycopg", scene, options)
