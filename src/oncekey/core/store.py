"""The protocol of a store. Engines rely on these rules and on nothing else of a store.

S1  `apply` does with each command exactly what `state_machine.decide` says, atomically per command.
S2  Commands of one batch are independent: order within a batch is kept per id only. A
    StoreUnavailable in place of a reply is that one command's alone.
S3  One decision reads the store's clock once; no host clock of a caller is ever used.
S4  When `apply` returns, what it changed is as durable as `guarantee` says.
S5  When `apply` raises StoreUnavailable, each command took effect wholly or not at all;
    `ambiguous=False` promises that none did.
S6  Replays and rejections write nothing.
S7  `sweep` removes only what `state_machine.is_garbage` allows, at most `limit` records a call; 0
    means that there was nothing to remove. The highest fence ever removed is stored, for `decide`
    (I6).
S8  `bind` remembers the first check value and refuses another one with ConfigurationError. It
    returns what is stored under MARK_ID (move_marks.py), so that a store that keys are being moved
    to or from is not used alone by mistake. A `lazy` store learns its `guarantee` there at the
    latest.
S9  All but `join` and `close` may be called from many threads (sync) or tasks (async).
S10 `unfinished` lists the records whose fence is above `after` and that have not ended: pending,
    unknown, or freed with steps saved; oldest claim first, without those that have expired. A page
    never ends between records of one fence.
S11 `search` finds what `Query.matches` says, newest claim first, page by page; a page looks at
    LOOKED_AT_MAX records at most and delays no claim. `history` returns past generations.
S12 `measure` reads nothing that grows with the store, but for counts up to MEASURE_MAX.

Knows no engine and no driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from oncekey.core.commands import Command, Reply, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.core.guarantees import Guarantee
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query

SWEEP_LIMIT_DEFAULT = 1_000


class Unfinished(NamedTuple):
    """Records that have not ended, oldest claim first, and the store's clock before the read."""

    records: tuple[Record, ...]
    now: int


class StoreLimits(NamedTuple):
    """What a store cannot do; 0 for no limit. A store that has limits has them as attributes of
    these names; whoever needs them reads them here.

    outcome_max   bytes of an outcome: engines store a tombstone in place of a larger one
    record_max    bytes of a record, with its steps and its outcome: what makes it larger is refused
    lease_min     microseconds of a lease: an operation with a shorter one is refused
    terms_max     microseconds of lease, keep and audit together: longer ones are refused
    sweep_lag     microseconds by which garbage may be removed late, and then in larger parts
    """

    outcome_max: int = 0
    record_max: int = 0
    lease_min: int = 0
    terms_max: int = 0
    sweep_lag: int = 0

    @classmethod
    def of(cls, store: object) -> StoreLimits:
        return cls(*[getattr(store, name, 0) for name in cls._fields])

    def stricter(self, other: StoreLimits) -> StoreLimits:
        """The limits of two stores that must both do it."""
        return StoreLimits(
            _smaller(self.outcome_max, other.outcome_max),
            _smaller(self.record_max, other.record_max),
            max(self.lease_min, other.lease_min),
            _smaller(self.terms_max, other.terms_max),
            max(self.sweep_lag, other.sweep_lag),
        )


class RecordTooLarge(StoreUnavailable):
    """What a store replies to a command whose record would have `size` bytes, if it takes no more
    than `most` (record_max). Nothing was written, and trying again cannot help."""

    def __init__(self, message: str, *, size: int = 0, most: int = 0) -> None:
        super().__init__(message, ambiguous=False, final=True)
        self.size = size
        self.most = most


