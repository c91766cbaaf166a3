"""The running attempt as a blocking body sees it: steps and renewals.

Owns the blocking answers to what `flow.step` asks; the rules are there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from oncekey.core.asks import Answer, Call, Grant, Raised, Returned, RunStep, Sleep, StepVerdict
from oncekey.core.codec import Codec, codec_for
from oncekey.core.commands import Command, Lost, Renew
from oncekey.core.errors import StoreUnavailable
from oncekey.core.flow import step as step_flow
from oncekey.engine.attempt import AttemptBase
from oncekey.engine.kernel import Job, Kernel

V = TypeVar("V")


class Hands(Protocol):
    """What an attempt needs of its runner."""

    kernel: Kernel

    def answer(self, command: Command) -> Answer: ...
    def sleep(self, ask: Sleep) -> int: ...
    def undo(self, attempt: AttemptBase) -> None: ...


class Attempt(AttemptBase):
    """One run of a body, in its thread."""

    __slots__ = ("_hands", "_job")

    def __init__(self, hands: Hands, job: Job, grant: Grant) -> None:
        super().__init__(hands.kernel.identities, job.identity, grant, hands.kernel.clock)
        self._hands = hands
        self._job = job

    def step(self, name: str, fn: Callable[[str], V], *, codec: Any = None) -> V:
        """Run `fn(child_key)` once: a step that finished in an earlier attempt is not repeated.

        The intent is on record before `fn` is called, its result after; an unfinished step is
        called again, with the same child key.
        """
        chosen = self._job.codec if codec is None else codec_for(codec)
        saved = self._begin_step(name)
        verdict = self._drive_step(name, fn, chosen, saved)
        value: V = self._end_step(name, verdict, chosen)
        return value

    def renew(self) -> None:
        """Renew the lease now, e.g. before a long call that blocks heartbeats (a held GIL)."""
        self.check()
        grant = self._grant
        answer = self._hands.answer(Renew(grant.id, grant.owner, grant.fence, grant.lease))
        if isinstance(answer.reply, StoreUnavailable):
            raise answer.reply
        if isinstance(answer.reply, Lost):
            self._mark_lost()
            self.check()
        self._extend(answer.sent_at + grant.lease)

    def undo(self) -> None:
        """Take back the rows this body has written in the caller's transaction so far, and go on:
        what it returns is stored as usual. For an answer that is to be kept though nothing was
        done, such as a refusal. Raising Terminal undoes the rows as well, and stores the failure.
        """
        self._hands.undo(self)

    def _drive_step(
        self, name: str, fn: Callable[[str], Any], codec: Codec, saved: Any
    ) -> StepVerdict:
        child = self.child_key(name)
        flow = step_flow(self._grant, self._repeat_until, name, saved, child.encode())
        answer: object = None
        while True:
            try:
                ask = flow.send(answer)
            except StopIteration as stop:
                verdict: StepVerdict = stop.value
                return verdict
            if type(ask) is RunStep:
                answer = self._run_step(fn, child, codec)
            elif type(ask) is Sleep:
                answer = self._hands.sleep(ask)
            else:
                assert type(ask) is Call
                answer = self._hands.answer(ask.command)

    def _run_step(self, fn: Callable[[str], Any], child: str, codec: Codec) -> Returned | Raised:
        try:
            value = fn(child)
        except BaseException as error:
            return Raised(error, self._repeat_until)
        return self._hands.kernel.pack(codec, self._job.policy, value, self._repeat_until)
