"""The state machine: the only place where a key changes state.

Rules, in words:

1.  A record past its expiry counts as absent, whatever it says. Expiry is judged here, by the
    claim; the sweeper only collects garbage.
2.  A claim takes the first rule of CLAIM_RULES that holds: expired or never seen, a late copy
    of a claim that was released already, freed, mine already (the reply was lost), another
    request (also while the key is held), finished, unknown, held, taken over, given up as unknown.
3.  Rejections and replays change nothing.
4.  Finish, renew, release and save-step are compare-and-set on (owner, fence, pending). Sent
    twice, they reply Done twice. The reply to anyone else is Lost. One exception: the owner of a
    record that became unknown may still finish or release it, because nobody else has run and
    only the owner knows how it ended. If the record was resolved before that, the resolution
    stands; the owner's own state is added to the record's note, and nothing else changes.
5.  A fence is above every fence this key ever had, also after its record was deleted:
    max(previous + 1, the store's clock), and for a key without a record above the `floor`, the
    highest fence among all that the store has deleted.
6.  A dead owner's key is taken over only if both the dead and the new owner are retry-safe.
7.  Unknown is left only by Resolve and by rule 4, and it does not expire by `keep`: it lasts
    until it is decided, or for `keep_unknown`. So does the claim of a dead owner that would
    become unknown if anybody looked.
    Freed is free for any request, unless steps were saved: those belong to the request they
    were made for, so such a key stays bound to it and the next run skips what is done.
    Resolve also frees a failed key, if an operator says so; what it failed with is archived. It
    decides a record only as it was shown: the same fence, state and, for an operator, lease.
    The note stays with the key when it is claimed again; only expiry ends it.
8.  One decision sees one reading of the clock: `now`, given by the store.
9.  A record may come whole from another store, in the state it has there: see moved_records.py.

The table of states and triggers is in transitions.py. Pure. Must not know stores, sync or async.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from oncekey.core import record as notes
from oncekey.core.commands import (
    Busy,
    Claim,
    ClaimAlso,
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
    Reply,
    Resolve,
    SaveStep,
    Seen,
    Unknown,
    from_fields,
)
from oncekey.core.fingerprint import version_of
from oncekey.core.moved_records import decide_moved
from oncekey.core.record import Record, State, Step
from oncekey.core.transitions import FINISH_TRIGGERS, RESOLVE_TRIGGERS, TRANSITIONS, Trigger

ABSENT, PENDING, SUCCEEDED, FAILED, UNKNOWN = State


class Decision(NamedTuple):
    """The reply; the record to write, if anything changes; a past generation to archive."""

    reply: Reply
    write: Record | None = None
    archive: Record | None = None


DONE: Final = Done()
_DONE: Final = Decision(DONE)
_LOST: Final = Decision(Lost())


def decide(record: Record | None, command: Command, now: int, floor: int = 0) -> Decision:
    """What `command` does to `record` at the store's time `now`; `floor` as in rule 5."""
    if type(command) is Claim:
        if record is None:
            return _start(None, command, now, floor)
        for holds, decision in CLAIM_RULES:
            if holds(record, command, now):
                return decision(record, command, now)
        raise AssertionError("the claim rules cover every case")
    if type(command) is Finish:
        return _finish(record, command, now)
    if isinstance(command, Look):
        return Decision(Seen(record, now))
    if isinstance(command, Renew):
        return _renew(record, command, now)
    if isinstance(command, Release):
        return _release(record, command, now)
    if isinstance(command, SaveStep):
        return _save_step(record, command, now)
    if isinstance(command, Resolve):
        return _resolve(record, command, now)
    alone = decide(record, command.claim, now, floor) if isinstance(command, ClaimAlso) else None
    return Decision(*decide_moved(record, command, now, floor, alone))


def is_expired(record: Record, now: int) -> bool:
    """Past its expiry a key is fresh again."""
    return now >= record.expires_at


def is_garbage(record: Record, now: int) -> bool:
    """True if the sweeper may remove it: not live, not replayable, not in its audit window."""
    return now >= record.audit_until


def has_ended(record: Record) -> bool:
    """True if nobody has to finish it: it was decided, or freed before any step. Only a new claim
    changes that, and it raises the fence."""
    if record.state == SUCCEEDED or record.state == FAILED:
        return True
    return record.state == ABSENT and not record.steps


def state_now(record: Record | None, now: int) -> State:
    """The state a claim would find: UNKNOWN for a dead owner's key that nobody has claimed."""
    if record is None or is_expired(record, now):
        return ABSENT
    if record.state == PENDING and now >= record.lease_until and not record.retry_safe:
        return UNKNOWN
    return record.state


def _next(state: State, trigger: Trigger) -> State:
    return TRANSITIONS[state, trigger]  # an unknown pair is a bug here: KeyError, nothing written


