"""The life of one attempt, as generators that yield effects.

`attempt()` takes one caller from its claim to its outcome:

1.  It claims the key. The reply decides whether the body runs.
2.  It stores the arguments of the operation, if they are to be stored.
3.  It has the body run while the claim is young enough, and renews the claim first if it is not.
    A heartbeat keeps the claim alive meanwhile (heartbeat_flow.py); the body's steps are in
    step_flow.py.
4.  It stores the outcome before the caller sees it, and tries again while the store is away.
5.  If the claim was lost, it returns the outcome of whoever decided the key instead.

`close()` is what follows the body, by itself, for an attempt whose driver was interrupted. How an
unknown key is decided is in recovery.py.

A driver performs each effect (see effects.py) and sends its result back. Failures come back as
values too: nothing is thrown into a generator, so an abandoned generator is exactly a crash, and
the lease recovers it. Nothing waits between two yields, so no cancellation can tear a decision.

Pure, and never calls user code: clock readings arrive in the results, in microseconds of the
caller's own monotonic clock. Must not know threads, asyncio or any store.
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
    grace_left,
    may_still_finish,
    release_unstarted,
    too_slow,
)
from oncekey.core.record import State
from oncekey.core.recovery import recover
from oncekey.core.step_flow import RETRY_FIRST_US, RETRY_MAX_US, save
from oncekey.core.step_format import ARGUMENTS

CLAIM_TRIES: Final = 3
POLL_FIRST_US: Final = 25_000
POLL_GROWTH_PERCENT: Final = 160
POLL_MAX_US: Final = 250_000

Flow = Generator[Effect, object, AttemptOutcome]


def attempt(task: Task) -> Flow:
    """One caller's attempt, from its claim to its outcome. The reply to the claim decides:

    1.  Claimed: run the body. Claim again if the claim was lost before the body could start.
    2.  Replay: the stored outcome.
    3.  Busy: wait and claim again, until the policy's `wait` is over.
    4.  Mismatched: the key belongs to another request.
    5.  Unknown: claim again if `recover` has decided the key, see `_decide_unknown`.
    6.  StoreUnavailable: nothing has run.
    7.  Lost: this very claim was released before, and its copy came late.
    """
    first_sent = None
    pause = POLL_FIRST_US
    may_recover = task.recoverable
    late = 0
    while True:
        result, deferred = yield from _claim(task)
        if first_sent is None:
            first_sent = result.sent_at
        reply = result.reply
        if isinstance(reply, Claimed):
            ended = yield from _run(task, reply, result.sent_at)
            if isinstance(ended, AttemptOutcome):
                return ended
            late += 1
            if late == LATE_TRIES:
                return too_slow()
            task = task._replace(owner=ended.owner)
        elif isinstance(reply, Replay):
            return _replayed(reply)
        elif isinstance(reply, Busy):
            left = first_sent + task.times.wait - result.at
            if left <= 0:
                waited = task.times.wait > 0
                kind = EventKind.WAIT_TIMEOUT if waited else EventKind.IN_FLIGHT
                return AttemptOutcome(kind, retry_after=reply.remaining)
            yield Sleep(min(pause, left), watch=task.id, most=left)
            pause = min(pause * POLL_GROWTH_PERCENT // 100, POLL_MAX_US)
        elif isinstance(reply, Mismatched):
            return AttemptOutcome(EventKind.MISMATCH, version=reply.version)
        elif isinstance(reply, Unknown):
            left = first_sent + task.times.wait - result.at
            decided = yield from _decide_unknown(task, reply, may_recover, left)
            if isinstance(decided, AttemptOutcome):
                return decided
            may_recover = decided is State.UNKNOWN
        elif isinstance(reply, StoreUnavailable):
            return AttemptOutcome(EventKind.UNAVAILABLE, error=reply, deferred=deferred)
        else:
            return AttemptOutcome(EventKind.LOST)


def _claim(task: Task) -> Generator[Effect, object, tuple[CommandResult, Release | None]]:
    """Claim the key, and claim again with the same owner if the reply may have been lost (I9).

    If the store stays unavailable and the claim may have been applied, the second value is the
    release that is to be sent once the store is back.
    """
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
    may_be_applied = False
    tries = CLAIM_TRIES
    while True:
        result = yield ApplyCommand(claim, may_be_applied)
        assert isinstance(result, CommandResult)
        if not isinstance(result.reply, StoreUnavailable):
            return result, None
        may_be_applied = may_be_applied or (result.reply.ambiguous and not result.shared)
        tries -= 1
        if tries == 0 or not result.reply.ambiguous:
            break
        yield Sleep(pause)
        pause = min(pause * 2, RETRY_MAX_US)
    if may_be_applied:
        # The claim may be there although its reply is not, and its body will not run.
        deferred = yield from release_unstarted(task.id, task.owner, None)
        return result, deferred
    return result, None


def _decide_unknown(
    task: Task, reply: Unknown, may_recover: bool, wait_left: int
) -> Generator[Effect, object, AttemptOutcome | State]:
    """What to do about a key whose owner died: the caller's outcome, or the state `recover` has
    given the key, after which it is claimed again.

    1.  The owner is this very attempt, whose reply was lost for longer than its lease: nothing
        ran, so the claim is released.
    2.  There is no `recover`, or it cannot tell: the outcome is unknown.
    3.  `recover` says that nothing happened while the dead owner may still act: wait until its
        grace is over if the caller waits that long, and claim again.
    4.  `recover` has decided.
    """
    record = reply.record
    if record.owner == task.owner:
        deferred = yield from release_unstarted(task.id, task.owner, record.fence)
        return too_slow(deferred)
    grace = grace_left(record, reply.now, task.times.recover_grace)
    decided = None
    if may_recover:
        decided = yield from recover(record, grace_over=grace == 0)
    if decided is None:
        return AttemptOutcome(EventKind.UNKNOWN, fence=record.fence)
    if decided is State.UNKNOWN:
        if wait_left < grace:
            return AttemptOutcome(EventKind.IN_FLIGHT, retry_after=grace)
        yield Sleep(grace, watch=task.id, most=grace)
    return decided


def _run(
    task: Task, claimed: Claimed, sent_at: int
) -> Generator[Effect, object, AttemptOutcome | StartedTooLate]:
    """Run the body under the grant and store its outcome. Returns StartedTooLate if the claim was
    lost before the body could start."""
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
        refused = yield from _store_arguments(task, grant)
        if refused is not None:
            return refused
    for _ in range(LATE_TRIES):
        ended = yield RunBody(grant)
        if not isinstance(ended, StartedTooLate):
            return (yield from close(task, grant, ended))
        renewed = yield ApplyCommand(Renew(grant.id, grant.owner, grant.fence, grant.lease))
        assert isinstance(renewed, CommandResult)
        if isinstance(renewed.reply, Lost):
            # Taken over, or given up as unknown: then only we know that nothing happened.
            deferred = yield from release_unstarted(grant.id, grant.owner, grant.fence)
            return ended if deferred is None else too_slow(deferred)
        if isinstance(renewed.reply, StoreUnavailable):
            break
        grant = grant._replace(deadline=renewed.sent_at + grant.lease)
    deferred = yield from release_unstarted(grant.id, grant.owner, grant.fence)
    return too_slow(deferred)


def _store_arguments(task: Task, grant: Grant) -> Generator[Effect, object, AttemptOutcome | None]:
    """Store the arguments before the body starts: a completer that finds the key abandoned can
    then run it, and one that finds no arguments knows that nothing has happened. Returns None once
    they are stored."""
    command = SaveStep(task.id, task.owner, grant.fence, ARGUMENTS, True, task.arguments)
    refused = yield from save(command, grant.deadline)
    if refused is None:
        return None
    release = Release(task.id, task.owner, grant.fence)
    released = yield ApplyCommand(release)
    assert isinstance(released, CommandResult)
    if refused.lost and isinstance(released.reply, Lost):  # taken over
        return (yield from _winners_outcome(task, AttemptOutcome(EventKind.LOST)))
    deferred = release if isinstance(released.reply, StoreUnavailable) else None
    if refused.lost:  # given up as unknown, and only we know that nothing happened
        return too_slow(deferred)
    return AttemptOutcome(EventKind.UNAVAILABLE, error=refused.error, deferred=deferred)


def close(task: Task, grant: Grant, ended: object) -> Flow:
    """Store how the body ended: the end of `attempt`, and by itself for an attempt whose driver
    was interrupted."""
    if isinstance(ended, Returned):
        outcome = AttemptOutcome(
            EventKind.FINISHED,
            ended.body,
            State.SUCCEEDED,
            grant.attempt,
            grant.fence,
            task.times.keep,
            raw=ended.raw,
            kept=ended.kept,
        )
        finish = Finish(grant.id, grant.owner, grant.fence, State.SUCCEEDED, ended.body)
        return (yield from _store_outcome(task, finish, ended.deadline, outcome))
    if isinstance(ended, Raised):
        closing = closing_command(task, grant, ended.error)
        kind = EventKind.RELEASED if isinstance(closing, Release) else EventKind.FINISHED
        outcome = AttemptOutcome(
            kind,
            state=State.FAILED,
            attempt=grant.attempt,
            fence=grant.fence,
            error=ended.error,
        )
        return (yield from _store_outcome(task, closing, ended.deadline, outcome))
    assert isinstance(ended, Overtaken)
    return (yield from _winners_outcome(task, AttemptOutcome(EventKind.LOST, error=ended.error)))


def closing_command(task: Task, grant: Grant, error: BaseException) -> Finish | Release:
    """What becomes of the key of a body that raised:

    1.  Terminal: it has failed for good.
    2.  NotStarted, or any error of a retry-safe operation: the key is released.
    3.  Any other Exception: it has failed for good.
    4.  An interruption from outside, or our own LeaseLost: the body decided nothing, so nobody can
        tell what happened.
    """
    if isinstance(error, Terminal):
        state = State.FAILED
    elif isinstance(error, NotStarted) or task.times.retry_safe:
        return Release(grant.id, grant.owner, grant.fence)
    elif isinstance(error, Exception) and not isinstance(error, LeaseLost):
        state = State.FAILED
    else:
        state = State.UNKNOWN
    return Finish(grant.id, grant.owner, grant.fence, state, pack_error(error))


def _store_outcome(
    task: Task, command: Finish | Release, deadline: int, outcome: AttemptOutcome
) -> Flow:
    """Make the outcome durable before the caller sees it (I13).

    While the store is unavailable the command is sent again until `store_timeout` is over; after
    that it is a deferred write. A release has no effect once the lease is over, so it is sent
    until then only; a finish is accepted as long as nobody else has decided the key.
    """
    is_known = isinstance(command, Finish) and command.state != State.UNKNOWN
    pause = RETRY_FIRST_US
    until = None
    while True:
        result = yield ApplyCommand(command)
        assert isinstance(result, CommandResult)
        if isinstance(result.reply, Done):
            return outcome
        if isinstance(result.reply, Lost):
            own = outcome._replace(unrecorded=is_known, deferred=command if is_known else None)
            return (yield from _winners_outcome(task, own))
        assert isinstance(result.reply, StoreUnavailable)
        if until is None:
            until = result.sent_at + task.times.store_timeout
            if isinstance(command, Release) or task.in_transaction:
                until = min(deadline, until)
        if result.at >= until or result.reply.final:
            # The body's own error says more than the store's.
            error = outcome.error or result.reply
            return AttemptOutcome(
                EventKind.UNAVAILABLE,
                outcome.body,
                raw=outcome.raw,
                error=error,
                deferred=command,
                unrecorded=is_known,
            )
        yield Sleep(min(pause, until - result.at))
        pause = min(pause * 2, RETRY_MAX_US)


def _winners_outcome(task: Task, own: AttemptOutcome) -> Flow:
    """The outcome for a caller whose attempt does not hold the key any more. `own` is what its
    attempt came to, which the store has refused.

    1.  Its body was interrupted (Ctrl-C, a cancellation): the interruption, whoever won.
    2.  The key has ended for the same request: the stored outcome.
    3.  The key is unknown, and so is how this attempt ended: unknown.
    4.  Otherwise its own outcome, as lost. If the record is still this owner's and undecided, a
        transaction of another caller stood in the way and may yet roll back: then the finish is
        deferred, to be sent again.
    """
    unrecorded, deferred = own.unrecorded, None
    if own.error is not None and not isinstance(own.error, Exception):
        return AttemptOutcome(EventKind.LOST, error=own.error, unrecorded=unrecorded)
    result = yield ApplyCommand(Look(task.id))
    assert isinstance(result, CommandResult)
    seen = result.reply
    if isinstance(seen, Seen) and seen.record is not None:
        record = seen.record
        same = record.fingerprint == task.fingerprint and seen.now < record.expires_at
        if same and record.state in (State.SUCCEEDED, State.FAILED):
            left = record.expires_at - seen.now
            won = Replay(record.state, record.body, record.attempt, record.fence, left)
            return _replayed(won)._replace(unrecorded=unrecorded)
        if same and record.state == State.UNKNOWN and not unrecorded:
            return AttemptOutcome(EventKind.UNKNOWN, fence=record.fence)
        if may_still_finish(record, own.deferred):
            deferred = own.deferred
    return AttemptOutcome(
        EventKind.LOST, own.body, raw=own.raw, unrecorded=unrecorded, deferred=deferred
    )


def _replayed(reply: Replay) -> AttemptOutcome:
    return AttemptOutcome(
        EventKind.REPLAYED, reply.body, reply.state, reply.attempt, reply.fence, reply.expires_in
    )
