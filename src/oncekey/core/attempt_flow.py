"""The life of one attempt, as generators that ask for what they want.

`attempt()` claims a key, has the body run, and closes the key; `recover()` decides an unknown key.
What goes on beside the body is in heartbeat_flow.py, a step of a body in step_flow.py.
They yield effects (see effects.py) and are sent their results. Failures come back as values too:
nothing is thrown into a generator, so an abandoned one is exactly a crash, and the lease recovers
it.

Between two yields nothing waits, so no cancellation can tear a decision. Never calls user code.
Pure: the clock readings it needs arrive in the answers, in microseconds of the caller's own
monotonic clock. Must not know threads, asyncio or any store.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from oncekey.core.codec import pack_error
from oncekey.core.commands import (
    Busy,
    Claim,
    Claimed,
    Done,
    Finish,
    Look,
    Lost,
    Mismatched,
    Release,
    Renew,
    Replay,
    Resolve,
    SaveStep,
    Seen,
    Unknown,
)
from oncekey.core.effects import (
    ApplyCommand,
    AttemptOutcome,
    CommandResult,
    Effect,
    Grant,
    Overtaken,
    Raised,
    Recover,
    Recovered,
    Returned,
    RunBody,
    Sleep,
    StartedTooLate,
    Task,
)
from oncekey.core.errors import LeaseLost, NotStarted, StoreUnavailable, Terminal
from oncekey.core.events import EventKind
from oncekey.core.late_owner import (
    LATE_TRIES,
    give_back,
    grace_left,
    is_undecided_of,
    too_slow,
)
from oncekey.core.record import Record, State
from oncekey.core.step_flow import RETRY_FIRST_US, RETRY_MAX_US, save
from oncekey.core.step_format import ARGUMENTS

CLAIM_TRIES: Final = 3
POLL_FIRST_US: Final = 25_000
POLL_GROWTH_PERCENT: Final = 160
POLL_MAX_US: Final = 250_000

Flow = Generator[Effect, object, AttemptOutcome]


def attempt(task: Task) -> Flow:
    """One caller's attempt, from claim to verdict."""
    first_sent = None
    pause = POLL_FIRST_US
    may_recover = task.recoverable
    late = 0
    while True:
        answer, deferred = yield from _claim(task)
        if first_sent is None:
            first_sent = answer.sent_at
        reply = answer.reply
        if isinstance(reply, Claimed):
            ended = yield from _run(task, reply, answer.sent_at)
            if isinstance(ended, AttemptOutcome):
                return ended
            # The claim was gone before the body could begin: whoever has the key now decides.
            late += 1
            if late == LATE_TRIES:
                return too_slow()
            task = task._replace(owner=ended.owner)
            continue
        if isinstance(reply, Replay):
            return _replayed(reply)
        if isinstance(reply, Busy):
            left = first_sent + task.times.wait - answer.at
            if left <= 0:
                waited = task.times.wait > 0
                kind = EventKind.WAIT_TIMEOUT if waited else EventKind.IN_FLIGHT
                return AttemptOutcome(kind, retry_after=reply.remaining)
            yield Sleep(min(pause, left), watch=task.id, most=left)
            pause = min(pause * POLL_GROWTH_PERCENT // 100, POLL_MAX_US)
        elif isinstance(reply, Mismatched):
            return AttemptOutcome(EventKind.MISMATCH, version=reply.version)
        elif isinstance(reply, Unknown):
            if reply.record.owner == task.owner:
                # Our own claim, whose reply was lost for longer than its lease: nothing ran.
                fence = reply.record.fence
                deferred = yield from give_back(task.id, task.owner, fence)
                return too_slow(deferred)
            decided = None
            unsettled = grace_left(reply.record, reply.now, task.times.recover_grace)
            if may_recover:
                decided = yield from recover(reply.record, settled=unsettled == 0)
            if decided is State.UNKNOWN:
                left = first_sent + task.times.wait - answer.at
                if left < unsettled:
                    return AttemptOutcome(EventKind.IN_FLIGHT, retry_after=unsettled)
                yield Sleep(unsettled, watch=task.id, most=unsettled)
                continue
            may_recover = False
            if decided is None:
                return AttemptOutcome(EventKind.UNKNOWN, fence=reply.record.fence)
        elif isinstance(reply, StoreUnavailable):
            return AttemptOutcome(EventKind.UNAVAILABLE, error=reply, deferred=deferred)
        else:
            return AttemptOutcome(EventKind.LOST)


def _claim(task: Task) -> Generator[Effect, object, tuple[CommandResult, Release | None]]:
    """Claim, and claim again with the same owner where the reply may have been lost (I9). Where the
    store gave no answer and the claim may be there, also what takes it back once it does."""
    claim = Claim(
        task.id,
        task.owner,
        task.fingerprint,
        task.times.lease,
        task.times.keep,
        task.times.audit,
        task.times.retry_safe,
        task.scope,
        task.operation,
        task.key,
        task.in_transaction,
        task.times.keep_unknown,
    )
    pause = RETRY_FIRST_US
    perhaps_held = False
    tries = CLAIM_TRIES
    while True:
        answer = yield ApplyCommand(claim, perhaps_held)
        assert isinstance(answer, CommandResult)
        if not isinstance(answer.reply, StoreUnavailable):
            return answer, None
        perhaps_held = perhaps_held or (answer.reply.ambiguous and not answer.shared)
        tries -= 1
        if tries == 0 or not answer.reply.ambiguous:
            break
        yield Sleep(pause)
        pause = min(pause * 2, RETRY_MAX_US)
    if perhaps_held:
        # Perhaps the claim is there and only its reply is not. The body will not run.
        deferred = yield from give_back(task.id, task.owner, None)
        return answer, deferred
    return answer, None


def _run(
    task: Task, claimed: Claimed, sent_at: int
) -> Generator[Effect, object, AttemptOutcome | StartedTooLate]:
    """Run the body under the grant and close the key by what came of it. Late where the claim was
    lost before the body could begin."""
    # The store's lease began after the claim was sent, so counting from the sending makes the
    # owner stop first (I5).
    grant = Grant(
        task.id,
        task.owner,
        claimed.fence,
        claimed.attempt,
        task.times.lease,
        sent_at + task.times.lease,
        claimed.steps,
        claimed.taken_over,
        task.times.retry_safe,
    )
    if task.arguments and not any(step.name == ARGUMENTS for step in claimed.steps):
        refused = yield from _keep_arguments(task, grant)
        if refused is not None:
            return refused
    for _ in range(LATE_TRIES):
        result = yield RunBody(grant)
        if not isinstance(result, StartedTooLate):
            return (yield from close(task, grant, result))
        answer = yield ApplyCommand(Renew(grant.id, grant.owner, grant.fence, grant.lease))
        assert isinstance(answer, CommandResult)
        if isinstance(answer.reply, Lost):
            # Taken over, or given up as unknown: then we are the witness that nothing happened.
            deferred = yield from give_back(grant.id, grant.owner, grant.fence)
            return result if deferred is None else too_slow(deferred)
        if isinstance(answer.reply, StoreUnavailable):
            break
        grant = grant._replace(deadline=answer.sent_at + grant.lease)
    deferred = yield from give_back(grant.id, grant.owner, grant.fence)
    return too_slow(deferred)


def close(task: Task, grant: Grant, result: object) -> Flow:
    """Close the key by what came of the body: the end of `attempt`, and by itself where whoever
    drove that was interrupted."""
    if isinstance(result, Returned):
        done = AttemptOutcome(
            EventKind.FINISHED,
            result.body,
            State.SUCCEEDED,
            grant.attempt,
            grant.fence,
            task.times.keep,
            raw=result.raw,
            kept=result.kept,
        )
        finish = Finish(grant.id, grant.owner, grant.fence, State.SUCCEEDED, result.body)
        return (yield from _close(task, finish, result.deadline, done))
    if isinstance(result, Raised):
        closing = closing_command(task, grant, result.error)
        kind = EventKind.RELEASED if isinstance(closing, Release) else EventKind.FINISHED
        failed = AttemptOutcome(
            kind,
            state=State.FAILED,
            attempt=grant.attempt,
            fence=grant.fence,
            error=result.error,
        )
        return (yield from _close(task, closing, result.deadline, failed))
    assert isinstance(result, Overtaken)
    return (yield from _lost(task, AttemptOutcome(EventKind.LOST, error=result.error)))


def _keep_arguments(task: Task, grant: Grant) -> Generator[Effect, object, AttemptOutcome | None]:
    """Before the body begins: who finds this key abandoned can then run it to its end, and who
    finds it without them knows that nothing has happened. None where they are kept."""
    command = SaveStep(task.id, task.owner, grant.fence, ARGUMENTS, True, task.arguments)
    refused = yield from save(command, grant.deadline)
    if refused is None:
        return None
    release = Release(task.id, task.owner, grant.fence)
    answer = yield ApplyCommand(release)
    assert isinstance(answer, CommandResult)
    if refused.lost and isinstance(answer.reply, Lost):
        return (yield from _lost(task, AttemptOutcome(EventKind.LOST)))  # taken over
    deferred = release if isinstance(answer.reply, StoreUnavailable) else None
    if refused.lost:  # given up as unknown, and we are the witness that nothing happened
        return too_slow(deferred)
    return AttemptOutcome(EventKind.UNAVAILABLE, error=refused.error, deferred=deferred)


def closing_command(task: Task, grant: Grant, error: BaseException) -> Finish | Release:
    """What a raising body leaves behind: `retry_safe`, NotStarted and Terminal decide."""
    if isinstance(error, Terminal):
        state = State.FAILED
    elif isinstance(error, NotStarted) or task.times.retry_safe:
        return Release(grant.id, grant.owner, grant.fence)
    elif isinstance(error, Exception) and not isinstance(error, LeaseLost):
        state = State.FAILED
    else:
        # Cancelled or interrupted from outside, or by our own word that it was late: the body
        # decided nothing, nobody can tell.
        state = State.UNKNOWN
    return Finish(grant.id, grant.owner, grant.fence, state, pack_error(error))


def _close(task: Task, command: Finish | Release, deadline: int, verdict: AttemptOutcome) -> Flow:
    """Make the outcome durable before the caller sees it (I13); repeat until the caller has waited
    for as long as its terms say. Then it is left to be offered again. A release is of no use once
    the lease is over; a finish is taken whenever nobody else has decided the key."""
    known = isinstance(command, Finish) and command.state != State.UNKNOWN
    pause = RETRY_FIRST_US
    until = None
    while True:
        answer = yield ApplyCommand(command)
        assert isinstance(answer, CommandResult)
        if isinstance(answer.reply, Done):
            return verdict
        if isinstance(answer.reply, Lost):
            refused = verdict._replace(unrecorded=known, deferred=command if known else None)
            return (yield from _lost(task, refused))
        assert isinstance(answer.reply, StoreUnavailable)
        if until is None:
            until = answer.sent_at + task.times.store_timeout
            if isinstance(command, Release) or task.in_transaction:
                until = min(deadline, until)
        if answer.at >= until or answer.reply.final:
            # The body's own error says more than ours; its answer goes along, unrecorded.
            error = verdict.error or answer.reply
            return AttemptOutcome(
                EventKind.UNAVAILABLE,
                verdict.body,
                raw=verdict.raw,
                error=error,
                deferred=command,
                unrecorded=known,
            )
        yield Sleep(min(pause, until - answer.at))
        pause = min(pause * 2, RETRY_MAX_US)


def _lost(task: Task, own: AttemptOutcome) -> Flow:
    """Overtaken: our outcome was refused, so give the caller the winner's, if there is one; else
    its own goes along, unrecorded; and is offered on where the key is still its own after all (a
    transaction that decides it stood in the way, and may yet roll back).

    An interruption (Ctrl-C, a cancellation) goes to the caller whoever won.
    """
    unrecorded, deferred = own.unrecorded, None
    if own.error is not None and not isinstance(own.error, Exception):
        return AttemptOutcome(EventKind.LOST, error=own.error, unrecorded=unrecorded)
    answer = yield ApplyCommand(Look(task.id))
    assert isinstance(answer, CommandResult)
    seen = answer.reply
    if isinstance(seen, Seen) and seen.record is not None:
        record = seen.record
        same = record.fingerprint == task.fingerprint and seen.now < record.expires_at
        if same and record.state in (State.SUCCEEDED, State.FAILED):
            left = record.expires_at - seen.now
            won = Replay(record.state, record.body, record.attempt, record.fence, left)
            return _replayed(won)._replace(unrecorded=unrecorded)
        if same and record.state == State.UNKNOWN and not unrecorded:
            return AttemptOutcome(EventKind.UNKNOWN, fence=record.fence)
        if is_undecided_of(record, own.deferred):
            deferred = own.deferred
    return AttemptOutcome(
        EventKind.LOST, own.body, raw=own.raw, unrecorded=unrecorded, deferred=deferred
    )


def _replayed(reply: Replay) -> AttemptOutcome:
    return AttemptOutcome(
        EventKind.REPLAYED, reply.body, reply.state, reply.attempt, reply.fence, reply.expires_in
    )


def recover(record: Record, *, settled: bool = True) -> Generator[Effect, object, State | None]:
    """Ask what became of an unknown key, and decide it: the state it was given. None where nobody
    can tell yet, or the store did not take it; PENDING where another one decided first, so that
    claiming tells; UNKNOWN where the answer is not believed yet: what has happened stays so, what
    has not may happen until it is `settled`."""
    found = yield Recover(record)
    if found is None:
        return None
    assert isinstance(found, Recovered)
    if found.state != State.SUCCEEDED and not settled:
        return State.UNKNOWN
    command = Resolve(record.id, record.fence, found.state, found.body, found.note)
    for _ in range(CLAIM_TRIES):
        answer = yield ApplyCommand(command)
        assert isinstance(answer, CommandResult)
        if isinstance(answer.reply, Lost):
            return State.PENDING
        if not isinstance(answer.reply, StoreUnavailable):
            return found.state
        yield Sleep(RETRY_FIRST_US)
    return None