# The transitions of every first run, looked up in the table once: the state that a claim leads to,
# and for a finish (the record's state, the command's) the state it leads to.
_CLAIMED: Final = _next(ABSENT, Trigger.CLAIM)
_ENDED: Final = {
    (before, state): TRANSITIONS[before, trigger]
    for state, trigger in FINISH_TRIGGERS.items()
    for before in State
    if (before, trigger) in TRANSITIONS
}


# --- claim: predicates and decisions, paired in CLAIM_RULES -----------------------------------


def _expired(record: Record, claim: Claim, now: int) -> bool:
    return is_expired(record, now)


def _freed(record: Record, claim: Claim, now: int) -> bool:
    # A freed key whose steps reached the outside world stays bound to its request.
    return record.state == ABSENT and (
        not record.steps or not _is_other_request(record, claim, now)
    )


def _start(record: Record | None, claim: Claim, now: int, floor: int = 0) -> Decision:
    attempt, created_at = 1, now
    steps: tuple[Step, ...] = ()
    archive = None
    note = ""
    if record is not None:
        if not is_expired(record, now):
            attempt, created_at, steps = record.attempt + 1, record.created_at, record.steps
            note = notes.ended(record.note)
        if record.state != ABSENT and not is_garbage(record, now):
            archive = record
    fence = next_fence(record, now, floor)
    # Both by position, because this is done for every first run. A slice is a plain tuple, which
    # Python unpacks six times as fast as a named one.
    (
        id, owner, fingerprint, lease, keep, audit, retry_safe,
        scope, label, key, in_transaction, keep_unknown,
    ) = claim[:]  # fmt: skip
    fields = (
        id, _CLAIMED, fingerprint, owner, fence, attempt, retry_safe and not in_transaction,
        created_at, now + lease, 0,  # created_at, lease_until, finished_at
        keep, audit, scope, label, key, steps, b"", note, keep_unknown,  # no body yet
    )  # fmt: skip
    claimed = from_fields(Claimed, (fence, attempt, steps, False))
    return from_fields(Decision, (claimed, from_fields(Record, fields), archive))


def _already_released(record: Record, claim: Claim, now: int) -> bool:
    return record.state == ABSENT and record.owner == claim.owner


def _lost(record: Record, claim: Claim, now: int) -> Decision:
    return _LOST


def _mine(record: Record, claim: Claim, now: int) -> bool:
    return record.state == PENDING and record.owner == claim.owner


def _claim_again(record: Record, claim: Claim, now: int) -> Decision:
    write = record._replace(
        state=_next(record.state, Trigger.CLAIM_AGAIN), lease_until=now + claim.lease
    )
    return Decision(Claimed(record.fence, record.attempt, record.steps), write)


def _is_other_request(record: Record, claim: Claim, now: int) -> bool:
    return record.fingerprint != claim.fingerprint


def _mismatched(record: Record, claim: Claim, now: int) -> Decision:
    return Decision(Mismatched(version_of(record.fingerprint)))


def _finished(record: Record, claim: Claim, now: int) -> bool:
    return record.state == SUCCEEDED or record.state == FAILED


def _replay(record: Record, claim: Claim, now: int) -> Decision:
    left = record.expires_at - now
    return Decision(Replay(record.state, record.body, record.attempt, record.fence, left))


def _unknown(record: Record, claim: Claim, now: int) -> bool:
    return record.state == UNKNOWN


def _unknown_outcome(record: Record, claim: Claim, now: int) -> Decision:
    return Decision(Unknown(record, now))


def _held(record: Record, claim: Claim, now: int) -> bool:
    return now < record.lease_until


def _busy(record: Record, claim: Claim, now: int) -> Decision:
    return Decision(Busy(record.lease_until - now))


def _both_retry_safe(record: Record, claim: Claim, now: int) -> bool:
    return record.retry_safe and claim.retry_safe


def _take_over(record: Record, claim: Claim, now: int) -> Decision:
    fence = next_fence(record, now)
    write = record._replace(
        state=_next(record.state, Trigger.TAKE_OVER),
        owner=claim.owner,
        fence=fence,
        attempt=record.attempt + 1,
        retry_safe=not claim.in_transaction,
        lease_until=now + claim.lease,
        keep=claim.keep,
        audit=claim.audit,
        keep_unknown=claim.keep_unknown,
    )
    return Decision(Claimed(fence, write.attempt, record.steps, taken_over=True), write)


def _otherwise(record: Record, claim: Claim, now: int) -> bool:
    return True


def _give_up(record: Record, claim: Claim, now: int) -> Decision:
    write = record._replace(state=_next(record.state, Trigger.GIVE_UP), finished_at=now)
    return Decision(Unknown(write, now), write)


CLAIM_RULES: Final[tuple[tuple[Callable[..., bool], Callable[..., Decision]], ...]] = (
    (_expired, _start),
    (_already_released, _lost),
    (_freed, _start),
    (_mine, _claim_again),
    (_is_other_request, _mismatched),
    (_finished, _replay),
    (_unknown, _unknown_outcome),
    (_held, _busy),
    (_both_retry_safe, _take_over),
    (_otherwise, _give_up),
)


