"""What each command does in two stores, as generators: they yield calls and are sent the results.

A key is held by whoever holds it in both stores. So a process in dual mode and one that knows only
the old store exclude each other there, and one that knows only the new store does so in that.

*   A claim is made in the old store, then in the new one with the same owner and fence; if the new
    one needs a higher fence, it is raised in the old one first. Steps that only one store has are
    saved in the other. If the new store refuses, the claim in the old one is released, and the
    new store's reply counts.
*   An outcome is stored in the old store, then in the new one, and acknowledged when both have it.
*   A release goes to the new store first: where it stops halfway, the old store still holds the
    key, and the next claim finds out from the new one that it was released.
*   Whoever finds that the two stores disagree adopts the record that leads (moved_records.py) into
    the other one, and only then replies. If that one cannot hold it (RecordTooLarge), the record
    stays where it is, and its reply counts: the new store is not used alone before everything was
    copied.
*   If one of the stores takes only records up to a size, both do: an outcome that does not fit
    there becomes the same tombstone in both, and a step goes there first.

Each command has a generator of its own, and those of a batch go on side by side (side_by_side.py).
Failures come back as values, so that a claim that cannot be made in both stores leaves nothing
behind. Must not know threads or asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple

from oncekey.core.commands import (
    Adopt,
    Busy,
    Claim,
    ClaimAlso,
    Claimed,
    Command,
    Done,
    FenceTooLow,
    Finish,
    Look,
    Lost,
    RaiseFence,
    Release,
    Renew,
    Replay,
    Reply,
    Resolve,
    SaveStep,
    Seen,
)
from oncekey.core.errors import OncekeyError, StoreUnavailable
from oncekey.core.move_marks import MARK_ID
from oncekey.core.moved_records import Side, is_same_version, latest, leading, merged_steps
from oncekey.core.record import Record, State, Step
from oncekey.core.state_machine import decide
from oncekey.core.store import RecordTooLarge
from oncekey.stores.move.side_by_side import (
    NEW,
    OLD,
    Answer,
    Ask,
    Program,
    Rule,
    replies_of,
    run_side_by_side,
)
from oncekey.stores.record_format import fitting
from oncekey.stores.store_rules import split_by_id

TRIES_MAX: Final = 3
# What a claim is told that met the two stores in disagreement TRIES_MAX times in a row.
RETRY_HINT_US: Final = 250_000

# --- a batch ---------------------------------------------------------------------------------


class RecordLimit(NamedTuple):
    """The store that takes only records up to a size, and how many bytes; if both do, the one that
    takes less."""

    side: Side
    most: int


def apply(commands: Sequence[Command], limit: RecordLimit | None = None) -> Program[list[Reply]]:
    """Apply commands: those of one id one after the other, all others side by side."""
    answers: dict[int, Answer] = {}
    for group in split_by_id(commands):
        rules = {i: _rule(command, limit) for i, command in group.items()}
        yield from run_side_by_side(rules, answers)
    return replies_of([answers[i] for i in range(len(commands))])


def _rule(command: Command, limit: RecordLimit | None) -> Rule:
    if limit is not None and isinstance(command, Finish):
        return _finish_within(command, limit)
    if limit is not None and isinstance(command, SaveStep):
        return in_both(command, first=limit.side)
    return RULES[type(command)](command)


# --- claims ----------------------------------------------------------------------------------


def claim(command: Claim) -> Rule:
    """Claim a key in both stores."""
    for _ in range(TRIES_MAX):
        first = yield Ask(OLD, command)
        if isinstance(first, (OncekeyError, Lost)):
            return first
        if isinstance(first, Claimed):
            return (yield from _claim_in_new(command, first))
        answer = yield from _compare_refusal(command, first)
        if answer is not None:
            return answer
    return Busy(RETRY_HINT_US)


def _claim_in_new(command: Claim, first: Claimed) -> Rule:
    """The old store has granted the claim; get it in the new one too, with the same fence."""
    fence = first.fence
    second = yield Ask(NEW, ClaimAlso(command, fence))
    if isinstance(second, FenceTooLow):
        fence, second = yield from _claim_with_higher_fence(command, fence, second.above)
    if isinstance(second, Claimed):
        return (yield from _share_steps(command, first, second))
    if not isinstance(second, StoreUnavailable) or not second.ambiguous:
        # Nobody runs it: the old store must not hold the key for the rest of the lease, or call it
        # unknown after that. If this fails too, that is what happens.
        yield Ask(OLD, Release(command.id, command.owner, fence))
    return second  # type: ignore[no-any-return]


def _claim_with_higher_fence(
    command: Claim, fence: int, above: int
) -> Generator[Ask, Any, tuple[int, Answer]]:
    """The new store needs a fence above this one. It is raised in the old store first: only while
    this owner has the key there may it get it in the new one. Returns the fence in the old store,
    and the new store's reply."""
    raised = yield Ask(OLD, RaiseFence(command.id, command.owner, fence, above + 1))
    if isinstance(raised, OncekeyError):
        return fence, raised
    if isinstance(raised, Lost):
        return fence, Busy(RETRY_HINT_US)  # another one has the key by now
    second = yield Ask(NEW, ClaimAlso(command, above + 1))
    if isinstance(second, FenceTooLow):  # another one was faster
        second = Busy(RETRY_HINT_US)
    return above + 1, second


