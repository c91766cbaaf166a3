"""One process of a simulated world: its own clock, whether it runs, and its network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.simulation.plan import Fault, FaultKind, ProcessPlan, Settings

from oncekey.engine.batches.deferred_writes import DeferredWrites

if TYPE_CHECKING:
    from tests.support.simulation.attempt_task import AttemptTask


class SimulatedProcess:
    """A process. A killed one starts again as its next `incarnation`, and whatever the earlier one
    was about to do does not happen. One that is paused does it when the pause is over."""

    def __init__(self, name: str, plan: ProcessPlan, settings: Settings) -> None:
        self.name = name
        self._offset = plan.offset
        self._drift = plan.drift
        self.cancels = plan.cancels
        self.settings = settings
        self.incarnation = 0
        self.paused_until = 0
        self.attempts: dict[AttemptTask, None] = {}
        self.deferred = DeferredWrites()
        self.writer_runs = False
        self._faults: list[tuple[int, Fault]] = []

    def clock(self, now: int) -> int:
        """Its own clock, which nobody sets."""
        return self._offset + now + now * self._drift // 1_000_000

    def kill(self) -> None:
        self.incarnation += 1
        self.paused_until = 0
        self.attempts = {}
        self.deferred = DeferredWrites()
        self.writer_runs = False

    def add_fault(self, fault: Fault, until: int) -> None:
        """Let its network be faulty for a while."""
        self._faults.append((until, fault))

    def faults_at(self, now: int) -> dict[FaultKind, int]:
        """What is wrong with its network now, and by how much."""
        if not self._faults:
            return {}
        return {fault.kind: fault.amount for until, fault in self._faults if now < until}
