"""join_3, the claim of a caller's transaction: it replies as join_2 does, and shortly if it can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.stores.postgres.conftest import OpenCallers
from tests.support.caller_connections import Caller, query
from tests.support.caller_connections.database import database

from oncekey.stores.postgres.rows import Joined, joined_of

KEY, OTHER_KEY = "11" * 16, "22" * 16
OWNER = "33" * 16
FINGERPRINT = "44" * 33
NOW = 1_700_000_000_000_000
TO_RUN, TO_LOOK, TO_DECIDE = 0, 1, 2
QUICK = "SELECT oncekey.join_3(%s, false, %s, %s, %s, %s, %s, %s)"
FULL = (
    "SELECT oncekey.join_2(%s, false, %s, %s, decode(%s, 'hex'), decode(%s, 'hex'), "
    "%s::integer, %s)"
)

Db = psycopg.Connection[Any]


@pytest.fixture
def db(open_callers: OpenCallers) -> Iterator[Db]:
    """A connection to a store that is set up and has no keys."""

    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            pass

    open_callers.run_scenario("psycopg", scenario, {})
    with psycopg.connect(database(), autocommit=True) as opened:
        yield opened


def identity() -> str:
    ((value,),) = query("SELECT value FROM oncekey.meta WHERE name = 'identity'")
    return bytes(value).hex()


def join(
    db: Db,
    sql: str = QUICK,
    *,
    key: str = KEY,
    store: str = "",
    how: int = TO_RUN,
    settings: bool = False,
) -> str:
    params = (NOW, key, OWNER, FINGERPRINT, store or identity(), how, settings)
    row = db.execute(sql, params).fetchone()
    assert row is not None
    return str(row[0])


def both(db: Db, *before: str, **options: Any) -> tuple[str, Joined]:
    """The reply of join_3, which must say what join_2 says in the same situation."""
    replies = []
    for sql in (QUICK, FULL):
        with db.transaction(force_rollback=True):
            for statement in before:
                db.execute(statement)
            replies.append(join(db, sql, **options))
            running = db.execute("SELECT current_setting('oncekey.running', true)").fetchone()
            replies.append(str(running))
    quick, quick_running, full, full_running = replies
    assert joined_of([(quick,)]) == joined_of([(full,)])
    assert quick_running == full_running
    return quick, joined_of([(quick,)])


def test_a_fresh_key_is_locked_and_the_reply_is_the_clock(db: Db) -> None:
    reply, joined = both(db)
    assert reply == str(NOW)
    assert joined == Joined(NOW, 0, True, None, 0, None, None)


@pytest.mark.parametrize("how", [TO_LOOK, TO_DECIDE])
def test_only_a_claim_takes_the_lock_of_a_fresh_key(db: Db, how: int) -> None:
    _, joined = both(db, how=how)
    assert joined.locked is False


def test_a_key_that_another_transaction_runs_is_not_locked(db: Db) -> None:
    with psycopg.connect(database()) as other:
        join(other)
        assert both(db)[1].locked is None


def test_a_key_that_this_transaction_runs_is_not_locked_again(db: Db) -> None:
    with db.transaction():
        assert json.loads(join(db)) == NOW
        assert joined_of([(join(db),)]).locked is None
        assert joined_of([(join(db, key=OTHER_KEY),)]).locked is True  # another key is
        running = db.execute("SELECT current_setting('oncekey.running')").fetchone()
        assert running is not None
        assert len(running[0].split()) == 2


def test_savepoints_that_were_left_open_are_counted(db: Db) -> None:
    reply, joined = both(db, "SELECT set_config('oncekey.open_savepoints', '3', true)")
    assert (reply[0], joined.open_savepoints) == ("[", 3)


def test_a_floor_above_the_clock_is_reported(db: Db) -> None:
    meta = "INSERT INTO oncekey.meta (name, value) VALUES ('deleted-fences', '')"
    query(f"{meta} ON CONFLICT DO NOTHING")
    # The fence must be above the floor, so an equal one is reported too.
    for floor in (NOW, NOW + 5):
        lift = f"UPDATE oncekey.meta SET until = {floor} WHERE name = 'deleted-fences'"  # noqa: S608
        assert both(db, lift)[1].floor == floor


def test_synchronous_commit_is_switched_on(db: Db) -> None:
    with db.transaction():
        db.execute("SET LOCAL synchronous_commit = off")
        assert joined_of([(join(db),)]).locked is True
        assert db.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_another_store_is_recognised(db: Db) -> None:
    _, joined = both(db, store="00" * 16)
    assert joined.at is None
    assert joined.address is not None


def test_settings_come_with_the_reply(db: Db) -> None:
    assert both(db, settings=True)[1].settings is not None


def test_a_finished_record_is_returned_and_its_key_not_locked(db: Db) -> None:
    columns = (
        "id, owner, fence, created_at, lease_until, finished_at, keep, audit, keep_unknown, "
        "sweep_at, attempt, revision, state, slot, retry_safe, fingerprint, scope, operation, "
        "key, steps, body, note"
    )
    values = (
        f"'{KEY}', '{OWNER}', 1, {NOW}, {NOW}, {NOW}, 1000, 0, 1000, {NOW}, 1, 0, 2, 0, false, "
        f"decode('{FINGERPRINT}', 'hex'), '', 'order', '', '', 'x', ''"
    )
    insert = f"INSERT INTO oncekey.records ({columns}) VALUES ({values})"  # noqa: S608
    _, joined = both(db, insert)
    assert joined.locked is False
    assert joined.stored is not None
    assert joined.stored.record.body == b"x"
