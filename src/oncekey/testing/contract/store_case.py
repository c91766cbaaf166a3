"""The base of both contract suites: a store with a fake clock, used through sync methods.

Opens and closes the store, builds commands, and has `dump`, which is everything a test can see of a
store. Override `open_store`, and `pass_time` if the store's clock cannot be replaced.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

from oncekey.core.commands import (
    Claim,
    Claimed,
    Command,
    Done,
    Finish,
    Look,
    Release,
    Renew,
    Reply,
    Resolve,
    SaveStep,
    Seen,
    Unknown,
)
from oncekey.core.record import Record, State
from oncekey.core.store import AsyncStore, Store, StoreLimits
from oncekey.testing.fake_clock import FakeClock
from oncekey.testing.sync_facade import LoopThread, SyncStore, is_async

SECOND = 1_000_000
LEASE = 30 * SECOND
KEEP = 3_600 * SECOND
AUDIT = 7_200 * SECOND
FINGERPRINT = b"\x01" + b"asked" * 6
OTHER_FINGERPRINT = b"\x01" + b"other" * 6
ABSENT, PENDING = State.ABSENT, State.PENDING
SUCCEEDED, FAILED, UNKNOWN = State.SUCCEEDED, State.FAILED, State.UNKNOWN

R = TypeVar("R")

_numbers = itertools.count(1)


def token(prefix: str = "") -> bytes:
    """16 bytes that no other call returned, for an id or an owner."""
    return (prefix.encode() + next(_numbers).to_bytes(16, "big"))[-16:]


def claim(id: bytes, owner: bytes, **changes: Any) -> Claim:
    values: dict[str, Any] = {
        "fingerprint": FINGERPRINT,
        "lease": LEASE,
        "keep": KEEP,
        "audit": AUDIT,
        "retry_safe": False,
    }
    return Claim(id, owner, **{**values, **changes})


class Replies(list[Reply]):
    """Replies that compare by type too: as plain tuples, Busy(1) == Mismatched(1)."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, list)
            and list.__eq__(self, other)
            and [type(reply) for reply in self] == [type(reply) for reply in other]
        )

    __hash__ = None


class StoreCase:
    """One store under test, with short methods for what tests do with it."""

    def __init__(
        self, store: Store, clock: FakeClock, pass_time: Callable[[FakeClock, int], None]
    ) -> None:
        self.store = store
        self.clock = clock
        self.limits = StoreLimits.of(store)
        self._pass_time = pass_time

    def now(self) -> int:
        """The store's time."""
        return self.seen(token()).now

    def wait(self, us: int) -> None:
        """Lets `us` microseconds pass for the store."""
        self._pass_time(self.clock, us)

    def wait_for_sweeper(self) -> None:
        """Lets the time pass by which this store may remove garbage late (`sweep_lag`)."""
        self.wait(self.limits.sweep_lag)

    def send(self, command: Command) -> Reply:
        """Sends one command and returns its reply."""
        (reply,) = self.store.apply([command])
        return reply

    def expect(self, kind: type[R], command: Command) -> R:
        """Sends one command; its reply must be of this kind."""
        reply = self.send(command)
        assert isinstance(reply, kind), f"{command} was answered {reply}"
        return reply

    def seen(self, id: bytes) -> Seen:
        return self.expect(Seen, Look(id))

    def record(self, id: bytes) -> Record:
        record = self.seen(id).record
        assert record is not None
        return record

    def history(self, id: bytes) -> list[Record]:
        """The past generations of a key; skips the test if the store keeps none."""
        history = getattr(self.store, "history", None)
        if history is None:
            pytest.skip("this store shows no history")
        past: list[Record] = history(id)
        return past

    def dump(self, ids: Sequence[bytes]) -> list[object]:
        """Everything a test can see of these ids."""
        has_history = hasattr(self.store, "history")
        return [(self.seen(id).record, self.history(id) if has_history else None) for id in ids]

    def send_all(self, *commands: Command) -> Replies:
        return Replies(self.store.apply(commands))

    def unchanged_by(self, *commands: Command) -> Replies:
        """Sends commands that must write nothing (S6), in one batch."""
        ids = [command.id for command in commands]
        before = self.dump(ids)
        replies = self.send_all(*commands)
        assert self.dump(ids) == before
        return replies

    # --- keys in a given state ----------------------------------------------------------------

    def claimed(self, **changes: Any) -> HeldClaim:
        """Claims a fresh key."""
        id, owner = token("id"), token("own")
        reply = self.expect(Claimed, claim(id, owner, **changes))
        return HeldClaim(self, id, owner, reply.fence)

    def key_in(self, state: State, *, body: bytes = b"body", **changes: Any) -> HeldClaim:
        """Brings a fresh key into `state`; into UNKNOWN by an owner that died."""
        held = self.claimed(**changes)
        if state in (SUCCEEDED, FAILED):
            self.expect(Done, held.finish(state, body))
        elif state is ABSENT:
            self.expect(Done, held.release())
        elif state is UNKNOWN:
            self.wait(changes.get("lease", LEASE))
            self.expect(Unknown, held.rival(**changes))
        return held


