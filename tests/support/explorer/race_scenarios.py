"""The races of two or three programs for one record, and what must hold of every result.

`judge` knows the state machine but no SQL: whatever the statements did, the replies and the record
at the end must be those of the commands decided one after the other, in some order, each at one
reading of the clock that its own program made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Final

from tests.support.explorer.descriptions import describe_command, describe_record, owner_name
from tests.support.explorer.scenario import KEY, OTHER, SAME

from oncekey.core.commands import (
    Busy,
    Claim,
    Claimed,
    Command,
    Done,
    Finish,
    Lost,
    Mismatched,
    Release,
    Renew,
    Replay,
    Reply,
    Resolve,
    SaveStep,
)
from oncekey.core.record import Record, State
from oncekey.core.state_machine import decide, is_garbage

EARLY: Final = 1_000
LATE: Final = 2_000
_LEASE: Final = 5_000
_FIRST: Final = b"A" * 16


@dataclass(frozen=True)
class Sweep:
    """A racer that sweeps, instead of applying a command."""


@dataclass(frozen=True)
class Race:
    """A record, and the racers that work on it at once. The clock reads EARLY, then LATE for ever.

    `lazy`: the sweeper may leave garbage for later.
    """

    name: str
    before: Record | None
    racers: tuple[Command | Sweep, ...]
    lazy: bool = False


@dataclass(frozen=True)
class RaceResult:
    """The result of one schedule: replies (a count for a sweep), clock readings, and the record."""

    replies: tuple[Reply | int, ...]
    readings: tuple[tuple[int, ...], ...]
    after: Record | None


class SteppingClock:
    """Reads EARLY the first `early` times, then LATE; records who has read what."""

    def __init__(self, early: int) -> None:
        self._early = early
        self.read: list[tuple[int, int]] = []

    def of(self, racer: int) -> Callable[[], int]:
        def reading() -> int:
            now = EARLY if len(self.read) < self._early else LATE
            self.read.append((racer, now))
            return now

        return reading

    def readings(self, racer: int) -> tuple[int, ...]:
        return tuple(now for who, now in self.read if who == racer)

    @property
    def last(self) -> int:
        return self.read[-1][1] if self.read else EARLY


def describe_racer(racer: Command | Sweep) -> str:
    """A racer as text."""
    name = "sweeper" if isinstance(racer, Sweep) else describe_command(racer)
    owner = getattr(racer, "owner", b"")
    return f"{owner_name(owner)}'s {name}" if owner else name


def claim(owner: str, *, retry_safe: bool = True, fingerprint: bytes = SAME) -> Claim:
    return Claim(KEY, owner.encode() * 16, fingerprint, _LEASE, _LEASE, _LEASE, retry_safe)


def held(**changes: object) -> Record:
    """A's claim, whose lease ends between EARLY and LATE."""
    claimed = decide(None, claim("A"), EARLY - 500).write
    assert claimed is not None
    return claimed._replace(lease_until=EARLY + 500)._replace(**changes)  # type: ignore[arg-type]


_FENCE: Final = EARLY - 500
_FINISH: Final = Finish(KEY, _FIRST, _FENCE, State.SUCCEEDED, b"A's")
_FAILURE: Final = Finish(KEY, _FIRST, _FENCE, State.FAILED, b"A's failure")
_STEP: Final = SaveStep(KEY, _FIRST, _FENCE, "pay", False, b"intent")
_RENEWAL: Final = Renew(KEY, _FIRST, _FENCE, _LEASE)
_RECOVERY: Final = Resolve(KEY, _FENCE, State.FAILED, b"declined", "by hand")
_UNKNOWN: Final = held(state=State.UNKNOWN, finished_at=EARLY, retry_safe=False)
_SILENT: Final = held(lease_until=_FENCE, retry_safe=False, keep=1, audit=0)
_ENDED: Final = held(state=State.SUCCEEDED, finished_at=_FENCE, body=b"first", keep=1_000, audit=0)
# An operator has seen the silent owner's key, and frees it as it was shown.
_DECISION: Final = Resolve(
    KEY, _FENCE, State.ABSENT, b"", "ana freed", State.UNKNOWN, _SILENT.lease_until
)
# From before the clock was set back: after a sweep its fence must not be granted again.
_AHEAD: Final = _ENDED._replace(fence=LATE + 1_000, keep=100)

