"""Every store against `decide` on a plain dict, with random commands (S1-S3, S6, S7, S10).

Stale owners and fences, repeats, batches, sweeps, and a clock that also steps back; on PostgreSQL
each way to claim and to retain. With ONCEKEY_SOAK=1: many more examples, of 50 steps.

What fails is shown as it was drawn, at once. With ONCEKEY_SHRINK=1 Hypothesis looks for a smaller
example first, for up to five minutes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.etcd_stores import reused_async_etcd_store, reused_etcd_store
from tests.support.reused_redis_stores import reused_async_redis_store, reused_redis_store
from tests.support.reused_stores import reused_async_store, reused_store, shared_loop

from oncekey.core.commands import (
    Claim,
    Command,
    Finish,
    Look,
    Release,
    Renew,
    Reply,
    Resolve,
    SaveStep,
)
from oncekey.core.record import FOREVER_US, Record, State
from oncekey.core.state_machine import decide, has_ended, is_expired, is_garbage
from oncekey.core.store import StoreLimits
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.stores.sqlite import AsyncSQLiteStore, SQLiteStore
from oncekey.testing.contract.store_case import sync_facade_of
from oncekey.testing.fake_clock import FakeClock
from oncekey.testing.sync_facade import LoopThread

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
PHASES = [Phase.generate]
if os.environ.get("ONCEKEY_SHRINK") == "1":
    PHASES.append(Phase.shrink)
LEASE, KEEP, AUDIT = 1_000, 5_000, 3_000
IDS = [b"%d" % n * 16 for n in range(3)]
OWNERS = [b"%d" % n * 16 for n in range(5, 9)]
FINGERPRINTS = [b"\x01usual", b"\x01other", b"\x02later"]
VERBS = [
    "claim",
    "claim",
    "claim",
    "finish",
    "finish",
    "renew",
    "release",
    "step",
    "resolve",
    "look",
]
FINALS = [State.SUCCEEDED, State.FAILED, State.UNKNOWN]
DECISIONS = [State.SUCCEEDED, State.FAILED, State.ABSENT]
STEPS_OF_TIME = [
    0,
    1,
    LEASE // 2,
    LEASE - 1,
    LEASE,
    LEASE + 1,
    KEEP - LEASE,
    KEEP,
    KEEP + AUDIT,
    -700,
    -3 * (KEEP + AUDIT),
]

# The clock passes a boundary of the ring at nearly every step.
RING = {"retention": "ring", "ring_slots": 8, "ring_period": "3ms"}

# The same for the buckets of etcd, with leases that are shorter than etcd's own.
ETCD = {"bucket": "3ms", "lease_min": 1}

Opener = Callable[[Path, Callable[[], int]], Any]


class Row(NamedTuple):
    """A store: how to open it, how many examples it gets in a normal and in a long run, how many of
    the first bytes of ids name a group that has a floor of its own, and whether a lease that is
    over stays over when the clock is set back."""

    open: Opener
    examples: int
    soak: int = 2_000
    floor_bytes: int = 0
    ends_for_good: bool = False


def _postgres(open_it: Callable[..., Any], **options: Any) -> Row:
    return Row(lambda path, clock: open_it(clock, **options), 8, 400)


STORES: dict[str, Row] = {
    "memory-sync": Row(lambda path, clock: MemoryStore(clock=clock), 50),
    "memory-async": Row(lambda path, clock: AsyncMemoryStore(clock=clock), 20),
    "sqlite-sync": Row(
        lambda path, clock: SQLiteStore(path / "keys.db", clock=clock, synchronous="off"), 20
    ),
    "sqlite-async": Row(
        lambda path, clock: AsyncSQLiteStore(path / "keys.db", clock=clock, synchronous="off"), 10
    ),
    "postgres-psycopg": _postgres(reused_store),
    "postgres-asyncpg": _postgres(reused_async_store),
    "postgres-row-lock": _postgres(reused_store, claim="row_lock"),
    "postgres-advisory-lock": _postgres(reused_store, claim="advisory_lock"),
    "postgres-portable": _postgres(reused_store, claim="portable"),
    "postgres-not-transactional": _postgres(reused_store, transactional=False),
    "postgres-ring": _postgres(reused_store, **RING),
    "postgres-asyncpg-ring": _postgres(reused_async_store, **RING),
    "postgres-ring-row-lock": _postgres(reused_store, claim="row_lock", **RING),
    "redis-sync": Row(lambda path, clock: reused_redis_store(clock), 10, 400, 1),
    "redis-async": Row(lambda path, clock: reused_async_redis_store(clock), 5, 400, 1),
    "redis-cluster": Row(lambda path, clock: reused_async_redis_store(clock, "cluster"), 5, 400, 1),
    "etcd-sync": Row(lambda path, clock: reused_etcd_store(clock, **ETCD), 6, 400, 0, True),
    "etcd-async": Row(lambda path, clock: reused_async_etcd_store(clock, **ETCD), 5, 100, 0, True),
}


class Spec(NamedTuple):
    """A random command, before the current fence of its key is known."""

    verb: str
    id: bytes
    owner: bytes
    mine: bool
    fence_off: int
    fingerprint: bytes
    retry_safe: bool
    choice: int
    body: bytes


specs = st.builds(
    Spec,
    st.sampled_from(VERBS),
    st.sampled_from(IDS),
    st.sampled_from(OWNERS),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([0, 0, 0, 0, -1, 1]),
    st.sampled_from([FINGERPRINTS[0], *FINGERPRINTS]),
    st.booleans(),
    st.integers(0, 2),
    st.sampled_from([b"", b"one", b"two\x00\xff"]),
)


def command_of(spec: Spec, record: Record | None) -> Command:
    """The command for the current record, or deliberately for another owner or fence."""
    owner = record.owner if record is not None and spec.mine else spec.owner
    fence = (record.fence if record is not None else 1) + spec.fence_off
    if spec.verb == "claim":
        terms = (LEASE, KEEP * (1 + spec.choice % 2), AUDIT)
        claimer = owner if spec.choice == 0 else spec.owner
        label = spec.body.hex()
        return Claim(
            spec.id,
            claimer,
            spec.fingerprint,
            *terms,
            spec.retry_safe,
            label,
            label,
            label,
            keep_unknown=(FOREVER_US, KEEP, 3 * KEEP)[spec.choice],
        )
    if spec.verb == "finish":
        return Finish(spec.id, owner, fence, FINALS[spec.choice], spec.body)
    if spec.verb == "renew":
        return Renew(spec.id, owner, fence, LEASE * (1 + spec.choice))
    if spec.verb == "release":
        return Release(spec.id, owner, None if spec.choice == 0 else fence)
    if spec.verb == "step":
        return SaveStep(spec.id, owner, fence, f"s{spec.choice}", spec.retry_safe, spec.body)
    if spec.verb == "resolve":
        return Resolve(spec.id, fence, DECISIONS[spec.choice], spec.body, f"n{spec.choice}")
    return Look(spec.id)


class StoreMachine(RuleBasedStateMachine):
    """A store and the model, which get the same commands at the same time."""

    open_store: ClassVar[Opener]
    shares_loop: ClassVar[bool] = False
    floor_bytes: ClassVar[int] = 0
    ends_for_good: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.directory = Path(tempfile.mkdtemp(prefix="oncekey-model-"))
        self.loop: LoopThread | None = None
        raw = type(self).open_store(self.directory, self.clock.wall)
        self.store = sync_facade_of(raw, self._loop)
        self.records: dict[bytes, Record] = {}
        self.past: dict[tuple[bytes, int], Record] = {}
        self.last: list[Command] = []
        self.floors: dict[bytes, int] = {}  # the highest fence among what was swept, by group

    def _loop(self) -> LoopThread:
        if type(self).shares_loop:
            return shared_loop()
        self.loop = LoopThread()
        return self.loop

    def teardown(self) -> None:
        self.store.close()
        if self.loop is not None:
            self.loop.close()
        shutil.rmtree(self.directory)

    def group(self, id: bytes) -> bytes:
        return id[: type(self).floor_bytes]

    def model(self, command: Command) -> Reply:
        record, now = self.records.get(command.id), self.clock.wall()
        decision = decide(record, command, now, self.floors.get(self.group(command.id), 0))
        if decision.write is not None:
            self.records[command.id] = decision.write
        if decision.archive is not None:
            self.past[decision.archive.id, decision.archive.fence] = decision.archive
        return decision.reply

    def compare(self, commands: list[Command], expected: list[Reply]) -> None:
        replies = self.store.apply(commands)
        assert replies == expected
        assert [type(reply) for reply in replies] == [type(reply) for reply in expected]

    @rule(batch=st.lists(specs, min_size=1, max_size=6))
    def send(self, batch: list[Spec]) -> None:
        commands, expected = [], []
        for spec in batch:
            command = command_of(spec, self.records.get(spec.id))
            commands.append(command)
            expected.append(self.model(command))
        self.last = commands
        self.compare(commands, expected)

    @rule()
    def repeat(self) -> None:
        self.compare(self.last, [self.model(command) for command in self.last])

    @rule(us=st.sampled_from(STEPS_OF_TIME))
    def pass_time(self, us: int) -> None:
        """The clock of an etcd store is two clocks, and the one that ends leases never goes back.
        So this one, which stands for both, is not set back to before the end of a lease that was
        over: a sweep, or the store's own beat at any moment, may have ended that claim."""
        now = self.clock.wall()
        if type(self).ends_for_good:
            pending = (one for one in self.records.values() if one.state is State.PENDING)
            ended = [one.lease_until for one in pending if one.lease_until <= now]
            us = max([us, *(end - now for end in ended)]) if us < 0 else us
        self.clock.advance(us)

    @rule(limit=st.sampled_from([0, 1, 2, 100]))
    def sweep(self, limit: int) -> None:
        """A store may sweep late and in any order, but only garbage, and must report how much."""
        removed, now = self.store.sweep(limit), self.clock.wall()
        found = self.found()
        gone = [id for id in self.records if found[id] is None]
        ended = [key for key in self.past if self.past[key] not in self.store_history(key[0])]
        assert removed == len(gone) + len(ended)
        if limit == 0 or not StoreLimits.of(self.store).sweep_lag:  # others remove whole slots
            assert removed <= limit
        for id in gone:
            old = self.records.pop(id)
            assert is_garbage(old, now)
            group = self.group(id)
            self.floors[group] = max(self.floors.get(group, 0), old.fence)
        for key in ended:
            assert is_garbage(self.past.pop(key), now)

    @rule(limit=st.sampled_from([0, 1, 2, 100]), back=st.sampled_from([None, -1, 0, LEASE]))
    def list_unfinished(self, limit: int, back: int | None) -> None:
        """List from the start, or from before the latest claim; the model filters its dict."""
        fences = sorted(record.fence for record in self.records.values())
        after = fences[-1] - back if fences and back is not None else 0
        now = self.clock.wall()
        wanted = sorted(
            (record.fence, record.id, record)
            for record in self.records.values()
            if record.fence > after and not has_ended(record) and not is_expired(record, now)
        )
        last = wanted[:limit][-1][0] if wanted[:limit] else after
        shown = tuple(record for fence, _, record in wanted if fence <= last)
        assert self.store.unfinished(after, limit) == (shown, now)

    @invariant()
    def same_records(self) -> None:
        assert self.found() == {id: self.records.get(id) for id in IDS}
        for id in IDS:
            past = [self.past[key] for key in sorted(self.past) if key[0] == id]
            assert self.store_history(id) == past

    def found(self) -> dict[bytes, Record | None]:
        """All records, read in one batch."""
        seen: list[Any] = list(self.store.apply([Look(id) for id in IDS]))
        return {id: one.record for id, one in zip(IDS, seen, strict=True)}

    def store_history(self, id: bytes) -> list[Record]:
        return self.store.history(id)


