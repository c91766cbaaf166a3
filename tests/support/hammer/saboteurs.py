"""Stores that are broken on purpose: a hammer that finds nothing in them would prove nothing.

Each wraps a real store and names the invariant that it breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncekey.core.commands import Claim, Command, Finish, Look, Release, Reply, Seen
from oncekey.core.record import Record, State
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, CallerTransaction, Store, Unfinished


class Saboteur:
    """A store that changes each command before it is applied."""

    immediate = True
    max_in_flight = 1

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.guarantee = inner.guarantee
        self.lazy = inner.lazy

    def changed(self, command: Command) -> Command:
        raise NotImplementedError

    def look(self, id: bytes) -> Record | None:
        (seen,) = self.inner.apply([Look(id)])
        assert isinstance(seen, Seen)
        return seen.record

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return [self.inner.apply([self.changed(command)])[0] for command in commands]

    def bind(self, check: bytes, /) -> Seen:
        return self.inner.bind(check)

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return self.inner.sweep(limit)

    def elect(self, token: bytes, lease: int, /) -> bool:
        return self.inner.elect(token, lease)

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return self.inner.unfinished(after, limit)

    def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return self.inner.search(query, limit, after)

    def history(self, id: bytes, /) -> list[Record]:
        return self.inner.history(id)

    def measure(self) -> Measures:
        return self.inner.measure()

    def join(self, connection: Any, /) -> CallerTransaction:
        return self.inner.join(connection)

    def close(self) -> None:
        self.inner.close()


class FinishWithoutOwner(Saboteur):
    """I2: anybody may finish a key."""

    def changed(self, command: Command) -> Command:
        if isinstance(command, Finish) and (record := self.look(command.id)) is not None:
            return command._replace(owner=record.owner, fence=record.fence)
        return command


class StealsLeases(Saboteur):
    """I5: a claim releases the claim of a living owner first."""

    def changed(self, command: Command) -> Command:
        if isinstance(command, Claim):
            record = self.look(command.id)
            if record is not None and record.state is State.PENDING:
                self.inner.apply([Release(record.id, record.owner, record.fence)])
        return command


class ForgetsEarly(Saboteur):
    """I4, I12: outcomes are deleted too early."""

    def changed(self, command: Command) -> Command:
        if isinstance(command, Claim):
            return command._replace(keep=command.keep // 10)
        return command


class BlindToRequests(Saboteur):
    """I7: every request has the same fingerprint."""

    def changed(self, command: Command) -> Command:
        if isinstance(command, Claim):
            return command._replace(fingerprint=b"\x01same")
        return command


class EveryoneIsRetrySafe(Saboteur):
    """I1: the key of a dead owner is taken over though it is not retry-safe."""

    def changed(self, command: Command) -> Command:
        if isinstance(command, Claim):
            return command._replace(retry_safe=True)
        return command


class Breaks(Saboteur):
    """Applies a claim, and cannot read its reply."""

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        replies = self.inner.apply(commands)
        if any(isinstance(command, Claim) for command in commands):
            raise TypeError("this reply cannot be read")
        return replies


SABOTEURS = {
    kind.__name__: kind
    for kind in (
        FinishWithoutOwner,
        StealsLeases,
        ForgetsEarly,
        BlindToRequests,
        EveryoneIsRetrySafe,
        Breaks,
    )
}
# The rule of the checker that a store which is broken must violate, among others.
CAUGHT_AT = {
    "FinishWithoutOwner": "i2_",
    "StealsLeases": "i5_leases_never_overlap",
    "ForgetsEarly": "i4_what_was_stored_stays",
    "BlindToRequests": "i7_mismatch_exactly_when_it_differs",
    "EveryoneIsRetrySafe": "i1_every_run_has_its_reason",
}