def next_fence(record: Record | None, now: int, floor: int = 0) -> int:
    """Above every fence this key ever had, also across deletion (I6)."""
    above = (record.fence if record is not None else floor) + 1
    return above if above > now else now


# --- the owner's commands: compare-and-set on (owner, fence, pending) -------------------------


def _owns(record: Record, owner: bytes, fence: int | None) -> bool:
    return record.owner == owner and (fence is None or fence == record.fence)


def _holds(record: Record, owner: bytes, fence: int) -> bool:
    return _owns(record, owner, fence) and record.state == PENDING


def _finish(record: Record | None, command: Finish, now: int) -> Decision:
    _, owner, fence, state, body = command[:]
    if record is None or record.owner != owner or record.fence != fence:
        return _LOST
    before = record.state
    if before != PENDING and (before != UNKNOWN or state == UNKNOWN):
        # The same owner again: its first Finish was applied and the reply was lost (I9). But if
        # others decided meanwhile (given up as unknown, then resolved), their outcome stands.
        same = record.body == body or state == UNKNOWN
        return _DONE if before == state and same else _refuse_late(record, command)
    write = record.ended(_ENDED[before, state], now, body)
    return from_fields(Decision, (DONE, write, None))


def _refuse_late(record: Record, command: Finish) -> Decision:
    """The owner comes back after its key was resolved otherwise. The resolution stands; the owner's
    state is added to the note, for whoever has to find out what happened."""
    if not notes.decision(record.note) or command.state == UNKNOWN:
        return _LOST
    note = notes.with_late_report(record.note, command.state.name.lower())
    return _LOST if note == record.note else Decision(Lost(), record._replace(note=note))


def _renew(record: Record | None, command: Renew, now: int) -> Decision:
    if record is None or not _holds(record, command.owner, command.fence):
        return _LOST
    write = record._replace(
        state=_next(record.state, Trigger.RENEW), lease_until=now + command.lease
    )
    return Decision(Done(), write)


def _release(record: Record | None, command: Release, now: int) -> Decision:
    if record is None or not _owns(record, command.owner, command.fence):
        return _LOST
    given_up = record.state == UNKNOWN and not record.body  # an owner's own finish has a body
    if record.state != PENDING and not given_up:
        return _DONE if record.state == ABSENT else _LOST
    # The freed record stays, with its fence, until it is swept: the next fence must
    # be higher even if the clock steps back, and a repeated release must be recognised.
    write = record._replace(
        state=_next(record.state, Trigger.RELEASE), lease_until=now, finished_at=0
    )
    return Decision(Done(), write)


def _save_step(record: Record | None, command: SaveStep, now: int) -> Decision:
    if record is None or not _holds(record, command.owner, command.fence):
        return _LOST
    if any(step.name == command.name and step.done for step in record.steps):
        return _DONE  # a finished step never changes; this is a repeat
    step = Step(command.name, command.done, command.body, now)
    others = tuple(old for old in record.steps if old.name != command.name)
    write = record._replace(state=_next(record.state, Trigger.SAVE_STEP), steps=(*others, step))
    return Decision(Done(), write)


def _resolve(record: Record | None, command: Resolve, now: int) -> Decision:
    if record is None or record.fence != command.fence:
        return _LOST
    if state_now(record, now) != command.expected:
        decided = (record.state, notes.decision(record.note), record.body)
        return _DONE if decided == (command.state, command.note, command.body) else _LOST
    if command.lease_until not in (0, record.lease_until):
        return _LOST
    state = TRANSITIONS.get((command.expected, RESOLVE_TRIGGERS[command.state]))
    if state is None:
        return _LOST  # e.g. nobody frees a key that has succeeded (I2)
    write = record._replace(
        state=state,
        finished_at=0 if command.state == ABSENT else now,
        lease_until=now,
        body=command.body,
        note=notes.ended(record.note) + command.note,
    )
    return Decision(Done(), write, record if command.expected == FAILED else None)


# --- claims that wait in one process ----------------------------------------------------------


def reply_to_duplicate(claim: Claim, reply: Reply, duplicate: Claim) -> Reply | None:
    """The reply to `duplicate` if the store decided it right after `claim` got `reply`, at the same
    time of its clock. None if that does not follow, and the duplicate must be sent.

    So of the claims of one key that wait in one process only one is sent. The duplicate must hold
    nothing: a claim whose reply was lost may be the very one that holds the key.
    """
    same = claim.fingerprint == duplicate.fingerprint
    if isinstance(reply, Claimed):
        return Busy(claim.lease) if same else Mismatched(version_of(claim.fingerprint))
    if isinstance(reply, (Replay, Unknown)):  # the record has the fingerprint of `claim`
        return reply if same else Mismatched(version_of(claim.fingerprint))
    if isinstance(reply, (Busy, Mismatched)):
        # A caller's transaction may hold a key whose fingerprint nobody outside has seen.
        return reply if same else None
    return None
