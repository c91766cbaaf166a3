"""How far one run has come.

A signal's handler may raise anywhere (Ctrl-C, a worker's time limit), between any two instructions
of ours. What must be done about the key then has to be known, so each step of a run is recorded
here in one assignment, and the runner closes the key before the interruption goes on to the caller
(I14).
"""

from __future__ import annotations

from threading import Lock
from typing import Any, Final

from oncekey.core.commands import Finish, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.jobs import Job
from oncekey.engine.observers import Measured


class _Nothing:
    """No value yet: a body may return None."""


NOTHING: Final = _Nothing()


class Progress:
    """How far one run of a job has come.

    claim    the claim that was sent last, or is about to be; `job.claim` is the first one
    reply    the reply to it; None before it came
    handed   a reply that came from a duplicate while the run slept, for its next claim
    spare    the owner of a second claim, if the first one was too old to begin with
    attempt  the body's attempt, once the key is claimed
    outer    what was current outside of the body
    begun    the body may have begun
    value    what the body returned
    error    what it raised
    stored   the command that has stored how the body ended, and when it was sent
    ended    nothing more has to be done about the key
    measured when the body began and ended, if anybody listens
    running  in a thread: a lock that is held while the run goes on, so that a heartbeat can see it
    """

    __slots__ = (
        "attempt",
        "begun",
        "claim",
        "ended",
        "error",
        "handed",
        "job",
        "measured",
        "outer",
        "reply",
        "running",
        "spare",
        "stored",
        "value",
    )

    running: Lock

    def __init__(self, job: Job, outer: Any) -> None:
        self.job = job
        self.claim = job.claim
        self.reply: Reply | StoreUnavailable | None = None
        self.handed: Reply | StoreUnavailable | None = None
        self.spare = b""
        self.attempt: AttemptBase | None = None
        self.outer = outer
        self.begun = False
        self.value: Any = NOTHING
        self.error: BaseException | None = None
        self.stored: tuple[Finish, int] | None = None
        self.ended = False
        self.measured: Measured | None = None

    def owners(self) -> list[bytes]:
        """The owners whose claims may be there: the first one, the last one that was too old to
        begin with, and that of the claim after it."""
        held = self.attempt._grant.owner if self.attempt is not None else b""
        owners = (self.job.claim.owner, held, self.spare)
        return [owner for owner in dict.fromkeys(owners) if owner]