def _share_steps(command: Claim, first: Claimed, second: Claimed) -> Rule:
    """Both stores have granted the claim: give them the same steps."""
    id, owner, fence = command.id, command.owner, second.fence
    steps = merged_steps(first.steps, second.steps)
    for side, claimed in ((OLD, first), (NEW, second)):
        for step in _missing(steps, claimed.steps):
            save = SaveStep(id, owner, fence, step.name, step.done, step.body)
            saved = yield Ask(side, save)
            if isinstance(saved, RecordTooLarge):  # nobody runs it
                yield Ask(NEW, Release(id, owner, fence))
                yield Ask(OLD, Release(id, owner, fence))
            if not isinstance(saved, Done):
                return Busy(RETRY_HINT_US) if isinstance(saved, Lost) else saved
    attempt = max(first.attempt, second.attempt)
    return Claimed(fence, attempt, steps, first.taken_over or second.taken_over)


def _missing(steps: tuple[Step, ...], known: tuple[Step, ...]) -> list[Step]:
    done = {step.name: step.done for step in known}
    return [step for step in steps if step.name not in done or done[step.name] < step.done]


def _compare_refusal(command: Claim, first: Reply) -> Generator[Ask, Any, Answer | None]:
    """The old store has refused the claim. The reply to it if the new store agrees, or has no
    record that counts; else both are compared, and made equal. None if it is to be tried again."""
    new = yield Ask(NEW, Look(command.id))
    if isinstance(new, OncekeyError):
        return new
    record = new.record
    if record is None or new.now >= record.expires_at:
        return first
    if isinstance(first, Replay) and _is_outcome(first, record):
        return first
    if isinstance(first, Busy) and record.state == State.PENDING:
        return Busy(max(first.remaining, record.lease_until - new.now))
    old = yield Ask(OLD, Look(command.id))
    if isinstance(old, OncekeyError):
        return old
    side = leading(old, new)
    if side is None:
        return None
    adopted = yield from _adopt(side, old, new)
    is_unfit = isinstance(adopted, RecordTooLarge)
    if isinstance(adopted, OncekeyError) and not is_unfit:
        return adopted
    leader = old if side is OLD else new
    reply, write, _ = decide(leader.record, command, leader.now)
    is_shared = isinstance(adopted, Done)
    if write is None and (side is NEW or is_shared or is_unfit):
        return reply
    if is_unfit:
        return adopted
    # The key can be claimed, in both stores, if both know that; or the new one has changed.
    return None if is_shared or side is OLD else first


def _is_outcome(reply: Replay, record: Record) -> bool:
    replayed = (reply.fence, reply.state, reply.body)
    return replayed == (record.fence, record.state, record.body)


def _adopt(side: Side, old: Seen, new: Seen) -> Rule:
    """Give the record that leads to the other store."""
    if is_same_version(old, new):
        return Done()
    leader = old if side is OLD else new
    assert leader.record is not None
    # Only the new store has records with a higher fence than the old one's that count for certain.
    adopted = yield Ask(side.other, Adopt(leader.record, leader.now, counts=side is NEW))
    return adopted  # type: ignore[no-any-return]


# --- the owner's commands --------------------------------------------------------------------


def finish(command: Finish) -> Rule:
    """Store an outcome: it is stored when both stores have it."""
    first = yield Ask(OLD, command)
    if isinstance(first, Lost):
        return (yield from _report_late(command))
    if not isinstance(first, Done):
        return first  # type: ignore[no-any-return]
    second = yield Ask(NEW, command)
    if isinstance(second, StoreUnavailable):
        return StoreUnavailable(
            f"the outcome is in the old store, and the new one did not take it: {second}",
            final=second.final,
            timed_out=second.timed_out,
        )
    if not isinstance(second, Lost):
        return second  # type: ignore[no-any-return]
    # Another owner has the key in the new store by now, or the new store has lost its record.
    old, new = yield from look_both(command.id)
    if isinstance(old, OncekeyError):
        return old
    if isinstance(new, OncekeyError):
        return new
    is_mine = old.record is not None and old.record.owner == command.owner
    if not is_mine or leading(old, new) is not OLD:
        return second
    return (yield from _adopt(OLD, old, new))


