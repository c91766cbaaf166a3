"""Records that are in two stores while keys move from one to the other.

`adopt` is what the command Adopt does: it writes a record as it stands in another store. The times
in it are shifted by the difference of the two clocks, so that what was left of a lease, of `keep`
and of `audit` is left here too; its fence stays what it is. Rules, the first that applies:

1.  A past generation goes to the history. What is garbage by now is not written at all.
2.  Nothing is here: it is written.
3.  The same claim is here: the further state replaces the other one (pending, unknown, decided).
    If both are decided and differ, the one that is here stays (Lost), unless it is a tombstone
    that stands for an outcome which was too large. If both are the same, the one that is here gets
    the steps that it lacks.
4.  What is here has the same fence or a higher one: it stays (Lost).
5.  What is here has expired: it is replaced, and goes to the history.
6.  An outcome replaces whatever has a lower fence. Anything else replaces neither an outcome, nor a
    claim whose lease has not ended, nor what is undecided (Lost).

If the sender knows that the record `counts`, it replaces whatever has no higher fence.

ClaimAlso is a claim with the fence of another store. RaiseFence is a compare-and-set on (owner,
fence, pending), as an owner's other commands.

`leading` compares the two records of a key: which of them counts. The fences tell, since every
claim in dual mode has a fence that the old store has granted. There are two exceptions. Records of
one claim are compared by rule 3. And a claim with a higher fence that is in the old store only may
be one that a process could not get in both stores, so that nobody has run it: then the new store
counts, if it has an outcome, a lease that has not ended, or something undecided. So a process in
dual mode may work beside processes that know only the old store, where the old one decides, and
later beside those that know only the new one. Pure; must not know stores.
"""

from __future__ import annotations

import enum
from typing import Final

from oncekey.core.codec import Tombstone, unpack
from oncekey.core.commands import (
    Adopt,
    ClaimAlso,
    Claimed,
    Command,
    Done,
    FenceTooLow,
    Lost,
    RaiseFence,
    Reply,
    Seen,
)
from oncekey.core.record import Record, State, Step

_ENDED: Final = (State.SUCCEEDED, State.FAILED)
# How far a claim has come.
_PROGRESS: Final = {
    State.PENDING: 0,
    State.UNKNOWN: 1,
    State.SUCCEEDED: 2,
    State.FAILED: 2,
    State.ABSENT: 2,
}
# The reply, the record to write, and the record to archive.
MovedDecision = tuple[Reply, Record | None, Record | None]

_DONE: Final = Done()
_LOST: Final = Lost()


class Side(enum.IntEnum):
    """One of the two stores of a move."""

    OLD = 0
    NEW = 1

    @property
    def other(self) -> Side:
        return Side.NEW if self is Side.OLD else Side.OLD


def decide_moved(
    here: Record | None, command: Command, now: int, floor: int, alone: MovedDecision | None
) -> MovedDecision:
    """What a command of a move does to the record that is here; `alone` is what the claim of a
    ClaimAlso would do by itself."""
    if isinstance(command, Adopt):
        return adopt(here, command, now)
    if isinstance(command, ClaimAlso):
        assert alone is not None
        return _with_fence(here, command.fence, floor, alone)
    assert isinstance(command, RaiseFence)
    if here is None or here.owner != command.owner or here.state != State.PENDING:
        return _LOST, None, None
    if here.fence == command.to:
        return _DONE, None, None  # a repeat
    if here.fence != command.fence or command.to < here.fence:
        return _LOST, None, None
    return _DONE, here._replace(fence=command.to), None


def _with_fence(here: Record | None, fence: int, floor: int, alone: MovedDecision) -> MovedDecision:
    """What the claim would do alone, but with the fence that the other store has granted, and with
    no other: if an owner has lost the key there before it came here, its fence shows that."""
    reply, write, archive = alone
    if not isinstance(reply, Claimed) or write is None:
        return alone
    if here is not None and here.owner == write.owner and here.fence == write.fence:
        return alone  # a repeat
    above = floor if here is None else here.fence
    if fence <= above:
        return FenceTooLow(above), None, None
    return reply._replace(fence=fence), write._replace(fence=fence), archive


def adopt(here: Record | None, command: Adopt, now: int) -> MovedDecision:
    """What Adopt does, by the rules above."""
    record = _shifted(command.record, now - command.at)
    if now >= record.audit_until:
        return _DONE, None, None
    if command.past:
        return _DONE, None, record
    if here is None:
        return _DONE, record, None
    if here.owner == record.owner and not (_has_ended(here) and here.fence < record.fence):
        reply, write, _ = _adopt_same_claim(here, record)
        if isinstance(reply, Done) or not command.counts:
            return reply, write, None
    if here.fence >= record.fence and not (command.counts and here.fence == record.fence):
        return _LOST, None, None
    is_needed = now < here.expires_at and not _has_ended(record) and not command.counts
    if is_needed and (_has_ended(here) or _is_held(here, now) or here.is_undecided):
        return _LOST, None, None
    is_kept = here.state != State.ABSENT and now < here.audit_until
    return _DONE, record, here if is_kept else None


