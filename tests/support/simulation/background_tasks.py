"""What happens beside the calls of a simulated world: operators, completers, deferred writes."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.support.explorer.operator import operator
from tests.support.explorer.scenario import BodyEnding
from tests.support.simulation.attempt_task import AttemptTask
from tests.support.simulation.plan import IDS, MILLISECOND, SECOND, BodyPlan, Settings
from tests.support.simulation.simulated_process import SimulatedProcess
from tests.support.simulation.task import Task

from oncekey.core.abandoned import ActionKind, Registration, next_action
from oncekey.core.commands import Command, Look, Resolve, Seen
from oncekey.core.effects import CommandResult, Effect, Sleep
from oncekey.core.record import Record, State
from oncekey.core.recovery import recover
from oncekey.engine.batches.deferred_writes import SEND_EVERY_US

if TYPE_CHECKING:
    from tests.support.simulation.simulation import Simulation

COMPLETER_LOOKS: Final = 5
SHORT_BODY: Final = BodyPlan(MILLISECOND, 0, True, MILLISECOND, BodyEnding.RETURNED, True)


class OperatorTask(Task):
    """An operator who decides an unknown key, or frees a failed one."""

    operator = True

    def __init__(
        self,
        world: Simulation,
        process: SimulatedProcess,
        number: int,
        key: int,
        free_failed: bool,
    ) -> None:
        self.name = f"operator {number}"
        id = IDS[key]
        flow = _free_failed(id, self.name) if free_failed else operator(self.name, id)
        super().__init__(world, process, number, flow)


def _free_failed(id: bytes, name: str) -> Generator[Effect, Any, None]:
    """Frees a failed key as it was shown, so that it runs again."""
    result: CommandResult = yield Look(id)
    seen = result.reply
    if isinstance(seen, Seen) and seen.record is not None and seen.record.state is State.FAILED:
        record = seen.record
        yield Sleep(20 * MILLISECOND)
        shown = (State.FAILED, record.lease_until)
        yield Resolve(id, record.fence, State.ABSENT, b"", f"{name} frees it", *shown)


class CompleterTask(Task):
    """A completer that looks at one key some times, and finishes what was abandoned, by the rules
    of core."""

    def __init__(self, world: Simulation, process: SimulatedProcess, number: int, key: int) -> None:
        self.name = f"completer {number}"
        self._key = key
        super().__init__(world, process, number, _complete(IDS[key], process.settings))

    def returned(self, found: Record | None) -> None:
        """Run it again, if that is what is to be done."""
        if found is None:
            return
        if self.world.met is not None:
            self.world.met["completion"] += 1
        task = AttemptTask(
            self.world, self.process, self.draw(1 << 16), self._key, found.fingerprint,
            SHORT_BODY, _nothing,
        )  # fmt: skip
        if self.world.story is not None:
            self.world.tell(f"{self.name} runs it again as {task.name}")
        task.resume(None)


def _complete(id: bytes, settings: Settings) -> Generator[Effect, Any, Record | None]:
    times = settings.times
    registration = Registration(
        runs=settings.registered,
        recovers=settings.recoverable,
        recover_grace=times.recover_grace,
    )
    for _ in range(COMPLETER_LOOKS):
        result: CommandResult = yield Look(id)
        seen = result.reply
        if not isinstance(seen, Seen):
            yield Sleep(times.lease)
            continue
        record = seen.record
        action = next_action(record, seen.now, registration)
        if action.kind is ActionKind.LATER:
            yield Sleep(min(action.after, 2 * SECOND))
        elif action.kind is ActionKind.RECOVER:
            assert record is not None
            state = yield from recover(record)
            return record if state is State.ABSENT and settings.registered else None
        else:
            return record if action.kind is ActionKind.RUN else None
    return None


def _nothing(_: object) -> None:
    pass


class DeferredWriterTask(Task):
    """Sends the deferred writes of a process, until the store has taken them."""

    def __init__(self, world: Simulation, process: SimulatedProcess, number: int) -> None:
        self.name = f"{process.name}'s deferred writer"
        super().__init__(world, process, number, _no_flow())

    def add(self, command: Command) -> None:
        process = self.process
        process.deferred.add(command, self.clock())
        if not process.writer_runs:
            process.writer_runs = True
            self.later(SEND_EVERY_US, self._send)

    def _send(self, _: object) -> None:
        process = self.process
        if not len(process.deferred):
            process.writer_runs = False
            return
        for command in process.deferred.due(self.clock()):
            self.world.send(self, command, partial(process.deferred.sent, command))
        self.later(SEND_EVERY_US, self._send)


def _no_flow() -> Generator[Any, Any, None]:
    yield from ()
