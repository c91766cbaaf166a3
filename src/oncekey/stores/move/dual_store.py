"""`DualStore` and `AsyncDualStore`: two stores behind the methods of one.

Both run the programs of this package: a program yields calls of the two stores and is sent what
they return. Every rule is in the programs.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, TypeVar

from oncekey.core.commands import Command, Reply, Seen
from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.core.flow_driver import drive, drive_async
from oncekey.core.guarantees import Guarantee
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import (
    SWEEP_LIMIT_DEFAULT,
    AsyncCallerTransaction,
    AsyncStore,
    CallerTransaction,
    RecordTooLarge,
    Store,
    StoreLimits,
    Unfinished,
)
from oncekey.stores.move import copy_rule, dual_marks, dual_program, dual_reads
from oncekey.stores.move.copy_rule import CopyResult
from oncekey.stores.move.dual_program import RecordLimit
from oncekey.stores.move.side_by_side import NEW, OLD, Call, Program

T = TypeVar("T")

_NO_TRANSACTION = (
    "a transaction belongs to one database, and keys that are being moved are in two: "
    "in_transaction works with the old store alone, and after the move with the new one alone"
)


class _Base:
    """What the sync and the async store share. `old` and `new` are the two stores; the limits are
    the stricter ones of both, so that nothing is accepted that one of them cannot hold."""

    def __init__(self, old: Any, new: Any) -> None:
        if old is new:
            raise ConfigurationError("the old and the new store are the same one")
        self.old = old
        self.new = new
        self._guarantees: tuple[Any, Any, Guarantee] | None = None
        limits = [StoreLimits.of(store) for store in (old, new)]
        both = limits[OLD].stricter(limits[NEW])
        self.outcome_max = both.outcome_max
        self.record_max = both.record_max
        self.lease_min = both.lease_min
        self.terms_max = both.terms_max
        self.sweep_lag = both.sweep_lag
        self._limit: RecordLimit | None = None
        if both.record_max:
            side = OLD if limits[OLD].record_max == both.record_max else NEW
            self._limit = RecordLimit(side, both.record_max)

    @property
    def guarantee(self) -> Guarantee:
        # The same object as long as nothing has changed, because it is read for every claim.
        old, new = self.old.guarantee, self.new.guarantee
        known = self._guarantees
        if known is None or known[0] is not old or known[1] is not new:
            known = self._guarantees = (old, new, dual_reads.weaker(old, new))
        return known[2]

    @property
    def lazy(self) -> bool:
        return bool(self.old.lazy or self.new.lazy)

    @property
    def immediate(self) -> bool:
        return bool(self.old.immediate and self.new.immediate)

    @property
    def max_in_flight(self) -> int:
        return int(min(self.old.max_in_flight, self.new.max_in_flight))

    def reopen(self) -> None:
        """Make a closed store usable again."""
        for store in (self.old, self.new):
            if not hasattr(store, "reopen"):
                raise ConfigurationError(f"a {type(store).__name__} cannot be opened again")
        self.old.reopen()
        self.new.reopen()


class DualStore(_Base):
    """A sync store in two stores."""

    def __init__(self, old: Store, new: Store) -> None:
        super().__init__(old, new)

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self._run(dual_program.apply(commands, self._limit))

    def bind(self, check: bytes, /) -> Seen:
        """Bind both, and begin or join the move; raises ConfigurationError if one of them takes
        part in another one."""
        return self._run(dual_marks.bind(check, secrets.token_hex(8)))

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return self._run(dual_reads.sweep(limit))

    def elect(self, token: bytes, lease: int, /) -> bool:
        return self._run(dual_reads.elect(token, lease))

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return self._run(dual_reads.unfinished(after, limit))

    def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return self._run(dual_reads.search(query, limit, after))

    def history(self, id: bytes, /) -> list[Record]:
        """Past generations that either store has, oldest first."""
        return self._run(dual_reads.history(id))

    def measure(self) -> Measures:
        return self._run(dual_reads.measure())

    def join(self, connection: Any, /) -> CallerTransaction:
        raise ConfigurationError(_NO_TRANSACTION)

    def copy(self, ids: Sequence[bytes], /) -> list[CopyResult | RecordTooLarge]:
        """Give the new store what the old one has of these keys. What it cannot hold stays in the
        old one, and the result says so."""
        return self._run(copy_rule.copy(ids))

    def finish_copy(self) -> None:
        """Everything was copied: from now on the old store alone is refused, and the new one is
        not."""
        self._run(dual_marks.finish_copy())

    def was_copied(self) -> bool:
        """True if everything has been copied before."""
        return self._run(dual_marks.was_copied())

    def close(self) -> None:
        try:
            self.old.close()
        finally:
            self.new.close()

    def _run(self, program: Program[T]) -> T:
        return drive(program, self._call)

    def _call(self, call: Call) -> object:
        store = (self.old, self.new)[call.side]
        try:
            return getattr(store, call.method)(*call.args)
        except OncekeyError as error:
            return error


class AsyncDualStore(_Base):
    """The same for asyncio."""

    def __init__(self, old: AsyncStore, new: AsyncStore) -> None:
        super().__init__(old, new)

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return await self._run(dual_program.apply(commands, self._limit))

    async def bind(self, check: bytes, /) -> Seen:
        return await self._run(dual_marks.bind(check, secrets.token_hex(8)))

    async def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return await self._run(dual_reads.sweep(limit))

    async def elect(self, token: bytes, lease: int, /) -> bool:
        return await self._run(dual_reads.elect(token, lease))

    async def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return await self._run(dual_reads.unfinished(after, limit))

    async def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return await self._run(dual_reads.search(query, limit, after))

    async def history(self, id: bytes, /) -> list[Record]:
        return await self._run(dual_reads.history(id))

    async def measure(self) -> Measures:
        return await self._run(dual_reads.measure())

    def join(self, connection: Any, /) -> AsyncCallerTransaction:
        raise ConfigurationError(_NO_TRANSACTION)

    async def close(self) -> None:
        try:
            await self.old.close()
        finally:
            await self.new.close()

    def abandon(self) -> None:
        """Close without waiting, from any thread. Called when a dropped engine had opened it."""
        for store in (self.old, self.new):
            abandon = getattr(store, "abandon", None)
            if abandon is not None:
                abandon()

    async def _run(self, program: Program[T]) -> T:
        return await drive_async(program, self._call)

    async def _call(self, call: Call) -> object:
        store = (self.old, self.new)[call.side]
        try:
            return await getattr(store, call.method)(*call.args)
        except OncekeyError as error:
            return error
