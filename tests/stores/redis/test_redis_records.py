"""What a Redis server has of a record: its bytes, its index entries, and when it goes by itself.

These tests use the server's own clock (S4, S7, I6, I11, I12).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from tests.support import redis_stores
from tests.support.servers.processes import wait_until
from tests.support.servers.redis_server import RedisServer

from oncekey.core.commands import (
    Claim,
    ClaimAlso,
    Claimed,
    Command,
    Done,
    FenceTooLow,
    Finish,
    Look,
    Release,
    Renew,
    SaveStep,
    Seen,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import Record, State
from oncekey.core.search import NEWEST, Cursor, Query
from oncekey.stores.memory import MemoryStore
from oncekey.stores.record_format import pack_record, unpack_record
from oncekey.stores.redis import RedisStore
from oncekey.stores.redis.keyspace import BUCKET_SLOTS, BUCKETS, TAGS, Keyspace
from oncekey.testing.contract.store_case import claim

SECOND = 1_000_000
DAY = 86_400 * SECOND
KEYS = Keyspace("oncekey")


@pytest.fixture
def server() -> RedisServer:
    server = redis_stores.valkey()
    server.execute("FLUSHALL")
    return server


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    store = RedisStore(server.url())
    yield store
    store.close()


@pytest.fixture
def raw(server: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(server.url()) as client:
        yield client


def claimed(store: RedisStore, **changes: Any) -> tuple[Claim, int]:
    command = claim(os.urandom(16), os.urandom(16), **changes)
    (reply,) = store.apply([command])
    assert isinstance(reply, Claimed)
    return command, reply.fence


def finish(command: Claim, fence: int, body: bytes = b"out") -> Finish:
    return Finish(command.id, command.owner, fence, State.SUCCEEDED, body)


def record_of(store: RedisStore, id: bytes) -> Record | None:
    (seen,) = store.apply([Look(id)])
    assert isinstance(seen, Seen)
    return seen.record


def scores(raw: Any, id: bytes) -> dict[str, Any]:
    """The entries of an id in its bucket's indexes."""
    names = ("claims", "open", "due")
    found = {name: raw.zscore(KEYS.index(name, id[0]), id) for name in names}
    return {name: score for name, score in found.items() if score is not None}


