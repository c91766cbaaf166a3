"""Several claims of one key in a batch get the state machine's replies, in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.postgres_stores import open_blocking

from oncekey.core.commands import Busy, Claim, Claimed, Command, Finish, Mismatched, Replay, Reply
from oncekey.core.record import State
from oncekey.stores.memory import MemoryStore
from oncekey.stores.postgres import PostgresStore
from oncekey.stores.postgres.statements import Statement
from oncekey.testing.fake_clock import FakeClock

LEASE, KEEP = 30_000_000, 3_600_000_000
ID = b"i" * 16
SAME, OTHER = b"\x01same", b"\x01other"


def claim(number: int, fingerprint: bytes = SAME, id: bytes = ID) -> Claim:
    return Claim(id, number.to_bytes(16, "big"), fingerprint, LEASE, KEEP, KEEP, False)


class Counted:
    """Sends the same commands to a PostgreSQL store and to the memory store, under one clock."""

    def __init__(self, **options: Any) -> None:
        clock = FakeClock()
        self.memory = MemoryStore(clock=clock.wall)
        self.store: PostgresStore = open_blocking(clock=clock.wall, **options)
        self.store.prepare()
        self.statements: list[str] = []
        database: Any = self.store._database
        execute = database._execute

        def counted(pooled: Any, statement: Any, end: Any) -> Any:
            if isinstance(statement, Statement):
                self.statements.append(statement.name)
            return execute(pooled, statement, end)

        database._execute = counted

    def apply(self, commands: Sequence[Command]) -> tuple[list[Reply], int]:
        self.statements.clear()
        replies = self.store.apply(commands)
        assert replies == self.memory.apply(commands), "as the machine says (S1)"
        return replies, len(self.statements)


@pytest.mark.parametrize("how", ["insert", "row_lock", "portable"])
def test_a_claim_made_again_with_another_request_answers_no_duplicate(how: str) -> None:
    """The record keeps the request of the first claim, which the batch has not seen."""
    counted = Counted(claim=how)
    try:
        counted.apply([claim(1, OTHER)])
        again, other = counted.apply([claim(1), claim(2)])[0]
        assert [type(again), type(other)] == [Claimed, Mismatched]
    finally:
        counted.store.close()


def test_claims_of_one_key_in_a_batch_take_one_statement() -> None:
    counted = Counted()
    herd = [claim(number, OTHER if number % 10 == 9 else SAME) for number in range(200)]
    try:
        replies, statements = counted.apply(herd)
        assert [type(reply) for reply in replies[:2]] == [Claimed, Busy]
        assert type(replies[9]) is Mismatched
        assert statements == 1
        fence = replies[0].fence  # type: ignore[union-attr]
        replies, statements = counted.apply([claim(n) for n in range(300, 500)])
        assert {type(reply) for reply in replies} == {Busy}
        assert statements == 1
        counted.apply([Finish(ID, claim(0).owner, fence, State.SUCCEEDED, b"body")])
        replies, statements = counted.apply([claim(n) for n in range(500, 700)])
        assert {type(reply) for reply in replies} == {Replay}
        assert statements == 1
    finally:
        counted.store.close()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_i9_an_owner_that_claims_again_among_duplicates_is_recognized(place: int) -> None:
    counted = Counted()
    try:
        counted.apply([claim(1)])
        batch = [claim(10), claim(11)]
        batch.insert(place, claim(1))
        replies, _ = counted.apply(batch)
        assert type(replies[place]) is Claimed
    finally:
        counted.store.close()