def _adopt_same_claim(here: Record, record: Record) -> MovedDecision:
    if _PROGRESS[record.state] > _PROGRESS[here.state]:
        write = record._replace(
            fence=max(here.fence, record.fence), steps=merged_steps(record.steps, here.steps)
        )
        return _DONE, write, None
    if _PROGRESS[record.state] < _PROGRESS[here.state]:
        return _DONE, None, None
    if _stands_for(here, record):
        return _DONE, record._replace(steps=merged_steps(record.steps, here.steps)), None
    if not _is_same_outcome(here, record):
        return _LOST, None, None
    if _lacks_steps(here, record):
        return _DONE, here._replace(steps=merged_steps(here.steps, record.steps)), None
    return _DONE, None, None


def _shifted(record: Record, by: int) -> Record:
    """The record by the clock of another store."""
    return record._replace(
        created_at=record.created_at + by,
        lease_until=record.lease_until + by,
        finished_at=record.finished_at + by if record.finished_at else 0,
        steps=tuple([step._replace(at=step.at + by) for step in record.steps]),
    )


def _has_ended(record: Record) -> bool:
    return record.state in _ENDED


def _is_held(record: Record, now: int) -> bool:
    return record.state == State.PENDING and now < record.lease_until


def _is_same_outcome(one: Record, other: Record) -> bool:
    return one.state == other.state and (one.body == other.body or not _has_ended(one))


def _stands_for(one: Record, other: Record) -> bool:
    """True if one store has a tombstone in place of the outcome that the other one has, of the same
    claim."""
    if one.state != other.state or one.body == other.body or not _has_ended(one):
        return False
    return _is_too_large(one) and not _is_too_large(other)


def _is_too_large(record: Record) -> bool:
    stored = unpack(record.body)
    return isinstance(stored, Tombstone) and stored.too_large


def _lacks_steps(one: Record, other: Record) -> bool:
    """True if a record does not have every step of the other one, of the same claim. Without them a
    later attempt would run these steps again; after a success there is none."""
    if one.state == State.SUCCEEDED:
        return False
    return merged_steps(one.steps, other.steps) != one.steps


def is_same_claim(old: Seen, new: Seen) -> bool:
    """True if both stores have the same claim of a key, however far it has come in each."""
    one, other = _live(old), _live(new)
    if one is None or other is None:
        return False
    return one.owner == other.owner and one.fence == other.fence


def is_same_version(old: Seen, new: Seen) -> bool:
    """True if both stores say the same about a key: the same claim, as far as it has come, and the
    new one has every step of it."""
    one, other = _live(old), _live(new)
    if one is None or other is None:
        return one is other
    is_same = is_same_claim(old, new) and _is_same_outcome(one, other)
    return is_same and not _lacks_steps(other, one)


def leading(old: Seen, new: Seen) -> Side | None:
    """The side whose record counts; None if neither has one that has not expired. If both say the
    same, the new one."""
    one, other = _live(old), _live(new)
    if one is None or other is None:
        if one is other:
            return None
        return Side.OLD if one is not None else Side.NEW
    if one.owner == other.owner:
        if _PROGRESS[one.state] != _PROGRESS[other.state]:
            return Side.OLD if _PROGRESS[one.state] > _PROGRESS[other.state] else Side.NEW
        is_more = _stands_for(other, one) or (
            _is_same_outcome(one, other) and _lacks_steps(other, one)
        )
        return Side.OLD if is_more else Side.NEW
    if one.fence <= other.fence:
        return Side.NEW
    if _has_ended(one) or other.state == State.ABSENT:
        return Side.OLD
    if one.state == State.ABSENT or _has_ended(other) or other.is_undecided:
        return Side.NEW
    return Side.NEW if _is_held(other, new.now) else Side.OLD


def _live(seen: Seen) -> Record | None:
    record = seen.record
    return record if record is not None and seen.now < record.expires_at else None


def latest(old: Seen, new: Seen) -> Seen:
    """What a reader is shown of a key: the record that leads, or the later one of two that have
    expired."""
    side = leading(old, new)
    if side is None:
        fences = [seen.record.fence if seen.record else 0 for seen in (old, new)]
        side = Side.OLD if fences[0] > fences[1] else Side.NEW
    return old if side is Side.OLD else new


def merged_steps(one: tuple[Step, ...], other: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps of both, each as far as it has come."""
    if one == other:
        return one
    steps = {step.name: step for step in one}
    for step in other:
        known = steps.get(step.name)
        if known is None or (step.done and not known.done):
            steps[step.name] = step
    return tuple(steps.values())