class HeldClaim:
    """A claim that is or was held, and the commands of its owner."""

    def __init__(self, case: StoreCase, id: bytes, owner: bytes, fence: int) -> None:
        self.case = case
        self.id = id
        self.owner = owner
        self.fence = fence

    def again(self, **changes: Any) -> Claim:
        return claim(self.id, self.owner, **changes)

    def rival(self, **changes: Any) -> Claim:
        """Another owner's claim of the same key."""
        return claim(self.id, token("riv"), **changes)

    def finish(self, state: State = SUCCEEDED, body: bytes = b"body") -> Finish:
        return Finish(self.id, self.owner, self.fence, state, body)

    def renew(self, lease: int = LEASE) -> Renew:
        return Renew(self.id, self.owner, self.fence, lease)

    def release(self) -> Release:
        return Release(self.id, self.owner, self.fence)

    def release_blind(self) -> Release:
        return Release(self.id, self.owner, None)

    def step(self, name: str = "pay", *, done: bool = False, body: bytes = b"intent") -> SaveStep:
        return SaveStep(self.id, self.owner, self.fence, name, done, body)

    def resolve(
        self, state: State = SUCCEEDED, body: bytes = b"resolved", note: str = "by hand"
    ) -> Resolve:
        return Resolve(self.id, self.fence, state, body, note)

    def owner_commands(self) -> tuple[Command, ...]:
        """Every command that only the owner may send."""
        return (self.finish(), self.renew(), self.release(), self.step(), self.release_blind())


class ContractBase:
    """Fixtures: `clock`, `loop` (async stores only), `case`."""

    def open_store(self, clock: Callable[[], int]) -> Store | AsyncStore:
        """A new, empty store that reads its time from `clock` (microseconds)."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a method open_store(self, clock) that returns a new, "
            "empty store"
        )

    def open_beside(self, clock: Callable[[], int]) -> Store | AsyncStore | None:
        """A second store on the data of the one that is open, as another process would open it.
        None skips the tests of two stores: this one's data are in its process alone."""
        return None

    def pass_time(self, clock: FakeClock, us: int) -> None:
        clock.advance(us)

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def loop(self) -> Iterator[LoopThread]:
        loop = LoopThread()
        yield loop
        loop.close()

    @pytest.fixture
    def raw_store(self, clock: FakeClock) -> Store | AsyncStore:
        return self.open_store(lambda: clock.wall())  # noqa: PLW0108 (a test may replace it)

    @pytest.fixture
    def sync_store(
        self, raw_store: Store | AsyncStore, request: pytest.FixtureRequest
    ) -> Iterator[Store]:
        sync_store = sync_facade_of(raw_store, lambda: request.getfixturevalue("loop"))
        yield sync_store
        sync_store.close()

    @pytest.fixture
    def beside(
        self, sync_store: Store, clock: FakeClock, request: pytest.FixtureRequest
    ) -> Iterator[StoreCase]:
        second = self.open_beside(lambda: clock.wall())  # noqa: PLW0108
        if second is None:
            pytest.skip("there is no second store on the same data")
        store = sync_facade_of(second, lambda: request.getfixturevalue("loop"))
        yield StoreCase(store, clock, self.pass_time)
        store.close()

    @pytest.fixture
    def case(self, sync_store: Store, clock: FakeClock) -> StoreCase:
        return StoreCase(sync_store, clock, self.pass_time)


def sync_facade_of(store: Store | AsyncStore, loop: Callable[[], LoopThread]) -> Store:
    """The store itself, or a sync facade of an async one."""
    if is_async(store):
        return SyncStore(store, loop())  # type: ignore[arg-type]
    return store  # type: ignore[return-value]
