"""A claim or a finish that is alone in its batch has SQL functions of its own (S1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
from tests.support.postgres_adapters import StoreAdapters, make_claim
from tests.support.postgres_adapters import make_finish as finish_of
from tests.support.postgres_stores import DATABASE, server

from oncekey.core.commands import Claimed, Done, Lost, Mismatched, Release, Renew, Replay
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import State
from oncekey.stores.postgres.options import Options

CLAIM = make_claim("k")
FINISH = finish_of(CLAIM, 1)
RING = {"retention": "ring", "ring_slots": 5, "ring_period": "1d"}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["claim_one", "finish_one"]),
        ({"claim": "row_lock"}, ["claim", "finish"]),
        ({"claim": "advisory_lock"}, ["claim", "finish"]),
        ({"claim": "portable"}, ["insert_fresh", "finish_held"]),
        (RING, ["claim", "finish"]),
    ],
    ids=["insert", "row_lock", "advisory_lock", "portable", "ring"],
)
def test_a_lone_command_uses_its_own_function_where_claims_insert_first(
    options: dict[str, Any], names: list[str]
) -> None:
    program = Options(**options).program()
    program.watch.renew()
    assert [next(program.apply([command])).name for command in (CLAIM, FINISH)] == names
    other = make_claim("another")
    assert next(program.apply([CLAIM, other])).name in ("claim", "insert_fresh")


def test_claims_that_are_sent_at_once_after_a_pause_all_read_the_settings() -> None:
    """If only the first did, the others would run by a guarantee that was read before the pause."""
    program = Options().program()
    names = [next(program.apply([make_claim(name)])).name for name in ("one", "two")]
    assert names == ["claim_one_and_settings"] * 2
    batches = [next(program.apply([make_claim(name), CLAIM])) for name in ("one", "two")]
    assert [True in batch.params for batch in batches] == [True, True]


UNREADABLE: list[list[tuple[Any, ...]]] = [[], [()], [("",)], [("[]",)], [("7",)]]


@pytest.mark.parametrize("rows", [*UNREADABLE, [(None,)]], ids=repr)
def test_claim_whose_row_is_missing_or_null_says_so(rows: list[tuple[Any, ...]]) -> None:
    program = Options().program()
    program.watch.renew()
    sent = program.apply([CLAIM])
    next(sent)
    with pytest.raises(StoreUnavailable, match="reply to claim_one cannot be read") as raised:
        sent.send(rows)
    assert raised.value.ambiguous
    assert "oncekey migrate" in str(raised.value)


@pytest.mark.parametrize("rows", [[], [()], [("",)], [("7",)]], ids=repr)
def test_finish_whose_row_is_missing_or_no_json_says_so(rows: list[tuple[Any, ...]]) -> None:
    sent = Options().program().apply([FINISH])
    next(sent)
    with pytest.raises(StoreUnavailable, match="reply to finish_one cannot be read") as raised:
        sent.send(rows)
    assert raised.value.ambiguous


def replies_of(store: Any, name: str, companion: list[Any]) -> list[Any]:
    """The replies to commands that go every way, sent alone or each beside a companion."""
    found = []

    def send(command: Any) -> Any:
        reply = store.apply([command, *(one() for one in companion)])[0]
        found.append(reply._replace(fence=0) if isinstance(reply, (Claimed, Replay)) else reply)
        return reply

    one, two = make_claim(name), make_claim(name, "another")
    fence = send(one).fence
    send(one)  # the same claim again
    send(two)  # busy
    send(two._replace(fingerprint=b"\x01another"))
    send(finish_of(two, fence))  # not the owner
    send(Renew(one.id, one.owner, fence, one.lease))
    send(finish_of(one, fence))
    send(finish_of(one, fence))  # again
    send(finish_of(one, fence)._replace(state=State.FAILED))
    send(two)  # a replay
    freed = make_claim(f"{name} freed")
    fence = send(freed).fence
    send(Release(freed.id, freed.owner, fence))
    send(freed)  # a late claim of the owner that freed it
    send(freed._replace(owner=two.owner))
    send(finish_of(make_claim(f"{name} nobody's"), 1))
    return found


def test_a_lone_command_gets_the_reply_it_gets_in_a_batch() -> None:
    adapters = StoreAdapters("psycopg")
    now = 1_000_000_000_000_000
    store = adapters.store(server().url(DATABASE), clock=lambda: now)
    numbers = iter(range(1_000))
    alone = replies_of(store, "alone", [])
    batch = replies_of(store, "batch", [lambda: make_claim(f"companion {next(numbers)}")])
    kinds = {type(reply) for reply in alone}
    assert {Claimed, Replay, Mismatched, Done, Lost} <= kinds
    assert alone == batch
    adapters.close()


def test_a_lone_claim_is_answered_if_its_key_is_swept_while_it_looks() -> None:
    """The key has a record when the claim begins, and none when it is about to look for it: then
    the claim makes a new one after all. A trigger takes the sweeper's part at that moment."""
    adapters = StoreAdapters("psycopg")
    store = adapters.store(server().url(DATABASE))
    old = make_claim("swept meanwhile")
    first = store.apply([old])[0]
    with sweeping_at_the_second_insert(old.id):
        claim = make_claim("swept meanwhile", "another")
        claimed = store.apply([claim])[0]
        assert isinstance(claimed, Claimed)
        assert (claimed.fence > first.fence, claimed.attempt) == (True, 1)
    assert store.apply([claim])[0]._replace(steps=()) == claimed
    assert store.apply([finish_of(claim, claimed.fence)]) == [Done()]
    adapters.close()


@contextmanager
def sweeping_at_the_second_insert(id: bytes) -> Iterator[None]:
    """The second statement of a transaction that inserts records finds that this one is gone."""
    with psycopg.connect(server().url(DATABASE), autocommit=True) as admin:
        admin.execute(
            f"""
            CREATE FUNCTION sweep_meanwhile() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF current_setting('test.inserted', true) = 'yes' THEN
                    DELETE FROM oncekey.records WHERE id = '{UUID(bytes=id)}';
                END IF;
                PERFORM set_config('test.inserted', 'yes', true);
                RETURN NEW;
            END $$"""  # noqa: S608
        )
        admin.execute(
            "CREATE TRIGGER sweep_meanwhile BEFORE INSERT ON oncekey.records"
            f" FOR EACH ROW WHEN (NEW.id = '{UUID(bytes=id)}') EXECUTE FUNCTION sweep_meanwhile()"
        )
        try:
            yield
        finally:
            admin.execute("DROP FUNCTION sweep_meanwhile() CASCADE")