def test_the_tags_divide_a_cluster_evenly() -> None:
    assert [slot // 64 for slot in BUCKET_SLOTS] == list(range(BUCKETS))
    assert len(set(TAGS)) == BUCKETS


def test_i2_scripts_write_the_bytes_that_python_would_write(store: RedisStore, raw: Any) -> None:
    command, fence = claimed(store, scope="acct ä", label="zählen", key="支払い", retry_safe=True)
    changes: list[Command] = [
        Renew(command.id, command.owner, fence, DAY),
        SaveStep(command.id, command.owner, fence, "pay", True, b"paid"),
        finish(command, fence, b"\x00\xffbody"),
    ]
    for number, change in enumerate(changes):
        value = raw.get(KEYS.record(command.id))
        stored = unpack_record(command.id, value)
        assert stored.revision == number + 1
        assert pack_record(stored.record, stored.revision) == value
        assert store.apply([change]) == [Done()]
    value = raw.get(KEYS.record(command.id))
    stored = unpack_record(command.id, value)
    assert pack_record(stored.record, stored.revision) == value
    assert (stored.record.body, stored.record.state) == (b"\x00\xffbody", State.SUCCEEDED)


def test_a_finished_record_goes_by_itself_after_its_audit_and_no_other_does(
    store: RedisStore, raw: Any
) -> None:
    pending, _ = claimed(store, keep=DAY, audit=DAY)
    done, fence = claimed(store, keep=DAY, audit=DAY)
    unknown, unknown_fence = claimed(store, keep=DAY, audit=DAY)
    freed, freed_fence = claimed(store, keep=DAY, audit=DAY)
    unknown_finish = finish(unknown, unknown_fence)._replace(state=State.UNKNOWN)
    release = Release(freed.id, freed.owner, freed_fence)
    assert store.apply([finish(done, fence), unknown_finish, release]) == [Done()] * 3
    for one in (pending, unknown):
        assert raw.pexpiretime(KEYS.record(one.id)) == -1
    for one in (done, freed):
        record = record_of(store, one.id)
        assert record is not None
        expiry: Any = raw.pexpiretime(KEYS.record(one.id))
        assert 0 <= expiry * 1_000 - record.audit_until < 1_000


def test_i6_a_key_whose_record_has_gone_by_itself_gets_a_higher_fence(
    store: RedisStore, raw: Any
) -> None:
    command, fence = claimed(store, keep=1_000, audit=0)
    raw.zadd(KEYS.index("claims", command.id[0]), {command.id: fence + DAY})  # a clock far ahead
    store.apply([finish(command, fence)])
    wait_until(lambda: not raw.exists(KEYS.record(command.id)), "the record has expired")
    again = claim(command.id, os.urandom(16))
    assert store.apply([again]) == [Claimed(fence + DAY + 1, 1, ())]
    assert scores(raw, command.id)["claims"] == fence + DAY + 1
    assert store.apply([finish(again, fence + DAY + 1)]) == [Done()]


def test_i11_a_sweep_removes_what_is_left_of_records_that_went_by_themselves(
    store: RedisStore, raw: Any
) -> None:
    gone = []
    for _ in range(20):
        command, fence = claimed(store, lease=1_000, keep=1_000, audit=0)
        store.apply([finish(command, fence)])
        gone.append((command, fence))
    live, _ = claimed(store)
    wait_until(
        lambda: not any(raw.exists(KEYS.record(command.id)) for command, _ in gone), "all expired"
    )

    def are_swept() -> bool:
        store.sweep()  # a claim in the same bucket may have removed some before
        return all(scores(raw, command.id) == {} for command, _ in gone)

    wait_until(are_swept, "all were swept")
    assert store.sweep() == 0
    for command, fence in gone:
        assert scores(raw, command.id) == {}
        floor = raw.get(KEYS.index("floor", command.id[0]))
        assert int(floor) >= fence
    assert set(scores(raw, live.id)) == {"claims", "open", "due"}


def test_no_key_is_left_when_everything_was_swept(store: RedisStore, raw: Any) -> None:
    """Beside the floors and the check value nothing stays behind."""
    store.bind(b"check")
    for _ in range(10):
        terms = {"lease": 1_000, "keep": 1_000, "audit": 1_000, "keep_unknown": 1_000}
        command, _ = claimed(store, **terms)
        renewed = claim(command.id, os.urandom(16), **terms)
        wait_until(
            lambda renewed=renewed: isinstance(store.apply([renewed])[0], Claimed),  # type: ignore[misc]
            "the first generation has expired",
        )
        (seen,) = store.apply([Look(command.id)])
        assert isinstance(seen, Seen)
        assert seen.record is not None
        store.apply([finish(renewed, seen.record.fence)])
        assert len(store.history(command.id)) <= 1

    def is_empty() -> bool:
        store.sweep()
        return all(key.endswith((b"floor", b"check")) for key in raw.scan_iter())

    wait_until(is_empty, "everything was swept", 60)


def test_search_and_list_merge_the_buckets_as_one_order(store: RedisStore) -> None:
    """The memory store, which has one dict, says what is right."""
    memory = MemoryStore()
    clock = iter(range(1_000, 2_000))
    now = [0]
    fake = RedisStore(redis_stores.valkey().url(), clock=lambda: now[0])
    memory._clock = lambda: now[0]
    for _ in range(300):
        now[0] = next(clock) // 3  # three claims each share a time
        command = claim(os.urandom(16), os.urandom(16))
        assert fake.apply([command]) == memory.apply([command])
        if now[0] % 2:
            done = finish(command, now[0])
            assert fake.apply([done]) == memory.apply([done])
    for limit in (1, 7, 150, 1_000):
        page, right = (one.search(Query(), limit, NEWEST) for one in (fake, memory))
        assert (page.records, page.next) == (right.records, right.next)
        assert fake.unfinished(0, limit) == memory.unfinished(0, limit)
        assert fake.unfinished(400, limit) == memory.unfinished(400, limit)
        after: Cursor | None = NEWEST
        found: list[Record] = []
        while after is not None and limit > 1:
            page = fake.search(Query(), limit, after)
            found += page.records
            after = page.next
        assert limit == 1 or len(found) == 300
    fake.close()


@pytest.mark.parametrize("digits", [1, 2, 3, 12, 31, 32])
def test_s11_a_tag_finds_ids_of_any_bytes(store: RedisStore, digits: int) -> None:
    odd = [b"*?[]\\^-\r\n\0\xff" + os.urandom(5), b"[" * 16, b"\\" * 16, b"*" * 16, os.urandom(16)]
    commands = [claim(id, os.urandom(16)) for id in odd]
    store.apply(commands)
    for id in odd:
        page = store.search(Query(tag=id.hex()[:digits]), 10, NEWEST)
        wanted = [other for other in odd if other.hex().startswith(id.hex()[:digits])]
        assert sorted(record.id for record in page.records) == sorted(wanted)


def test_the_measures_say_how_much_is_stored(store: RedisStore, raw: Any) -> None:
    before = int(raw.info("memory")["used_memory"])
    commands = [claim(os.urandom(16), os.urandom(16)) for _ in range(5_000)]
    for at in range(0, len(commands), 500):
        store.apply(commands[at : at + 500])
    used = int(raw.info("memory")["used_memory"]) - before
    measures = store.measure()
    assert (measures.rows, measures.claims) == (5_000, 5_000)
    assert 0.5 < measures.bytes / used < 2


def test_another_programs_keys_of_the_same_name_are_a_clear_error(
    store: RedisStore, raw: Any
) -> None:
    command = claim(os.urandom(16), os.urandom(16))
    raw.set(KEYS.index("claims", command.id[0]), "not ours")
    with pytest.raises(StoreUnavailable, match="Redis") as caught:
        store.apply([command])
    assert caught.value.ambiguous


def test_i6_a_fence_of_another_store_that_a_vanished_record_had_is_refused(
    store: RedisStore, raw: Any
) -> None:
    """Whether the record has gone by itself, or was swept with all its index entries."""
    command, fence = claimed(store, lease=1_000, keep=1_000, audit=0)
    store.apply([finish(command, fence)])
    wait_until(lambda: not raw.exists(KEYS.record(command.id)), "the record has expired")
    rival = claim(command.id, os.urandom(16))
    assert store.apply([ClaimAlso(rival, fence)]) == [FenceTooLow(fence)]
    wait_until(lambda: store.sweep() > 0, "it was swept")
    assert scores(raw, command.id) == {}
    assert store.apply([ClaimAlso(rival, fence)]) == [FenceTooLow(fence)]
    assert store.apply([ClaimAlso(rival, fence + 1)]) == [Claimed(fence + 1, 1, ())]