RACES: Final = (
    Race("a new key", None, (claim("B"), claim("C"))),
    Race("a new key, three", None, (claim("B"), claim("C"), claim("D", fingerprint=OTHER))),
    Race("a dead owner's key", held(), (claim("B"), claim("C"))),
    Race("a dead owner's key, not safe", held(retry_safe=False), (claim("B"), claim("C"))),
    Race("takeover and the zombie's finish", held(), (claim("B"), _FINISH)),
    Race("takeover and renewal", held(), (claim("B"), _RENEWAL)),
    Race("takeover and release", held(), (claim("B"), Release(KEY, _FIRST, _FENCE))),
    Race("two takeovers and the finish", held(), (claim("B"), claim("C"), _FINISH)),
    Race("another request", held(), (claim("B", fingerprint=OTHER), _FINISH)),
    Race("an expiring outcome", _ENDED, (claim("B"), claim("C", fingerprint=OTHER))),
    Race("an expiring outcome and the sweeper", _ENDED, (claim("B"), Sweep())),
    Race("a key from before the clock was set back", _AHEAD, (claim("B"), Sweep())),
    Race("finish and the sweeper", held(keep=1, audit=0), (_FINISH, Sweep())),
    Race("renewal and the sweeper", held(keep=1, audit=0), (_RENEWAL, Sweep())),
    Race("takeover and the sweeper", held(keep=1, audit=0), (claim("B"), Sweep())),
    Race("a live record and the sweeper", held(), (claim("B"), Sweep())),
    Race("two endings", held(), (_FINISH, _FAILURE)),
    Race("result and renewal", held(), (_FINISH, _RENEWAL)),
    Race("renewal and a step", held(), (_RENEWAL, _STEP)),
    Race("giving up and the finish", held(retry_safe=False), (claim("B"), _FINISH)),
    Race("an unknown key's owner and recovery", _UNKNOWN, (_FINISH, _RECOVERY)),
    Race("an unknown key's two endings", _UNKNOWN, (_FINISH, _FAILURE)),
    Race("an operator and the silent owner's renewal", _SILENT, (_DECISION, _RENEWAL)),
    Race("an operator, a retry and the finish", _SILENT, (_DECISION, claim("B"), _FINISH)),
    Race("an undecided key and the sweeper", _SILENT, (claim("B"), Sweep())),
)


def judge(race: Race, result: RaceResult) -> tuple[str, str] | None:
    """The broken invariant and what is wrong, or None."""
    replied = list(zip(race.racers, result.replies, strict=True))
    owners = [c.owner for c, r in replied if isinstance(c, Claim) and isinstance(r, Claimed)]
    freed = any(isinstance(racer, Release) for racer in race.racers)
    if len(owners) > 1 and not freed:
        names = " and ".join(owner_name(owner) for owner in owners)
        return "I5", f"{names} both got the reply that they hold the key"
    if owners and any(isinstance(c, Renew) and isinstance(r, Done) for c, r in replied):
        return "I5", f"{owner_name(owners[0])} was granted a key whose lease was renewed"
    for command, reply in replied:
        what = _refused_yet_written(command, reply, race.before, result.after)
        if what is not None:
            return "I7", what
        if isinstance(command, Finish) and isinstance(reply, Done) and not owners:
            after = result.after
            if not _has_sweeper(race) and (after is None or after.body != command.body):
                return "I4", f"the reply is Done, but the store has {describe_record(after)}"
    for invariant, what in (
        ("I2", _finished_twice(replied, result.after)),
        ("S3", _replied_another_fence(replied, result.after)),
        ("I6", _fence_fell(replied, race.before)),
        ("I12", _swept_too_early(race, result)),
    ):
        if what is not None:
            return invariant, what
    if not _serial(race, result):
        return "order", f"no order of the commands explains {result}"
    return None


