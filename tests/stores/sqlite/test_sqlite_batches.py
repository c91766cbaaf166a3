"""How many statements a batch takes, and how its commands see each other."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncekey.core.commands import (
    Busy,
    Claim,
    Claimed,
    Command,
    Done,
    Finish,
    Look,
    Lost,
    Mismatched,
    Release,
    Renew,
    Replay,
    Resolve,
    SaveStep,
    Seen,
)
from oncekey.core.record import State
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sqlite import SQLiteStore

SECOND = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000 * SECOND
        self.readings = 0

    def __call__(self) -> int:
        self.readings += 1
        return self.now


def claim(n: int, owner: bytes = b"o", **changes: Any) -> Claim:
    values: dict[str, Any] = {
        "fingerprint": b"\x01f",
        "lease": 30 * SECOND,
        "keep": 60 * SECOND,
        "audit": 90 * SECOND,
        "retry_safe": False,
        "scope": "Łódź",
        "label": "charge",
        "key": "k",
    }
    return Claim(n.to_bytes(16, "big"), owner, **{**values, **changes})


def finish(command: Claim, reply: object, body: bytes = b"done") -> Finish:
    assert isinstance(reply, Claimed)
    return Finish(command.id, command.owner, reply.fence, State.SUCCEEDED, body)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "keys.db", clock=clock)
    yield store
    store.close()


@pytest.fixture
def statements(store: SQLiteStore) -> list[str]:
    """The first words of the statements that SQLite executes from now on, one per row written."""
    seen: list[str] = []
    connection = store._database._connection
    assert connection is not None
    connection.set_trace_callback(lambda sql: seen.append(sql.split()[0]))
    return seen


def test_a_batch_of_64_claims_is_one_transaction(
    store: SQLiteStore, clock: Clock, statements: list[str]
) -> None:
    before = clock.readings
    replies = store.apply([claim(n) for n in range(64)])
    assert all(isinstance(reply, Claimed) for reply in replies)
    # The second SELECT reads the highest deleted fence.
    assert [s for s in statements if s != "INSERT"] == ["SELECT", "BEGIN", "SELECT", "COMMIT"]
    assert statements.count("INSERT") == 64
    assert clock.readings - before == 1  # under the lock: the snapshot decided nothing


def test_a_batch_of_64_finishes_is_one_transaction(
    store: SQLiteStore, statements: list[str]
) -> None:
    claims = [claim(n) for n in range(64)]
    finishes = [finish(c, r) for c, r in zip(claims, store.apply(claims), strict=True)]
    statements.clear()
    assert store.apply(finishes) == [Done()] * 64
    assert [s for s in statements if s != "UPDATE"] == ["BEGIN", "COMMIT"]
    assert statements.count("UPDATE") == 64


def test_replays_and_rejections_write_nothing_and_lock_nothing(
    tmp_path: Path, store: SQLiteStore, statements: list[str]
) -> None:
    held, done = claim(1), claim(2)
    store.apply([finish(done, store.apply([held, done])[1])])
    log = tmp_path / "keys.db-wal"
    size, stamp = log.stat().st_size, log.stat().st_mtime_ns
    other = sqlite3.connect(tmp_path / "keys.db", isolation_level=None)
    version = other.execute("PRAGMA data_version").fetchone()
    statements.clear()
    other.execute("BEGIN IMMEDIATE")  # a lock of ours would now wait and fail

    replies = store.apply(
        [
            claim(1, b"x"),
            claim(2, b"x"),
            claim(2, b"x", fingerprint=b"\x01g"),
            Look(done.id),
            Look(claim(3).id),
        ]
    )

    assert [type(reply) for reply in replies] == [Busy, Replay, Mismatched, Seen, Seen]
    assert statements == ["SELECT"]
    other.execute("ROLLBACK")
    assert other.execute("PRAGMA data_version").fetchone() == version
    assert (log.stat().st_size, log.stat().st_mtime_ns) == (size, stamp)
    other.close()


def test_a_lost_finish_does_not_affect_the_rest_of_its_batch(
    store: SQLiteStore, statements: list[str]
) -> None:
    """The compare-and-set changed a row less than expected, so all commands are decided again."""
    claims = [claim(n) for n in range(3)]
    finishes = [finish(c, r) for c, r in zip(claims, store.apply(claims), strict=True)]
    late = finishes[1]._replace(owner=b"zombie")
    statements.clear()
    assert store.apply([finishes[0], late, finishes[2]]) == [Done(), Lost(), Done()]
    others = [s for s in statements if s != "UPDATE"]
    assert others == ["BEGIN", "ROLLBACK", "BEGIN", "SELECT", "COMMIT"]
    states = [
        r.record.state
        for r in store.apply([Look(c.id) for c in claims])
        if isinstance(r, Seen) and r.record
    ]
    assert states == [State.SUCCEEDED, State.PENDING, State.SUCCEEDED]


def test_a_refused_finish_ends_its_transaction_without_a_write(
    tmp_path: Path, store: SQLiteStore, statements: list[str]
) -> None:
    size = (tmp_path / "keys.db-wal").stat().st_size
    assert store.apply([Renew(claim(1).id, b"o", 1, SECOND)]) == [Lost()]
    assert statements == ["BEGIN", "SELECT", "ROLLBACK"]
    assert (tmp_path / "keys.db-wal").stat().st_size == size


def test_replays_and_a_writing_claim_in_one_batch_get_their_replies(store: SQLiteStore) -> None:
    done = claim(1)
    store.apply([finish(done, store.apply([done])[0])])
    replies = store.apply([claim(1, b"x"), claim(2), claim(1, b"y"), Look(claim(3).id)])
    assert [type(reply) for reply in replies] == [Replay, Claimed, Replay, Seen]


def test_commands_on_one_id_see_each_other(store: SQLiteStore) -> None:
    replies = store.apply([Look(claim(1).id), claim(1, b"a"), claim(1, b"b"), Look(claim(1).id)])
    assert [type(reply) for reply in replies] == [Seen, Claimed, Busy, Seen]
    first, mine, _, last = replies
    assert isinstance(first, Seen)
    assert first.record is None
    assert isinstance(last, Seen)
    assert last.record is not None
    assert last.record.owner == b"a"

    ended = store.apply([finish(claim(1, b"a"), mine, b"one"), claim(1, b"c"), claim(1, b"d")])
    assert [type(reply) for reply in ended] == [Done, Replay, Replay]


def test_all_commands_of_one_attempt_in_a_batch_write_one_row(
    store: SQLiteStore, clock: Clock
) -> None:
    fence = clock.now
    replies = store.apply(
        [
            claim(1, b"a"),
            Release(claim(1).id, b"a", fence),
            claim(1, b"b"),
            SaveStep(claim(1).id, b"b", fence + 1, "pay", True, b"paid"),
            Finish(claim(1).id, b"b", fence + 1, State.FAILED, b"no"),
            Look(claim(1).id),
        ]
    )
    assert [type(reply) for reply in replies] == [Claimed, Done, Claimed, Done, Done, Seen]
    assert store.apply([Look(claim(1).id)]) == [replies[-1]]


def test_an_expired_generation_is_archived_when_its_key_is_claimed_again(
    store: SQLiteStore, clock: Clock
) -> None:
    first = claim(1, b"a")
    store.apply([finish(first, store.apply([first])[0], b"one")])
    clock.now += 61 * SECOND
    store.apply([claim(1, b"b")])
    (past,) = store.history(first.id)
    assert (past.owner, past.body, past.scope) == (b"a", b"one", "Łódź")


def test_a_batch_may_exceed_sqlites_parameter_limit(store: SQLiteStore) -> None:
    claims = [claim(n) for n in range(2_000)]
    replies = store.apply(claims)
    assert all(isinstance(reply, Claimed) for reply in replies)
    done = store.apply([finish(c, r) for c, r in zip(claims, replies, strict=True)])
    assert done == [Done()] * 2_000
    assert all(isinstance(r, Replay) for r in store.apply([claim(n, b"x") for n in range(2_000)]))


def test_an_empty_batch_runs_no_statement(store: SQLiteStore, statements: list[str]) -> None:
    assert store.apply([]) == []
    assert statements == []


def test_batches_of_many_sizes_share_few_sql_texts(store: SQLiteStore) -> None:
    seen: set[str] = set()
    connection = store._database._connection
    assert connection is not None
    looks = [Look(claim(n).id) for n in range(300)]
    for size in range(1, 301):
        statement = next(store._program.apply(looks[:size]))
        assert set(statement.params) == {look.id for look in looks[:size]}
        seen.add(statement.sql)
    assert len(seen) == 10


# --- the same as the reference, whatever is sent --------------------------------------------------

IDS = st.integers(1, 3).map(lambda n: n.to_bytes(16, "big"))
OWNERS = st.sampled_from([b"a", b"b"])
BODIES = st.binary(max_size=4)
STATES = st.sampled_from([State.SUCCEEDED, State.FAILED, State.UNKNOWN])
# The clock of these tests moves in whole seconds, so a fence is one of a few numbers.
FENCES = st.integers(0, 3)


@st.composite
def commands(draw: st.DrawFn) -> Command:
    id, owner, fence = draw(IDS), draw(OWNERS), draw(FENCES)
    made: list[Command] = [
        Claim(
            id,
            owner,
            draw(st.sampled_from([b"\x01f", b"\x01g"])),
            draw(st.integers(1, 3)),
            draw(st.integers(0, 3)),
            draw(st.integers(0, 3)),
            draw(st.booleans()),
            "s",
            "o",
            "k",
        ),
        Finish(id, owner, fence, draw(STATES), draw(BODIES)),
        Renew(id, owner, fence, draw(st.integers(1, 3))),
        Release(id, owner, draw(st.none() | st.just(fence))),
        SaveStep(id, owner, fence, draw(st.sampled_from("xy")), draw(st.booleans()), draw(BODIES)),
        Look(id),
        Resolve(id, fence, draw(st.sampled_from([State.SUCCEEDED, State.ABSENT])), b"r", "note"),
    ]
    return draw(st.sampled_from(made))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(commands(), min_size=1, max_size=6)), max_size=8)
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_replies_equal_those_of_the_memory_store(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[int, list[Command]]]
) -> None:
    clock = Clock()
    clock.now = 1
    memory = MemoryStore(clock=clock)
    sqlite = SQLiteStore(
        tmp_path_factory.mktemp("same") / "keys.db", clock=clock, synchronous="off"
    )
    try:
        for passed, batch in rounds:
            clock.now += passed
            assert sqlite.apply(batch) == memory.apply(batch)
        for id in {command.id for _, batch in rounds for command in batch}:
            assert sqlite.history(id) == memory.history(id)
    finally:
        sqlite.close()
