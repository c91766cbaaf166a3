"""One caller's attempt in a simulated process: the attempt flow, its body and its heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.support.explorer.descriptions import describe_outcome
from tests.support.explorer.moves import ERRORS
from tests.support.explorer.process import HeldClaim
from tests.support.explorer.scenario import Actor, BodyEnding
from tests.support.simulation.judge import Owner
from tests.support.simulation.plan import IDS, BodyPlan
from tests.support.simulation.simulated_process import SimulatedProcess
from tests.support.simulation.step_task import StepTask
from tests.support.simulation.task import Task

from oncekey.core.commands import Claim
from oncekey.core.effects import (
    AttemptOutcome,
    CommandResult,
    DeadlineExtended,
    Grant,
    Overtaken,
    Raised,
    Returned,
    StartedTooLate,
    command_of,
)
from oncekey.core.errors import LeaseLost, StoreUnavailable
from oncekey.core.late_owner import starts_too_late
from oncekey.core.step_flow import StepOutcome
from oncekey.core.step_format import ARGUMENTS

if TYPE_CHECKING:
    from tests.support.simulation.simulation import Simulation

_LOST = LeaseLost("overtaken")


class AttemptTask(Task):
    """One attempt, from its claim to its outcome. `then` is called with the outcome; with None if
    its process was killed."""

    def __init__(
        self,
        world: Simulation,
        process: SimulatedProcess,
        number: int,
        key: int,
        fingerprint: bytes,
        body: BodyPlan,
        then: Callable[[AttemptOutcome | None], None],
    ) -> None:
        times, recoverable, registered = process.settings
        self.id = IDS[key]
        self.name, token = world.new_owner()
        self._tokens = [token]
        claim = Claim(
            self.id, token, fingerprint, times.lease, times.keep, times.audit, times.retry_safe,
            label="charge", keep_unknown=times.keep_unknown,
        )  # fmt: skip
        arguments = b"arguments" if registered else b""
        flow = world.code.attempt(claim, times, recoverable, arguments)
        super().__init__(world, process, number, flow)
        self.recover_grace = times.recover_grace
        self.actor = Actor(self.name, fingerprint=fingerprint)
        self._body = body
        self._then = then
        self._grant: Grant | None = None
        self._owner: Owner | None = None
        self._steps_left = body.steps
        self._beat: Any = None
        process.attempts[self] = None

    # --- the flow -----------------------------------------------------------------------------

    def perform(self, effect: Any) -> object:
        assert type(effect) is Grant
        if starts_too_late(effect, self.clock()):
            if self.world.met is not None:
                self.world.met["late start"] += 1
            self._tokens.append(self.world.new_owner(self.name)[1])
            return StartedTooLate(self._tokens[-1])
        self._begin(effect)
        return None

    def returned(self, outcome: AttemptOutcome) -> None:
        world = self.world
        self.process.attempts.pop(self, None)
        world.unended.difference_update(self._tokens)
        if world.story is not None:
            world.tell(f"{self.name} returns {describe_outcome(outcome)}")
        if world.met is not None:
            world.met[f"outcome {outcome.kind.value}"] += 1
        world.judge.ended(self.id, self.actor, outcome)
        if outcome.deferred is not None:
            world.defer(self.process, outcome.deferred)
        self._then(outcome)

    def killed(self) -> None:
        """Its process is gone; so is whatever it believed."""
        self._leave()
        self._then(None)

    # --- the body -----------------------------------------------------------------------------

    @property
    def owner(self) -> Owner:
        assert self._owner is not None
        return self._owner

    @property
    def grant(self) -> Grant:
        assert self._grant is not None
        return self._grant

    @property
    def runs(self) -> bool:
        """True while its body runs."""
        return self._beat is not None

    def _begin(self, grant: Grant) -> None:
        world = self.world
        self._grant = grant
        held = HeldClaim(grant.owner, grant.fence, grant.deadline)
        careful, will_act = self._body.careful, self._body.acts
        owner = Owner(self.actor, self.process, held, grant.lease, careful, will_act)
        self._owner = owner
        if world.story is not None:
            left = (grant.deadline - self.clock()) / 1000
            world.tell(f"{self.name}'s body begins, with {left:.1f} ms left by its own clock")
        world.judge.begun(self.id, owner, world.store.records.get(self.id))
        self._beat = beat = world.code.heartbeat(grant)
        self._rest_before_beat(next(beat))
        self.later(self._body.before, self._go_on)

    def _go_on(self, _: object) -> None:
        """Take the next step; after the last one act."""
        if not self.runs:
            return
        if self._steps_left:
            if self.owner.is_lost(self.world.now):
                self._end(Raised(_LOST, self.owner.deadline))
                return
            name = f"step {self._body.steps - self._steps_left + 1}"
            self._steps_left -= 1
            saved = {step.name: step for step in self.grant.steps if step.name != ARGUMENTS}
            StepTask(self, name, saved.get(name), self.draw(1 << 16)).resume(None)
            return
        if self._body.acts:
            if self._body.careful and self.owner.is_lost(self.world.now):
                self._end(Raised(_LOST, self.owner.deadline))
                return
            self._act()
        self.later(self._body.after, self._finish_body)

    def step_ended(self, outcome: StepOutcome) -> None:
        """A step came to its end."""
        if not self.runs:
            return
        deadline = self.owner.deadline
        if outcome.lost:
            self.owner.claim_is_lost = True
            self._end(Raised(_LOST, deadline))
        elif outcome.error is not None:
            error = StoreUnavailable("not recorded") if outcome.unrecorded else outcome.error
            self._end(Raised(error, deadline))
        else:
            self.later(1, self._go_on)

    def _act(self) -> None:
        world = self.world
        if world.story is not None:
            world.tell(f"{self.name} ACTS on the outside world under fence {self.grant.fence}")
        if world.met is not None:
            world.met["effect" if not self.owner.is_lost(self.world.now) else "late effect"] += 1
        record = world.store.records.get(self.id)
        world.judge.acts(self.id, self.owner, record, self.grant.retry_safe)
        self.owner.will_act = False

    def _finish_body(self, _: object) -> None:
        if not self.runs:
            return
        ending, deadline = self._body.ending, self.owner.deadline
        if ending is BodyEnding.RETURNED:
            body = f"{self.name}:{self.grant.fence}".encode()
            self.world.results.append((self, self.process.incarnation, body))
            self._end(Returned(body, deadline))
        else:
            self._end(Raised(ERRORS[ending], deadline))

    def _end(self, ended: Returned | Raised | Overtaken) -> None:
        world = self.world
        kind = "overtaken" if isinstance(ended, Overtaken) else f"body {self._body.ending.value}"
        if isinstance(ended, Raised) and ended.error is _LOST:
            kind = "body finds its claim lost"
        if world.story is not None:
            world.tell(f"{self.name}'s {kind}")
        if world.met is not None:
            world.met[kind] += 1
        self._leave()
        self.resume(ended)

    def _leave(self) -> None:
        """The body has ended: its owner believes in no claim any more."""
        self.world.unended.difference_update(self._tokens)
        self._beat = None
        if self._owner is not None:
            self._owner.will_act = False
            self.world.judge.keys[self.id].holders.pop(self._owner, None)

    # --- the heartbeat --------------------------------------------------------------------------

    def _rest_before_beat(self, sleep: Any) -> None:
        us = sleep.us - (self.draw(sleep.us // 2 + 1) if sleep.us > 1 else 0)
        self.later(us, self._send_beat, self._beat)

    def _send_beat(self, beat: Any) -> None:
        if self._beat is not beat:
            return
        command = command_of(beat.send(self.clock()))
        assert command is not None
        self.world.send(self, command, self._beat_replied)

    def _beat_replied(self, result: CommandResult) -> None:
        beat, owner = self._beat, self.owner
        if beat is None:
            return
        try:
            effect = beat.send(result)
            while type(effect) is DeadlineExtended:
                owner.deadline = max(owner.deadline, effect.deadline)
                effect = beat.send(None)
        except StopIteration:
            self._lose_claim()
            return
        self._rest_before_beat(effect)

    def _lose_claim(self) -> None:
        """The heartbeat has found the claim lost."""
        world = self.world
        if world.met is not None:
            world.met["heartbeat ends"] += 1
        self.owner.claim_is_lost = True
        world.judge.keys[self.id].holders.pop(self.owner, None)
        if self.process.cancels:
            self._end(Overtaken())
