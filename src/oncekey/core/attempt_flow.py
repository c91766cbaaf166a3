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

The usual way has no generator: `granted`, `finish_of` and `finished` are what the flow yields and
returns for a claim, a body and a finish that went well. A driver may call them itself. Whatever
else happens, it gives a new flow the results it has, and performs what that yields next.

A driver performs each effect (see effects.py) and sends its result back. Failures come back as
values too: nothing is thrown into a generator, so an abandoned generator is exactly a crash, and
the lease recovers it. Nothing waits between two yields, so no cancellation can tear a decision.

Pure, and never calls user code: clock readings arrive in the results, in microseconds of the
caller's own monotonic clock. Must not know threads, asyncio or any store.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, Final

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
    Reply,
    SaveStep,
    Seen,
    Unknown,
    from_fields,
)
from oncekey.core.effects import (
    AttemptOutcome,
    CommandResult,
    Effect,
    Grant,
    Overtaken,
    Raised,
    RepeatClaim,
    Returned,
    Sleep,
    StartedTooLate,
)
from oncekey.core.errors import LeaseLost, NotStarted, StoreUnavailable, Terminal
from oncekey.core.events import EventKind
from oncekey.core.late_owner import (
    LATE_TRIES,
    cut_off,
    may_still_finish,
    release_unstarted,
    released_before,
    too_slow,
)
from oncekey.core.policy import PolicyTimes
from oncekey.core.record import State
from oncekey.core.recovery import decide_unknown
from oncekey.core.step_flow import RETRY_FIRST_US, RETRY_MAX_US, save
from oncekey.core.step_format import ARGUMENTS

CLAIM_TRIES: Final = 3
POLL_FIRST_US: Final = 25_000
POLL_GROWTH_PERCENT: Final = 160
POLL_MAX_US: Final = 250_000

# Looked up once: an enum's member costs as much as a call, and these are read on every run.
_FINISHED, _REPLAYED, _SUCCEEDED = EventKind.FINISHED, EventKind.REPLAYED, State.SUCCEEDED

# What is sent in belongs to the effect: a CommandResult, what became of a body, a clock reading.
Flow = Generator[Effect, Any, AttemptOutcome]


# --- the usual way: claimed, returned, finished ------------------------------------------------


def granted(claim: Claim, claimed: Claimed, sent_at: int) -> Grant:
    """What follows from the reply that the key is claimed: the body may run."""
    fence, attempt, steps, taken_over = claimed[:]
    # The store's lease began after the claim was sent, so counting from the sending makes the owner
    # stop first (I5).
    return Grant(claim, fence, attempt, sent_at + claim.lease, steps, taken_over)


def finish_of(grant: Grant, returned: Returned) -> Finish:
    """The command that stores what the body returned."""
    id, owner = grant.claim[:2]
    return from_fields(Finish, (id, owner, grant.fence, _SUCCEEDED, returned.body))


def finished(grant: Grant, times: PolicyTimes, returned: Returned) -> AttemptOutcome:
    """The outcome of an attempt whose finish the store has taken."""
    attempt, fence, body = grant.attempt, grant.fence, returned.body
    return AttemptOutcome(_FINISHED, body, _SUCCEEDED, attempt, fence, times.keep, returned)


# --- the flow ------------------------------------------------------------------------------------