def _finish_within(command: Finish, limit: RecordLimit) -> Rule:
    """Store an outcome as the store of the limit takes it, together with the steps."""
    seen = yield Ask(limit.side, Look(command.id))
    if isinstance(seen, OncekeyError):
        return seen
    return (yield from finish(fitting(command, seen.record, limit.most)))


def _report_late(command: Finish) -> Rule:
    """The old store has refused an outcome. If the key was decided, the new store learns too that
    its owner came late; otherwise it must not get the outcome, which would seem to count there."""
    new = yield Ask(NEW, Look(command.id))
    if isinstance(new, Seen) and new.record is not None:
        is_open = new.record.state in (State.PENDING, State.UNKNOWN)
        if new.record.owner == command.owner and not is_open:
            yield Ask(NEW, command)
    return Lost()


def in_both(command: Renew | SaveStep | Adopt | RaiseFence, first: Side = OLD) -> Rule:
    """Apply a command in one store, and then in the other one, as long as both accept it."""
    for side in (first, first.other):
        reply = yield Ask(side, command)
        if not isinstance(reply, Done):
            return reply  # type: ignore[no-any-return]
    return Done()


def release(command: Release) -> Rule:
    """Free a key in both stores; one that is down does not keep it in the other."""
    second = yield Ask(NEW, command)
    first = yield Ask(OLD, command)
    for answer in (first, second):
        if isinstance(answer, OncekeyError):
            return answer
    if command.fence is None:  # perhaps it was claimed in one of them only
        done = isinstance(first, Done) or isinstance(second, Done)
    else:
        done = isinstance(first, Done) and isinstance(second, Done)
    return Done() if done else Lost()


# --- readers and operators -------------------------------------------------------------------


def look(command: Look) -> Rule:
    """Read the record that leads."""
    old, new = yield from look_both(command.id)
    if isinstance(old, OncekeyError):
        return old
    if isinstance(new, OncekeyError):
        return new
    if command.id == MARK_ID:
        return Seen(None, new.now)  # each store has a mark of its own; the pair has none
    return latest(old, new)


def resolve(command: Resolve) -> Rule:
    """Decide a key in both stores, after they have been made equal."""
    old, new = yield from _look_at_equals(command.id)
    for seen in (old, new):
        if isinstance(seen, OncekeyError):
            return seen
    leader, now = old if leading(old, new) is OLD else new
    if leader is None:
        return Lost()
    leases = [seen.record.lease_until for seen in (old, new) if seen.record is not None]
    if command.lease_until in leases:  # as it was shown, by the clock of either store
        command = command._replace(lease_until=leader.lease_until)
    decision = decide(leader, command, now)
    if not isinstance(decision.reply, Done):
        return decision.reply
    for side, seen in ((OLD, old), (NEW, new)):
        record = seen.record
        if record is None or record.owner != leader.owner:
            continue  # it is not this claim, and it does not lead
        lease_until = record.lease_until if command.lease_until else 0
        there = command._replace(fence=record.fence, lease_until=lease_until)
        reply = yield Ask(side, there)
        if not isinstance(reply, Done):
            return reply  # type: ignore[no-any-return]
    return Done()


def _look_at_equals(id: bytes) -> Generator[Ask, Any, tuple[Any, Any]]:
    """What both stores have, after the record that leads was given to the other one."""
    old, new = yield from look_both(id)
    if isinstance(old, OncekeyError) or isinstance(new, OncekeyError):
        return old, new
    side = leading(old, new)
    if side is None or is_same_version(old, new):
        return old, new
    adopted = yield from _adopt(side, old, new)
    if isinstance(adopted, RecordTooLarge):
        return old, new
    if isinstance(adopted, OncekeyError):
        return adopted, adopted
    return (yield from look_both(id))


def look_both(id: bytes) -> Generator[Ask, Any, tuple[Any, Any]]:
    old = yield Ask(OLD, Look(id))
    new = yield Ask(NEW, Look(id))
    return old, new


RULES: Final[dict[type[Any], Callable[[Any], Rule]]] = {
    Claim: claim,
    Finish: finish,
    Renew: in_both,
    Release: release,
    SaveStep: in_both,
    Look: look,
    Resolve: resolve,
    Adopt: in_both,
    RaiseFence: in_both,
}
