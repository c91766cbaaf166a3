"""What the attempts of one process share with the duplicates of their keys, without waiting.

`RunningAttempts` are the attempts that run in this process. They reply to the claims of their
duplicates, so that no command is sent. `SharedClaimsBase` is what an attempt's end means for the
duplicates that wait for it; the twins in blocking/ and aio/ send and wait. How far an attempt has
come is in its `Progress` (progress.py). Who waits for whom is in duplicates.py.
"""

from __future__ import annotations

from oncekey.core.commands import Busy, Claim, Claimed, Mismatched, Replay, Unknown
from oncekey.core.fingerprint import version_of
from oncekey.core.record import State
from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.clock import Clock
from oncekey.engine.duplicates import Duplicates, Waiter
from oncekey.engine.progress import Progress


class RunningAttempts:
    """The attempts whose bodies run in this process, by the id of their key.

    By the store's promise an attempt holds its key until its own deadline, so until then the store
    could only reply that the key is busy. After the deadline, and once the attempt's end is being
    stored, only the store can tell. Safe from any thread: each step is one operation on a dict.
    """

    def __init__(self) -> None:
        self.by_id: dict[bytes, AttemptBase] = {}

    def add(self, attempt: AttemptBase) -> None:
        self.by_id[attempt._grant.claim.id] = attempt

    def remove(self, attempt: AttemptBase) -> None:
        """Must be called before the attempt's end is sent to the store."""
        id, by_id = attempt._grant.claim.id, self.by_id
        if by_id.get(id) is attempt:  # not one that has taken over
            by_id.pop(id, None)

    def time_left(self, id: bytes, now: int) -> int:
        """For how long an attempt of this process surely still holds the key; 0 if none does."""
        running = self.by_id.get(id)
        if running is None or running._lost:
            return 0
        return max(0, running._deadline - now)

    def reply(self, claim: Claim, now: int) -> Busy | Mismatched | None:
        """The reply to a claim of a key that is held here; None if the store must reply."""
        running = self.by_id.get(claim.id)
        if running is None:
            return None
        left = running._deadline - now
        if running._lost or left <= 0:
            return None
        fingerprint = running._grant.claim.fingerprint
        if fingerprint != claim.fingerprint:
            return Mismatched(version_of(fingerprint))
        return Busy(left)


class SharedClaimsBase:
    """The claims and waits of all attempts of a process, or of one event loop."""

    def __init__(self, duplicates: Duplicates, running: RunningAttempts, clock: Clock) -> None:
        self.duplicates = duplicates
        self._running = running
        self._clock = clock

    def leads(self, claim: Claim) -> bool:
        """True if nothing here can reply to this claim, neither an attempt that runs here nor the
        claim of a duplicate: then it is sent, and `duplicates.replied` or `leave` must follow."""
        return claim.id not in self._running.by_id and self.duplicates.lead(claim)

    def _sleeper(self, progress: Progress) -> Waiter:
        """An attempt that waits for the end of the one that holds its key."""
        caller = progress.job.claim.owner
        return Waiter(progress.claim, caller=caller, unknown=type(progress.reply) is Unknown)

    def end(self, progress: Progress) -> None:
        """An attempt is over, here or on another event loop, however it ended: give those who wait
        for it the outcome, or let one of them ask the store."""
        claim, duplicates = progress.claim, self.duplicates
        if duplicates.has_waiters(claim.id):
            # Without a reply its claim may have been made, or may yet be.
            if progress.reply is None or type(progress.reply) is Claimed:
                duplicates.key_ended(claim, outcome_of(progress, self._clock.now()))
            duplicates.poller_left(claim.id, progress.job.claim.owner)


def outcome_of(progress: Progress, now: int) -> Replay | None:
    """What the attempt has stored, as a replay for its duplicates."""
    if progress.stored is None:
        return None
    finish, sent_at = progress.stored
    if finish.state is State.UNKNOWN or type(progress.reply) is not Claimed:
        return None
    # Counted from before it was stored, so that it never outlives the record.
    left = max(0, progress.claim.keep - (now - sent_at))
    return Replay(finish.state, finish.body, progress.reply.attempt, finish.fence, left)
