"""The running attempt as an async body sees it: steps and renewals, awaited.

Owns the asyncio answers to what `flow.step` asks; the rules are there.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from oncekey.core.asks import Answer, Call, Grant, Raised, Returned, RunStep, Sleep, StepVerdict
from oncekey.core.codec import Codec, codec_for
from oncekey.core.commands import Command, Lost, Renew
from oncekey.core.errors import StoreUnavailable
from oncekey.core.flow import step as step_flow
from oncekey.engine.aio.heart import sleep
from oncekey.engine.attempt import AttemptBase
from oncekey.engine.kernel import Job, Kernel

V = TypeVar("V")


class AsyncHands(Protocol):
    """What an attempt needs of its runner."""

    kernel: Kernel

    async def answer(self, command: Command, interrupted: Callable[[], None]) -> Answer: ...
    async def undo(self, attempt: AttemptBase) -> None: ...


class AsyncAttempt(AttemptBase):
    """One run of a body, in its task."""

    __slots__ = ("_hands", "_job")

    def __init__(self, hands: AsyncHands, job: Job, grant: Grant) -> None:
        super().__init__(hands.kernel.identities, job.identity, grant, hands.kernel.clock)
        self._hands = hands
        self._job = job

    async def step(
        self, name: str, fn: Callable[[str], Awaitable[V] | V], *, codec: Any = None
    ) -> V:
        """Run `fn(child_key)` once: a step that finished in an earlier attempt is not repeated.

        The intent is on record before `fn` is called, its result after; an unfinished step is
        called again, with the same child key.
        """
        chosen = self._job.codec if codec is None else codec_for(codec)
        saved = self._begin_step(name)
        interrupts = _Interrupts()
        verdict = await self._drive_step(name, fn, chosen, saved, interrupts)
        value: V = self._end_step(name, verdict, chosen)
        if interrupts.came:
            raise asyncio.CancelledError  # it came while the step was being recorded
        return value

    async def renew(self) -> None:
        """Renew the lease now, e.g. before a call that blocks the event loop."""
        self.check()
        grant = self._grant
        renew = Renew(grant.id, grant.owner, grant.fence, grant.lease)
        answer = await self._hands.answer(renew, leave)
        if isinstance(answer.reply, StoreUnavailable):
            raise answer.reply
        if isinstance(answer.reply, Lost):
            self._on_lost = None  # told by the error, no need to cancel as well
            self._mark_lost()
            self.check()
        self._extend(answer.sent_at + grant.lease)

    async def undo(self) -> None:
        """Take back the rows this body has written in the caller's transaction so far, and go on:
        what it returns is stored as usual. For an answer that is to be kept though nothing was
        done, such as a refusal. Raising Terminal undoes the rows as well, and stores the failure.
        """
        await self._hands.undo(self)

    async def _drive_step(
        self,
        name: str,
        fn: Callable[[str], Any],
        codec: Codec,
        saved: Any,
        interrupts: _Interrupts,
    ) -> StepVerdict:
        child = self.child_key(name)
        flow = step_flow(self._grant, self._repeat_until, name, saved, child.encode())
        clock = self._hands.kernel.clock
        answer: object = None
        while True:
            try:
                ask = flow.send(answer)
            except StopIteration as stop:
                verdict: StepVerdict = stop.value
                return verdict
            if type(ask) is RunStep:
                answer = await self._run_step(fn, child, codec, interrupts)
            elif type(ask) is Sleep:
                await sleep(clock, clock.jitter(ask.us))
                answer = clock.now()
            else:
                assert type(ask) is Call
                answer = await self._hands.answer(ask.command, interrupts.note)

    async def _run_step(
        self, fn: Callable[[str], Any], child: str, codec: Codec, interrupts: _Interrupts
    ) -> Returned | Raised:
        if interrupts.came:
            return Raised(asyncio.CancelledError(), self._repeat_until)
        try:
            value = fn(child)
            if inspect.isawaitable(value):
                value = await value
        except BaseException as error:
            return Raised(error, self._repeat_until)
        return self._hands.kernel.pack(codec, self._job.policy, value, self._repeat_until)


class _Interrupts:
    """Whether a cancellation came while a store call had to be waited for."""

    def __init__(self) -> None:
        self.came = False

    def note(self) -> None:
        self.came = True


def leave() -> None:
    """Nothing hangs on this reply: a cancelled caller need not stay for it."""
    raise asyncio.CancelledError