def machine_of(name: str, row: Row) -> type[StoreMachine]:
    """The machine of one store."""
    how = {
        "open_store": staticmethod(row.open),
        "shares_loop": name.startswith(("postgres", "redis")),
        "floor_bytes": row.floor_bytes,
        "ends_for_good": row.ends_for_good,
    }
    return type("Machine", (StoreMachine,), how)


def run_examples(machine: type[StoreMachine], examples: int, seed: int) -> None:
    test = hypothesis.seed(seed)(machine).TestCase
    test.settings = settings(
        max_examples=examples,
        stateful_step_count=50 if SOAK else 40,
        deadline=None,
        database=None,
        print_blob=True,
        phases=PHASES,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    test().runTest()


@pytest.mark.seeded
@pytest.mark.parametrize("name", STORES)
def test_s1_a_store_does_what_the_machine_decides(name: str, seed: int) -> None:
    row = STORES[name]
    run_examples(machine_of(name, row), row.soak if SOAK else row.examples, seed)


@pytest.mark.parametrize("name", ["memory-sync", "etcd-sync", "etcd-async"])
@pytest.mark.parametrize("us", [-700, -3 * (KEEP + AUDIT)])
def test_a_store_and_the_model_agree_after_a_claim_lapsed_and_the_clock_was_set_back(
    name: str, us: int
) -> None:
    """The sweep lets the claim lapse, as the beat of an etcd store does at any moment."""
    machine = machine_of(name, STORES[name])()
    usual = Spec("claim", IDS[0], OWNERS[0], True, 0, FINGERPRINTS[0], False, 1, b"")
    try:
        machine.send([usual])
        machine.pass_time(LEASE)
        machine.pass_time(LEASE // 2)
        machine.sweep(100)
        machine.pass_time(us)
        for verb in ("look", "step", "renew", "claim", "release"):
            machine.send([usual._replace(verb=verb)])
            machine.same_records()
    finally:
        machine.teardown()


@pytest.mark.skipif(len(PHASES) > 1, reason="ONCEKEY_SHRINK=1 asks for it")
def test_a_store_that_fails_is_reported_without_minutes_of_shrinking() -> None:
    """After the first failure Hypothesis runs that example once again, and no other."""
    opened: list[bool] = []

    class Forgetful(MemoryStore):
        def apply(self, commands: Sequence[Command], /) -> list[Reply]:
            if any(isinstance(command, Finish) for command in commands):
                opened[-1] = True
                return []
            return super().apply(commands)

    def open_it(path: Path, clock: Callable[[], int]) -> Forgetful:
        opened.append(False)
        return Forgetful(clock=clock)

    with pytest.raises(AssertionError, match=r"assert \[\] == "):
        run_examples(machine_of("forgetful", Row(open_it, 50)), 50, seed=1)
    assert 1 <= len(opened) - opened.index(True) <= 3
