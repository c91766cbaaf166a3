"""What an attempt shares with the duplicates of its key in one process, without waiting.

`RunningAttempts` are the attempts that run in this process. They reply to the claims of their
duplicates, so that no command is sent. `SharedClaimsBase` follows one attempt from its first claim
to its end, and then wakes the duplicates that wait for it; the twins in blocking/ and aio/ send
and wait. Who waits for whom is in duplicates.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from oncekey.core.commands import Busy, Claim, Claimed, Done, Finish, Mismatched, Replay, Unknown
from oncekey.core.effects import CommandResult
from oncekey.core.fingerprint import version_of
from oncekey.core.record import State
from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.clock import Clock
from oncekey.engine.duplicates import ClaimReply, Duplicates


class RunningAttempts:
    """The attempts whose bodies run in this process, by the id of their key.

    By the store's promise an attempt holds its key until its own deadline, so until then the store
    could only reply that the key is busy. After the deadline, and once the attempt's end is being
    stored, only the store can tell. Safe from any thread: each step is one operation on a dict.
    """

    def __init__(self) -> None:
        self._attempts: dict[bytes, tuple[bytes, AttemptBase]] = {}

    def add(self, fingerprint: bytes, attempt: AttemptBase) -> None:
        self._attempts[attempt._grant.id] = (fingerprint, attempt)

    def remove(self, attempt: AttemptBase) -> None:
        """Must be called before the attempt's end is sent to the store."""
        id = attempt._grant.id
        running = self._attempts.get(id)
        if running is not None and running[1] is attempt:  # not one that has taken over
            self._attempts.pop(id, None)

    def time_left(self, id: bytes, now: int) -> int:
        """For how long an attempt of this process surely still holds the key; 0 if none does."""
        running = self._attempts.get(id)
        if running is None or running[1]._lost:
            return 0
        return max(0, running[1]._deadline - now)

    def reply(self, claim: Claim, now: int) -> Busy | Mismatched | None:
        """The reply to a claim of a key that is held here; None if the store must reply."""
        running = self._attempts.get(claim.id)
        if running is None:
            return None
        fingerprint, attempt = running
        left = attempt._deadline - now
        if attempt._lost or left <= 0:
            return None
        if fingerprint != claim.fingerprint:
            return Mismatched(version_of(fingerprint))
        return Busy(left)


class SharedClaimsBase:
    """One attempt's claims, from the first one to the attempt's end.

    _claim       the last claim that was sent or shared
    _caller      the owner of the first claim, which names the attempt among its duplicates
    _unanswered  a claim was sent, and interrupted before its reply
    _unknown     the last reply was that the key is unknown
    _number      the number of the attempt, once it holds the key
    _outcome     what the attempt has stored
    _handed      a reply that came while the attempt slept, for its next claim
    """

    __slots__ = (
        "_caller",
        "_claim",
        "_clock",
        "_duplicates",
        "_handed",
        "_number",
        "_outcome",
        "_running",
        "_unanswered",
        "_unknown",
    )

    def __init__(self, duplicates: Duplicates, running: RunningAttempts, clock: Clock) -> None:
        self._duplicates = duplicates
        self._running = running
        self._clock = clock
        self._claim: Claim | None = None
        self._caller = b""
        self._unanswered = False
        self._unknown = False
        self._number = 0
        self._outcome: Replay | None = None
        self._handed: ClaimReply | None = None

    def _claimed(self, claim: Claim, result: CommandResult) -> None:
        """Remember the reply to a claim."""
        reply = result.reply
        self._claim, self._unanswered = claim, False
        self._unknown = type(reply) is Unknown
        if type(reply) is Claimed:
            self._number = reply.attempt

    def _finished(self, command: Finish, result: CommandResult) -> None:
        """Remember the outcome that was stored, as a replay for the duplicates."""
        claim = self._claim
        if type(result.reply) is not Done or claim is None or command.state is State.UNKNOWN:
            return
        # Counted from before it was stored, so that it never outlives the record.
        left = max(0, claim.keep - (result.at - result.sent_at))
        number, fence = self._number, command.fence
        self._outcome = Replay(command.state, command.body, number, fence, left)

    def end(self, everywhere: Iterable[Duplicates]) -> None:
        """The attempt is over, however it ended: give those who wait for it the outcome, or let
        one of them ask the store. They may wait on other event loops too."""
        claim = self._claim
        if claim is None:
            return
        for duplicates in everywhere:
            if not duplicates.has_waiters(claim.id):
                continue
            if self._number or self._unanswered:
                duplicates.key_ended(claim, self._outcome)
            duplicates.poller_left(claim.id, self._caller)