def _smaller(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


class Store(Protocol):
    """A sync store. What it cannot do, it says by the attributes of StoreLimits."""

    @property
    def guarantee(self) -> Guarantee:
        """What the store can promise. A `lazy` store reports the most it may turn out to be until
        `bind`."""

    @property
    def lazy(self) -> bool:
        """True if the store is not contacted before its first use: engines then call `bind` before
        they first use the store, not when they are made, and read `guarantee` again."""

    @property
    def immediate(self) -> bool:
        """True if `apply` never waits (memory), so that batching would only cost. An async store
        may then have a plain method `apply_at_once` that does the same, to be called in its
        place."""

    @property
    def max_in_flight(self) -> int:
        """How many batches of one engine (of one of its event loops) are worth having in flight
        at once, 1 or more. Heartbeats, sweeps and elections go beside them."""

    def apply(self, commands: Sequence[Command], /) -> list[Reply]: ...
    def bind(self, check: bytes, /) -> Seen: ...
    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int: ...
    def elect(self, token: bytes, lease: int, /) -> bool:
        """True if this token may do the background work of this store for `lease` more microseconds
        of the store's clock. One token holds it at a time, and may ask again to extend it."""

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        """The first `limit` records with fence > `after` that have not ended, and all others that
        have the fence of the last one, since the claims of one batch may share a fence. Whoever
        got `limit` or more reads on after the fence of the last one, and misses none.

        The order is that of the fence, because a fence is the time of the latest claim, or later:
        a freed key is listed again once it is claimed again, whenever it was created. The method
        is called again and again with a later `after`, so its cost must depend on what was claimed
        since, not on what is stored, and it must not delay claims. A claim made at `now` may be
        committed later, so the next `after` should be some time before `now`."""

    def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        """At most `limit` of the records that match and are older than `after` (NEWEST: all)."""

    def history(self, id: bytes, /) -> list[Record]:
        """Past generations of a key that are still in their audit window, oldest first."""

    def measure(self) -> Measures:
        """How much is stored, how much of it is garbage, and how fast it grows."""

    def join(self, connection: Any, /) -> CallerTransaction:
        """This store's records inside the caller's own open transaction."""

    def close(self) -> None:
        """Close all connections. A store that may be used afterwards has a method `reopen()`, which
        does not wait: the next call opens what it needs."""


class CallerTransaction(Protocol):
    """A store's records on the caller's connection, inside the caller's open transaction.

    It never begins, commits or rolls back that transaction; it works with savepoints only. One run
    goes like this:

    1. `apply(Claim)`, then `set_savepoint`, then the body runs.
    2. The body returned: `release_savepoint`, then `apply(Finish)`.
    3. The body raised: `rollback_to_savepoint`, then `apply` of what a raising body leaves.

    A body may also ask for `rollback_to_savepoint` and `set_savepoint` itself, repeatedly.
    A run within a run does all this while the outer savepoint is set; `rollback_to_savepoint` means
    the innermost. If the caller's connection is a per-thread proxy, an attribute `connection` gives
    the real one.

    Where a setting of the caller's connection can make its commits promise less than the store's,
    an attribute `guarantee` says what they promise, or None for no less. It is known after the
    first `apply`, or after a method `read_guarantee()`, which writes nothing.
    """

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        """Works like a store's. If the reply to Finish is Lost, another owner has decided the key:
        the store must have rolled back to the savepoint by itself, because the caller gets that
        owner's outcome and goes on to commit."""

    def set_savepoint(self) -> None:
        """Sets a savepoint: at the body's start, and again after a rollback inside the body."""

    def rollback_to_savepoint(self) -> None:
        """Rolls back to the savepoint and drops it. The claim stays."""

    def release_savepoint(self) -> None:
        """Is called when the body has returned; refuses if the caller's transaction is over. The
        savepoint may be dropped now or, where Finish can still be Lost, with Finish."""


class AsyncStore(Protocol):
    """The same store for asyncio."""

    @property
    def guarantee(self) -> Guarantee: ...

    @property
    def lazy(self) -> bool: ...

    @property
    def immediate(self) -> bool: ...

    @property
    def max_in_flight(self) -> int: ...

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]: ...
    async def bind(self, check: bytes, /) -> Seen: ...
    async def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int: ...
    async def elect(self, token: bytes, lease: int, /) -> bool: ...
    async def unfinished(self, after: int, limit: int, /) -> Unfinished: ...
    async def search(self, query: Query, limit: int, after: Cursor, /) -> Page: ...
    async def history(self, id: bytes, /) -> list[Record]: ...
    async def measure(self) -> Measures: ...
    def join(self, connection: Any, /) -> AsyncCallerTransaction: ...
    async def close(self) -> None: ...


class AsyncCallerTransaction(Protocol):
    """The same for asyncio."""

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]: ...
    async def set_savepoint(self) -> None: ...
    async def rollback_to_savepoint(self) -> None: ...
    async def release_savepoint(self) -> None: ...
