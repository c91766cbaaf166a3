"""One step of a simulated body, and the other service that its function calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.simulation.plan import MILLISECOND
from tests.support.simulation.task import Task

from oncekey.core.effects import Probe, ProbeFoundNothing, Raised, Returned, RunStep
from oncekey.core.record import Step
from oncekey.core.step_flow import StepOutcome, step

if TYPE_CHECKING:
    from tests.support.simulation.attempt_task import AttemptTask

_REFUSED = RuntimeError("the other service refused it")


class StepTask(Task):
    """Drives the step flow. The other service answers after a while, and remembers what it did."""

    def __init__(self, attempt: AttemptTask, name: str, saved: Step | None, number: int) -> None:
        grant = attempt.grant
        grace = grant.lease if number % 2 else None  # every other step has a probe
        flow = step(grant, attempt.owner.deadline, name, b"intent", saved, grace)
        super().__init__(attempt.world, attempt.process, number, flow)
        self._attempt = attempt
        self._step = name
        self.name = f"{attempt.name}'s {name}"

    def perform(self, effect: Any) -> object:
        world, attempt = self.world, self._attempt
        if not attempt.runs:
            return None  # the body was cancelled, and its step with it
        if type(effect) is RunStep:
            if world.met is not None:
                world.met["late step" if attempt.owner.is_lost(world.now) else "step"] += 1
            world.judge.step_called(attempt.id, attempt.owner, self._step)
            if world.story is not None:
                world.tell(f"{self.name} calls another service")
            self.later(MILLISECOND + self.draw(10 * MILLISECOND), self._answered)
            return None
        assert type(effect) is Probe
        history = world.judge.keys[attempt.id]
        called = (history.generations[attempt.grant.fence], self._step) in history.called
        deadline = attempt.owner.deadline
        if called:
            return Returned(b"found", deadline)
        return ProbeFoundNothing(deadline)

    def returned(self, outcome: StepOutcome) -> None:
        self._attempt.step_ended(outcome)

    def _answered(self, _: object) -> None:
        deadline = self._attempt.owner.deadline
        if self.draw(6) == 0:
            self.resume(Raised(_REFUSED, deadline))
        else:
            self.resume(Returned(b"done", deadline))
