"""One simulated world: its clock, its network, its faults, from its plan to its end.

A discrete-event loop: whatever happens is an event at a time, and between two events nothing
happens, so a world of minutes takes milliseconds. When no event is left, the world has come to
rest. Then the faults are over, and what must hold in the end is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final

from tests.support.explorer.code_under_test import REAL, CodeUnderTest
from tests.support.explorer.decision_labels import kind_of
from tests.support.explorer.descriptions import describe_command, describe_record, describe_reply
from tests.support.explorer.moves import NO_ANSWER
from tests.support.simulation.attempt_task import AttemptTask
from tests.support.simulation.background_tasks import (
    SHORT_BODY,
    CompleterTask,
    DeferredWriterTask,
    OperatorTask,
)
from tests.support.simulation.judge import Broken, Judge
from tests.support.simulation.plan import (
    IDS,
    MILLISECOND,
    REQUESTS,
    SECOND,
    WINDOWS,
    Call,
    Fault,
    FaultKind,
    Plan,
    ProcessPlan,
)
from tests.support.simulation.simulated_process import SimulatedProcess
from tests.support.simulation.simulated_store import SimulatedStore
from tests.support.simulation.task import Task

from oncekey.core.commands import Command, Done, Finish, Look, Reply
from oncekey.core.effects import AttemptOutcome, CommandResult
from oncekey.core.errors import StoreUnavailable
from oncekey.core.events import EventKind

EVENTS_MAX: Final = 20_000
MARGIN: Final = SECOND
REFUSED: Final = StoreUnavailable("the connection was refused", ambiguous=False)
_AT_REST: Final = frozenset({EventKind.FINISHED, EventKind.REPLAYED, EventKind.UNKNOWN})


class Message:
    """A command on its way, and how long its sender waits for the reply."""

    __slots__ = (
        "back",
        "command",
        "incarnation",
        "is_given_up",
        "sender",
        "sent_at",
        "then",
        "until",
    )

    def __init__(
        self, sender: Task, command: Command, then: Callable[[CommandResult], None], until: int
    ) -> None:
        self.sender = sender
        self.incarnation = sender.process.incarnation
        self.command = command
        self.then = then
        self.sent_at = sender.clock()
        self.until = until
        self.back = 0  # how long the reply takes; -1 if it is lost
        self.is_given_up = False


class Simulation:
    """A world that runs. `story` collects sentences and `met` counts what happened, where given."""

    def __init__(
        self,
        plan: Plan,
        code: CodeUnderTest = REAL,
        story: list[str] | None = None,
        met: Counter[str] | None = None,
    ) -> None:
        self.plan = plan
        self.code = code
        self.story = story
        self.met = met
        self.now = 0
        self.events = 0
        self.judge = Judge(plan, code)
        self.store = SimulatedStore(code, self.judge)
        self.results: list[tuple[AttemptTask, int, bytes]] = []
        self.unended: set[bytes] = set()  # the owners whose bodies have not ended
        self._queue: list[tuple[int, int, SimulatedProcess | None, int, Any, Any]] = []
        self._scheduled = 0
        self._spread = plan.spread
        self._owners = 0
        self._busy_until = 0  # when the last fault is over
        self._processes = [
            SimulatedProcess(f"process {number}", one, plan.settings[0])
            for number, one in enumerate(plan.processes, 1)
        ]
        self._desk = SimulatedProcess("the desk", ProcessPlan(0, 0, False), plan.settings[1])

    def run(self) -> None:
        """Run the world to its end; raises Broken if an invariant is."""
        for call in self.plan.calls:
            self.at(call.at, None, self._try, (call, 0))
        for fault in self.plan.faults:
            self.at(fault.at, None, self._fault, fault)
        self._run_until_rest()
        for task, incarnation, body in self.results:
            if task.process.incarnation == incarnation:
                record = self.store.records.get(task.id)
                self.judge.lost_result(task.id, task.grant.fence, body, record)
        self._check_rest()

    # --- events -------------------------------------------------------------------------------

    def at(
        self,
        when: int,
        process: SimulatedProcess | None,
        action: Any,
        argument: object = None,
        incarnation: int = -1,
    ) -> None:
        """Call `action(argument)` at this time: in a process, if it lives then."""
        if process is not None and incarnation < 0:
            incarnation = process.incarnation
        self._scheduled += 1
        heappush(self._queue, (when, self._scheduled, process, incarnation, action, argument))

    def _run_until_rest(self) -> None:
        queue, judge = self._queue, self.judge
        while queue:
            when, _, process, incarnation, action, argument = heappop(queue)
            if process is not None:
                if process.incarnation != incarnation:
                    continue
                if when < process.paused_until:
                    self.at(process.paused_until, process, action, argument, incarnation)
                    continue
            self.now = judge.now = when
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Broken("I11", f"the world does not come to rest in {EVENTS_MAX} events")
            action(argument)

    def tell(self, text: str) -> None:
        """Add a sentence to the story."""
        if self.story is not None:
            self.story.append(f"{self.now / SECOND:9.4f} s  {text}")

    def new_owner(self, name: str = "") -> tuple[str, bytes]:
        """A name for an attempt, unless it has one, and an owner's token that no other has."""
        number, self._owners = self._owners, self._owners + 1
        if not name:
            name = chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")
        token = f"{name}.{number}".encode().ljust(16, b".")
        self.unended.add(token)
        return name, token

    # --- callers ------------------------------------------------------------------------------

    def _try(self, what: tuple[Call, int]) -> None:
        call, index = what
        process = self._processes[call.tries[index].process]
        then = partial(self._tried, call, index)
        task = AttemptTask(
            self, process, call.number * 16 + index, call.key, REQUESTS[call.request], call.body,
            then,
        )  # fmt: skip
        if self.story is not None:
            self.tell(
                f"caller {call.number} comes to {process.name} (try {index + 1}) as {task.name}"
            )
        self.at(max(self.now, process.paused_until), process, task.resume)

    def _tried(self, call: Call, index: int, outcome: AttemptOutcome | None) -> None:
        index += 1
        if index < len(call.tries):
            self.at(self.now + call.tries[index].after, None, self._try, (call, index))

    # --- the network --------------------------------------------------------------------------

    def send(self, sender: Task, command: Command, then: Callable[[CommandResult], None]) -> None:
        """Send a command to the store; `then` gets the result, unless the process is killed."""
        plan, now = self.plan, self.now
        message = Message(sender, command, then, now + plan.patience)
        out = MILLISECOND + sender.draw(self._spread)
        message.back = MILLISECOND + sender.draw(self._spread)
        faults = sender.process.faults_at(now)
        if faults:
            if FaultKind.LOSE_REQUESTS in faults:
                self._give_up_later(message, "is lost on its way")
                return
            out += faults.get(FaultKind.DELAY_REQUESTS, 0)
            message.back += faults.get(FaultKind.DELAY_REPLIES, 0)
            if FaultKind.LOSE_REPLIES in faults:
                message.back = -1
            if FaultKind.REPEAT_REQUESTS in faults:
                again = now + out + faults[FaultKind.REPEAT_REQUESTS]
                self.at(again, None, self._arrive_again, message)
        if out >= plan.patience:
            self._give_up_later(message, "will come late")
        self.at(now + out, None, self._arrive, message)

    def _arrive(self, message: Message) -> None:
        reply: Reply | StoreUnavailable = REFUSED
        if self.now >= self.store.down_until:
            reply = self._apply(message)
        elif not message.is_given_up and self.story is not None:
            self.tell(f"the store is down for {message.sender.name}")
        if message.is_given_up:
            return
        arrives = self.now + message.back
        if message.back < 0 or arrives > message.until:
            self._give_up_later(message, "gets no reply")
            return
        process = message.sender.process
        self.at(arrives, process, self._deliver, (message, reply), message.incarnation)

    def _arrive_again(self, message: Message) -> None:
        if self.now >= self.store.down_until:
            self.tell("the same command arrives once more")
            self._apply(message)

    def _apply(self, message: Message) -> Reply:
        command = message.command
        try:
            reply = self.store.apply(command, self.now)
        except Broken as broken:
            what = describe_command(command)
            self.tell(f"the store, on {message.sender.name}'s {what}: {broken.what}")
            raise
        if self.story is not None:
            what = describe_command(command)
            record = describe_record(self.store.records.get(command.id))
            self.tell(
                f"the store, on {message.sender.name}'s {what}: {describe_reply(reply)}"
                + ("" if type(command) is Look else f"; now {record}")
            )
        change = self.judge.last_change
        if self.met is not None and change is not None and change.command is command:
            self.met[kind_of(change)] += 1
        return reply

    def _give_up_later(self, message: Message, what: str) -> None:
        message.is_given_up = True
        if self.story is not None:
            self.tell(f"{message.sender.name}'s {describe_command(message.command)} {what}")
        process = message.sender.process
        when = max(self.now, message.until)
        self.at(when, process, self._deliver, (message, NO_ANSWER), message.incarnation)

    def _deliver(self, what: tuple[Message, Reply | StoreUnavailable]) -> None:
        message, reply = what
        if self.met is not None and reply is NO_ANSWER:
            self.met["no answer"] += 1
        if type(message.command) is Finish and type(reply) is Done:
            self.judge.acknowledged(message.command)
        message.then(CommandResult(reply, message.sent_at, message.sender.clock()))

    def defer(self, process: SimulatedProcess, command: Command) -> None:
        """Have a process send a command again later."""
        if self.met is not None:
            self.met["deferred write"] += 1
        DeferredWriterTask(self, process, self._owners).add(command)

    # --- faults -------------------------------------------------------------------------------

    def _fault(self, fault: Fault) -> None:
        kind = fault.kind
        process = self._processes[fault.process]
        until = self.now + fault.lasts
        self._busy_until = max(self._busy_until, until)
        if self.met is not None:
            self.met[kind.name] += 1
        if kind in WINDOWS:
            self.tell(f"{process.name} {kind.value} for {fault.lasts / 1000:.1f} ms")
            process.add_fault(fault, until)
        elif kind is FaultKind.CRASH:
            self.tell(f"{process.name} {kind.value}")
            tasks = list(process.attempts)
            process.kill()
            for task in tasks:
                task.killed()
        elif kind is FaultKind.PAUSE:
            self.tell(f"{process.name} {kind.value} for {fault.lasts / 1000:.1f} ms")
            process.paused_until = max(process.paused_until, until)
        elif kind is FaultKind.DEPLOY:
            self.tell(f"{process.name} {kind.value}")
            process.settings = self.plan.settings[1]
        elif kind is FaultKind.COMPLETER:
            self.tell(f"{process.name} {kind.value}")
            number = 4_000 + fault.number
            CompleterTask(self, process, number, fault.key).resume(None)
        elif kind in (FaultKind.OPERATOR, FaultKind.FREE_FAILED):
            free = kind is FaultKind.FREE_FAILED
            number = 5_000 + fault.number
            OperatorTask(self, self._desk, number, fault.key, free).resume(None)
        else:
            self._fault_of_store(fault, until)

    def _fault_of_store(self, fault: Fault, until: int) -> None:
        kind, store = fault.kind, self.store
        if kind is FaultKind.SWEEP:
            removed = store.sweep(self.now)
            self.tell(f"{kind.value} and removes {removed} records")
            if self.met is not None and removed:
                self.met["sweep"] += removed
        elif kind is FaultKind.CLOCK_AHEAD:
            self.tell(f"{kind.value} by {fault.amount / 1000:.1f} ms")
            store.offset += fault.amount
            self.judge.set_ahead_at = self.now
        elif kind is FaultKind.CLOCK_BACK:
            self.tell(f"{kind.value} by {fault.amount / 1000:.1f} ms")
            store.offset -= fault.amount
        else:
            self.tell(f"{kind.value} for {fault.lasts / 1000:.1f} ms")
            store.down_until = max(store.down_until, until)
            if kind is FaultKind.STORE_CRASH and not self.plan.durable:
                self.tell("the store has forgotten its last writes")
                store.forget(fault.amount, self.now)

    # --- the end ------------------------------------------------------------------------------

    def _check_rest(self) -> None:
        """I10, I11: no fault is left, and every lease is over. A new claim of each key that was
        used runs, or gets an outcome, or that it is unknown."""
        leases = [settings.times.lease for settings in self.plan.settings]
        self._spread = MILLISECOND
        used = {call.key for call in self.plan.calls}
        when = max(self.now, self._busy_until) + max(leases) + self.plan.set_back + MARGIN
        for key, id in enumerate(IDS):
            record = self.store.records.get(id)
            if key not in used:
                continue
            ended: list[AttemptOutcome | None] = []
            fingerprint = record.fingerprint if record is not None else REQUESTS[0]
            task = AttemptTask(
                self, self._desk, 6_000 + key, key, fingerprint, SHORT_BODY, ended.append
            )
            self.at(when, self._desk, task.resume)
            self._run_until_rest()
            outcome = ended[0] if ended else None
            if outcome is None or outcome.kind not in _AT_REST:
                kind = outcome.kind.value if outcome is not None else "no outcome"
                stored = describe_record(self.store.records.get(id))
                raise Broken("I10", f"at rest a new claim gets {kind}; the store has {stored}")