def _refused_yet_written(
    command: Command | Sweep, reply: Reply | int, before: Record | None, after: Record | None
) -> str | None:
    """A rejection changes nothing: the record is not that of the rejected owner."""
    if not isinstance(command, Claim) or not isinstance(reply, (Busy, Mismatched, Replay, Lost)):
        return None
    mine = after is not None and after.owner == command.owner
    if not mine or (before is not None and before.owner == command.owner):
        return None
    name = owner_name(command.owner)
    return f"{name} got {reply}, but the store has {describe_record(after)}"


def _replied_another_fence(
    replied: Sequence[tuple[Command | Sweep, Reply | int]], after: Record | None
) -> str | None:
    """One decision reads the clock once: the fence in the reply is the one in the store."""
    for command, reply in replied:
        if not isinstance(command, Claim) or not isinstance(reply, Claimed) or after is None:
            continue
        if after.owner == command.owner and after.fence != reply.fence:
            return f"the reply has fence {reply.fence}, but the store has {describe_record(after)}"
    return None


def _fence_fell(
    replied: Sequence[tuple[Command | Sweep, Reply | int]], before: Record | None
) -> str | None:
    """A new grant's fence is above the last one's, also if that was swept."""
    for command, reply in replied:
        if before is None or not isinstance(command, Claim) or not isinstance(reply, Claimed):
            continue
        if command.owner != before.owner and reply.fence <= before.fence:
            return f"granted fence {reply.fence} after {before.fence}"
    return None


def _finished_twice(
    replied: Sequence[tuple[Command | Sweep, Reply | int]], after: Record | None
) -> str | None:
    """There is one outcome, and it is that of its owner."""
    done: list[Finish | Resolve] = [
        c for c, reply in replied if isinstance(c, (Finish, Resolve)) and isinstance(reply, Done)
    ]
    if len({(finish.state, finish.body) for finish in done}) > 1:
        return "two different outcomes both got Done"
    for finish in done:
        if isinstance(finish, Resolve):
            continue
        if after is not None and after.owner != finish.owner and after.body == finish.body:
            return f"{owner_name(finish.owner)}'s outcome is in {describe_record(after)}"
    return None


def _swept_too_early(race: Race, result: RaceResult) -> str | None:
    """The record was garbage before the race: whatever the others did, it only lasts longer."""
    for racer, reply, times in zip(race.racers, result.replies, result.readings, strict=True):
        if not isinstance(racer, Sweep) or reply == 0:
            continue
        if race.before is None or not is_garbage(race.before, max(times)):
            return f"swept at {max(times)}: {describe_record(race.before)}"
    return None


def _has_sweeper(race: Race) -> bool:
    return any(isinstance(racer, Sweep) for racer in race.racers)


def _serial(race: Race, result: RaceResult) -> bool:
    """True if some order, with one of its own clock readings for each racer, gives this result."""
    readings = [tuple(dict.fromkeys(own)) for own in result.readings]
    return any(
        _gives(race, order, times, result)
        for order in permutations(range(len(race.racers)))
        for times in product(*readings)
    )


def _gives(race: Race, order: Sequence[int], times: Sequence[int], result: RaceResult) -> bool:
    record, floor = race.before, 0
    for i in order:
        racer, now = race.racers[i], times[i]
        if isinstance(racer, Sweep):
            if race.lazy and result.replies[i] == 0:
                continue
            removed = 0
            if record is not None and is_garbage(record, now):
                floor, removed = record.fence, 1
                record = None
            if result.replies[i] != removed:
                return False
            continue
        decision = decide(record, racer, now, floor)
        record = record if decision.write is None else decision.write
        if decision.reply != result.replies[i]:
            return False
    return record == result.after
