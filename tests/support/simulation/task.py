"""A flow that a simulated process drives: effects are performed, their results sent back.

This is one more driver of the flows, beside the sync and the async engine and the explorer. Random
choices while a world runs are made from the task's own number, so that what one task draws does not
depend on what others do.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from tests.support.explorer.ledger import SideEffect
from tests.support.explorer.moves import DECLINED, FOUND, FREE
from tests.support.simulation.judge import Broken
from tests.support.simulation.plan import MILLISECOND
from tests.support.simulation.simulated_process import SimulatedProcess

from oncekey.core.effects import Recover, Recovered, Sleep, command_of
from oncekey.core.record import Record

if TYPE_CHECKING:
    from tests.support.simulation.simulation import Simulation

_MASK = (1 << 64) - 1


class Task:
    """Drives one flow in one process."""

    name = "somebody"
    operator = False
    recover_grace = 0  # while it lasts, "nothing happened" must not be believed

    def __init__(
        self,
        world: Simulation,
        process: SimulatedProcess,
        number: int,
        flow: Generator[Any, Any, Any],
    ) -> None:
        self.world = world
        self.process = process
        self._number = (world.plan.seed << 32) + (number << 12)
        self._flow = flow

    def draw(self, end: int) -> int:
        """A number below `end`."""
        self._number += 1
        mixed = self._number * 0x9E3779B97F4A7C15 & _MASK
        mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & _MASK
        return (mixed ^ mixed >> 32) % end

    def clock(self) -> int:
        return self.process.clock(self.world.now)

    def later(self, us: int, action: Any, argument: object = None) -> None:
        """Do something in this process after this time."""
        self.world.at(self.world.now + us, self.process, action, argument)

    def resume(self, result: object) -> None:
        """Send a result into the flow, and perform the effect that it yields next."""
        while True:
            try:
                effect = self._flow.send(result)
            except StopIteration as stop:
                self.returned(stop.value)
                return
            except Broken:
                raise
            except Exception as error:  # a fault of the flow, shown with the way there
                raise Broken("flow", f"{self.name}'s flow raised {error!r}") from error
            kind = type(effect)
            if kind is Sleep:
                # Between half of it and all of it, as the engine's clock does.
                us = effect.us - self.draw(effect.us // 2 + 1)
                self.later(us, self._wake)
                return
            if kind is Recover:
                self._ask(effect.record)
                return
            command = command_of(effect)
            if command is not None:
                self.world.send(self, command, self.resume)
                return
            result = self.perform(effect)
            if result is None:
                return

    def perform(self, effect: Any) -> object:
        """Perform any other effect: its result, or None if that comes later."""
        raise Broken("flow", f"{self.name}'s flow yields {effect!r}")

    def returned(self, value: Any) -> None:
        """The flow has come to its end."""

    def _wake(self, _: object) -> None:
        self.resume(self.clock())

    def _ask(self, record: Record) -> None:
        """Ask the outside world what became of a key; the answer may be old when it comes."""
        found = self._what_happened(record)
        if self.world.met is not None:
            self.world.met["recover"] += 1
        if self.world.story is not None:
            text = found.state.name if found is not None else "that nobody can tell"
            self.world.tell(f"{self.name} finds out what happened: {text}")
        lease = self.process.settings.times.lease
        longest = 3 * lease if self.draw(2) else lease // 10
        self.later(MILLISECOND + self.draw(longest), self.resume, found)

    def _what_happened(self, record: Record) -> Recovered | None:
        """The truth. Nobody can tell while a body may still act without asking the store; but while
        `recover_grace` lasts, somebody may say that nothing has happened, and is not believed."""
        history = self.world.judge.keys[record.id]
        if self.operator and self.draw(4) == 0:
            return DECLINED  # a decision, whatever has happened
        if history.effect_under(record.fence) is not SideEffect.NONE:
            return FOUND
        world = self.world
        owner = history.owners.get(record.fence)
        if owner is not None and owner.may_still_act(world.now):
            # As far as anybody sees, nothing has happened yet.
            grace_over = record.lease_until + self.recover_grace <= world.now + world.store.offset
            return None if grace_over or world.plan.set_back else FREE
        if world.judge.set_ahead_at >= 0 and record.owner in world.unended:
            return None  # its lease has ended early, and its body may yet begin
        return None if self.draw(8) == 0 else FREE