def attempt(
    claim: Claim, times: PolicyTimes, recoverable: bool = False, arguments: bytes = b""
) -> Flow:
    """One caller's attempt, from its claim to its outcome. `recoverable`: there is a `recover`.
    `arguments` are stored before the body starts, if there are any. The reply to the claim decides:

    1.  Claimed: run the body. Claim again if the claim was lost before the body could start.
    2.  Replay: the stored outcome.
    3.  Busy: wait and claim again, until the policy's `wait` is over. In a caller's transaction
        there is no waiting: the other attempt could not end while this one holds the lock.
    4.  Mismatched: the key belongs to another request.
    5.  Unknown: claim again if `recover` has decided the key, see `decide_unknown`.
    6.  StoreUnavailable: nothing has run.
    7.  Lost: this very claim was released before, and its copy came late.
    """
    first_sent = None
    pause = POLL_FIRST_US
    wait = 0 if claim.in_transaction else times.wait
    late = 0
    while True:
        result: CommandResult = yield claim
        deferred = None
        if isinstance(result.reply, StoreUnavailable):
            result, deferred = yield from _claim_again(claim, result)
        if first_sent is None:
            first_sent = result.sent_at
        reply = result.reply
        if isinstance(reply, Claimed):
            grant = granted(claim, reply, result.sent_at)
            if arguments and not any(step.name == ARGUMENTS for step in reply.steps):
                refused = yield from _store_arguments(grant, arguments)
                if refused is not None:
                    return refused
            ended = yield grant
            if isinstance(ended, StartedTooLate):
                late += 1
                grant, ended = yield from _renew_and_start(grant, ended, late)
                if isinstance(ended, AttemptOutcome):
                    return ended
                if isinstance(ended, StartedTooLate):
                    claim = claim._replace(owner=ended.owner)
                    continue
            return (yield from close(grant, times, ended))
        left = first_sent + wait - result.at
        if isinstance(reply, Busy) and left > 0:
            yield Sleep(min(pause, left), watch=claim.id, most=left)
            pause = min(pause * POLL_GROWTH_PERCENT // 100, POLL_MAX_US)
        elif isinstance(reply, Unknown):
            grace = times.recover_grace
            decided = yield from decide_unknown(claim, reply, recoverable, grace, left)
            if isinstance(decided, AttemptOutcome):
                return decided
            recoverable = decided is State.UNKNOWN
        else:
            return _without_a_body(reply, wait, deferred)


def _without_a_body(
    reply: Reply | StoreUnavailable, wait: int, deferred: Release | None
) -> AttemptOutcome:
    """The outcome of an attempt that ends with the reply to its claim."""
    if isinstance(reply, Replay):
        return _replayed(reply)
    if isinstance(reply, Busy):
        kind = EventKind.WAIT_TIMEOUT if wait > 0 else EventKind.IN_FLIGHT
        return AttemptOutcome(kind, retry_after=reply.remaining)
    if isinstance(reply, Mismatched):
        return AttemptOutcome(EventKind.MISMATCH, version=reply.version)
    if isinstance(reply, StoreUnavailable):
        return AttemptOutcome(EventKind.UNAVAILABLE, error=reply, deferred=deferred)
    return released_before()


def _claim_again(
    claim: Claim, result: CommandResult
) -> Generator[Effect, Any, tuple[CommandResult, Release | None]]:
    """Claim again with the same owner while the reply may have been lost (I9). `result` is that of
    the first try, for which the store was unavailable.

    If the store stays unavailable and the claim may have been applied, the second value is the
    release that is to be sent once the store is back.
    """
    pause = RETRY_FIRST_US
    may_be_applied = False
    tries = CLAIM_TRIES
    while True:
        reply = result.reply
        if not isinstance(reply, StoreUnavailable):
            return result, None
        may_be_applied = may_be_applied or (reply.ambiguous and not result.shared)
        tries -= 1
        if tries == 0 or not reply.ambiguous:
            break
        yield Sleep(pause)
        pause = min(pause * 2, RETRY_MAX_US)
        result = yield (RepeatClaim(claim) if may_be_applied else claim)
    if may_be_applied:
        # The claim may be there although its reply is not, and its body will not run.
        deferred = yield from release_unstarted(claim.id, claim.owner, None)
        return result, deferred
    return result, None


def _renew_and_start(
    grant: Grant, ended: StartedTooLate, late: int
) -> Generator[Effect, Any, tuple[Grant, object]]:
    """The body could not start: too little of its lease was left. Renew the lease and try again.
    `late` counts the claims to which this happened.

    Returns the renewed grant with what became of the body; with StartedTooLate if the claim was
    lost before, so that it must be claimed again; or with the outcome, if the attempt gives up.
    """
    for _ in range(LATE_TRIES - 1):
        renewed: CommandResult = yield Renew(grant.id, grant.owner, grant.fence, grant.lease)
        if isinstance(renewed.reply, Lost):
            # Taken over, or given up as unknown: then only we know that nothing happened.
            deferred = yield from release_unstarted(grant.id, grant.owner, grant.fence)
            gives_up = deferred is not None or late == LATE_TRIES
            return grant, too_slow(deferred) if gives_up else ended
        if isinstance(renewed.reply, StoreUnavailable):
            break
        grant = replace(grant, deadline=renewed.sent_at + grant.lease)
        outcome = yield grant
        if not isinstance(outcome, StartedTooLate):
            return grant, outcome
        ended = outcome
    deferred = yield from release_unstarted(grant.id, grant.owner, grant.fence)
    return grant, too_slow(deferred)


def _store_arguments(
    grant: Grant, arguments: bytes
) -> Generator[Effect, Any, AttemptOutcome | None]:
    """Store the arguments before the body starts: a completer that finds the key abandoned can
    then run it, and one that finds no arguments knows that nothing has happened. Returns None once
    they are stored."""
    command = SaveStep(grant.id, grant.owner, grant.fence, ARGUMENTS, True, arguments)
    refused = yield from save(command, grant.deadline)
    if refused is None:
        return None
    release = Release(grant.id, grant.owner, grant.fence)
    released: CommandResult = yield release
    if refused.lost and isinstance(released.reply, Lost):  # taken over
        return (yield from _winners_outcome(grant.claim, AttemptOutcome(EventKind.LOST)))
    deferred = release if isinstance(released.reply, StoreUnavailable) else None
    if refused.lost:  # given up as unknown, and only we know that nothing happened
        return too_slow(deferred)
    return AttemptOutcome(EventKind.UNAVAILABLE, error=refused.error, deferred=deferred)


def close(grant: Grant, times: PolicyTimes, ended: object) -> Flow:
    """Store how the body ended, before the caller sees it (I13): the end of `attempt`, and by
    itself for an attempt whose driver was interrupted."""
    command: Finish | Release
    if isinstance(ended, Returned):
        command = finish_of(grant, ended)
        outcome = finished(grant, times, ended)
    elif isinstance(ended, Raised):
        command = closing_command(grant, times, ended.error)
        outcome = AttemptOutcome(
            EventKind.RELEASED if isinstance(command, Release) else EventKind.FINISHED,
            state=State.FAILED if isinstance(command, Release) else command.state,
            attempt=grant.attempt,
            fence=grant.fence,
            error=ended.error,
        )
    else:
        assert isinstance(ended, Overtaken)
        lost = AttemptOutcome(EventKind.LOST, error=ended.error)
        return (yield from _winners_outcome(grant.claim, lost, stopped=grant))
    result: CommandResult = yield command
    if isinstance(result.reply, Done):
        return outcome
    return (yield from _store_again(grant.claim, times, command, ended.deadline, outcome, result))


def closing_command(grant: Grant, times: PolicyTimes, error: BaseException) -> Finish | Release:
    """What becomes of the key of a body that raised:

    1.  Terminal: it has failed for good.
    2.  NotStarted, or any error of a retry-safe operation: the key is released.
    3.  Any other Exception: it has failed for good.
    4.  An interruption from outside, or our own LeaseLost: the body decided nothing, so nobody can
        tell what happened.
    """
    if isinstance(error, Terminal):
        state = State.FAILED
    elif isinstance(error, NotStarted) or times.retry_safe:
        return Release(grant.id, grant.owner, grant.fence)
    elif isinstance(error, Exception) and not isinstance(error, LeaseLost):
        state = State.FAILED
    else:
        state = State.UNKNOWN
    return Finish(grant.id, grant.owner, grant.fence, state, pack_error(error))


def _store_again(
    claim: Claim,
    times: PolicyTimes,
    command: Finish | Release,
    deadline: int,
    outcome: AttemptOutcome,
    result: CommandResult,
) -> Flow:
    """The store did not take the end of an attempt; `result` is that of the first try.

    While the store is unavailable the command is sent again until `store_timeout` is over; after
    that it is a deferred write. A release has no effect once the lease is over, so it is sent
    until then only; a finish is accepted as long as nobody else has decided the key.
    """
    is_known = isinstance(command, Finish) and command.state != State.UNKNOWN
    pause = RETRY_FIRST_US
    until = result.sent_at + times.store_timeout
    if isinstance(command, Release) or claim.in_transaction:
        until = min(deadline, until)
    while True:
        if isinstance(result.reply, Done):
            return outcome
        if isinstance(result.reply, Lost):
            deferred = command if is_known else None
            own = replace(outcome, unrecorded=is_known, deferred=deferred)
            return (yield from _winners_outcome(claim, own))
        assert isinstance(result.reply, StoreUnavailable)
        if result.at >= until or result.reply.final:
            return AttemptOutcome(
                EventKind.UNAVAILABLE,
                outcome.body,
                returned=outcome.returned,
                error=outcome.error or result.reply,  # the body's own error says more
                deferred=command,
                unrecorded=is_known,
            )
        yield Sleep(min(pause, until - result.at))
        pause = min(pause * 2, RETRY_MAX_US)
        result = yield command


def _winners_outcome(claim: Claim, own: AttemptOutcome, stopped: Grant | None = None) -> Flow:
    """The outcome for a caller whose attempt does not hold the key any more. `own` is what its
    attempt came to, which the store has refused; or its body was stopped by its heartbeat, and
    `stopped` is its grant.

    1.  Its body was interrupted (Ctrl-C, a cancellation): the interruption, whoever won.
    2.  Its body was stopped, and the store does not say that anybody else has the key: the store
        was away.
    3.  The key has ended for the same request: the stored outcome.
    4.  The key is unknown, and so is how this attempt ended: unknown.
    5.  Otherwise its own outcome, as lost. If the record is still this owner's and undecided, a
        transaction of another caller stood in the way and may yet roll back: then the finish is
        deferred, to be sent again.
    """
    unrecorded, deferred = own.unrecorded, None
    if own.error is not None and not isinstance(own.error, Exception):
        return AttemptOutcome(EventKind.LOST, error=own.error, unrecorded=unrecorded)
    result: CommandResult = yield Look(claim.id)
    seen = result.reply
    if stopped is not None and (unavailable := cut_off(seen, stopped)) is not None:
        return unavailable
    if isinstance(seen, Seen) and seen.record is not None:
        record = seen.record
        same = record.fingerprint == claim.fingerprint and seen.now < record.expires_at
        if same and record.state in (State.SUCCEEDED, State.FAILED):
            left = record.expires_at - seen.now
            won = Replay(record.state, record.body, record.attempt, record.fence, left)
            return replace(_replayed(won), unrecorded=unrecorded)
        if same and record.state == State.UNKNOWN and not unrecorded:
            return AttemptOutcome(EventKind.UNKNOWN, fence=record.fence)
        if may_still_finish(record, own.deferred):
            deferred = own.deferred
    return AttemptOutcome(
        EventKind.LOST, own.body, returned=own.returned, unrecorded=unrecorded, deferred=deferred
    )


def _replayed(reply: Replay) -> AttemptOutcome:
    return AttemptOutcome(
        _REPLAYED, reply.body, reply.state, reply.attempt, reply.fence, reply.expires_in
    )
