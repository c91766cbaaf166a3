"""Every order of what several processes do while a key moves from one store to another.

Processes know the old store, the new one or both, and one copies. Each command that a process sends
to one of the stores is a step of its own, between any two of which the clock may tick, others may
act, and any process may crash. What they do is the code that ships: the rules of
stores/move/dual_program.py and the state machine. A process claims the key, acts on the outside
world while it believes that it holds the key, and stores its outcome.

Checked in every state: I1 (one effect that cannot be repeated), I5 (one owner at a time), I2 and I3
(all callers get one outcome), I4 (an outcome that a caller got is there for all who may come), I10
(once the leases are over the key is claimable, unknown or decided).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from tests.support.explorer.descriptions import describe_command, describe_record, describe_reply
from tests.support.explorer.generator_states import GeneratorState, GeneratorStates
from tests.support.explorer.scenario import KEY, SAME, START, TICK
from tests.support.explorer.search import Violation

from oncekey.core.commands import Busy, Claim, Claimed, Command, Done, Finish, Release, Replay
from oncekey.core.moved_records import Side
from oncekey.core.record import Record, State
from oncekey.core.state_machine import decide
from oncekey.stores.move import dual_program
from oncekey.stores.move.copy_rule import CopyResult, copy_record

LEASE, KEEP = 2 * TICK, 1_000 * TICK
STATES_MAX = 400_000


@dataclass(frozen=True)
class MovingActor:
    """One process. `knows` is "old", "new" or "both", or "copy" for `oncekey copy`. It begins when
    those that it is `after` have ended; all but the copy may also have crashed."""

    name: str
    knows: str
    retry_safe: bool = False
    after: tuple[str, ...] = ()

    @property
    def claim(self) -> Claim:
        owner = self.name.encode() * 16
        return Claim(KEY, owner, SAME, LEASE, KEEP, KEEP, self.retry_safe)


@dataclass(frozen=True)
class MoveScenario:
    """Who takes part; `ahead` is how much the new store's clock is ahead of the old one's."""

    name: str
    actors: tuple[MovingActor, ...]
    ticks: int
    crashes: int = 1
    ahead: int = 0
    seen_by: tuple[str, ...] = ("both",)  # who else may come at any time
    old: Record | None = None


class Act(NamedTuple):
    """The body acts on the outside world; or it says that it has not, and the key is released."""

    fence: int


class Wait(NamedTuple):
    """The copy looks again later."""


class Told(NamedTuple):
    """How a process ended: what its caller was told, if it was an outcome."""

    body: bytes = b""


def life(actor: MovingActor, rules: ModuleType) -> Generator[Any, Any, Told]:
    """What one process does."""
    if actor.knows == "copy":
        while True:
            result = yield from copy_record(KEY)
            if result is not CopyResult.HELD:
                return Told()
            yield Wait()
    reply = yield from _send(actor, rules, actor.claim)
    if isinstance(reply, Replay):
        return Told(reply.body)
    if not isinstance(reply, Claimed):
        return Told()
    has_acted = yield Act(reply.fence)
    claim = actor.claim
    if not has_acted:
        yield from _send(actor, rules, Release(KEY, claim.owner, reply.fence))
        return Told()
    body = actor.name.encode()
    finish = Finish(KEY, claim.owner, reply.fence, State.SUCCEEDED, body)
    ended = yield from _send(actor, rules, finish)
    return Told(body) if isinstance(ended, Done) else Told()


def _send(actor: MovingActor, rules: ModuleType, command: Command) -> Generator[Any, Any, Any]:
    if actor.knows == "both":
        return (yield from rules.RULES[type(command)](command))
    side = Side.OLD if actor.knows == "old" else Side.NEW
    reply = yield rules.Ask(side, command)
    return reply


class Process(NamedTuple):
    """One process: where it stands, and until when it believes that it holds the key."""

    state: GeneratorState | None
    sent_at: int = -1
    deadline: int = 0
    ended: bool = False


class MoveState(NamedTuple):
    """A state of the whole system. `told` is the outcome that a caller was told."""

    now: int
    records: tuple[Record | None, Record | None]
    processes: tuple[Process, ...]
    crashes: int
    acted: str = ""
    told: bytes = b""


class MoveReport(NamedTuple):
    """What an exploration saw."""

    scenario: str
    states: int
    transitions: int
    violation: Violation | None

    def __str__(self) -> str:
        return f"{self.scenario:<40} {self.states:>8,} states {self.transitions:>9,} transitions"


class MoveWorld:
    """Computes the successors of states in one scenario."""

    def __init__(self, scenario: MoveScenario, rules: ModuleType) -> None:
        self.scenario = scenario
        self.rules = rules
        self._flows = GeneratorStates()
        self._checked: dict[tuple[Any, ...], str | None] = {}

    def start(self) -> MoveState:
        processes = tuple(
            Process(self._flows.begin(lambda a=actor: life(a, self.rules)))  # type: ignore[misc]
            for actor in self.scenario.actors
        )
        records = (self.scenario.old, None)
        return MoveState(START, records, processes, self.scenario.crashes)

    def transitions(self, state: MoveState) -> Iterator[tuple[str, MoveState, str | None]]:
        """Everything that can happen next: in words, the state after it, and what it breaks."""
        if state.now < START + self.scenario.ticks * TICK:
            now = state.now + TICK
            yield f"clock -> {now}", state._replace(now=now), None
        for index, process in enumerate(state.processes):
            if process.state is None or not self._may_begin(state, index):
                continue
            name = self.scenario.actors[index].name
            if state.crashes and process.sent_at >= 0:
                after = self._with(state, index, Process(None))
                yield f"{name} crashes", after._replace(crashes=state.crashes - 1), None
            effect: Any = process.state.effect
            if isinstance(effect, Act):
                yield from self._act(state, index, process)
            elif isinstance(effect, Wait):
                yield f"{name} waits", self._advance(state, index, process, None), None
            else:
                yield self._ask(state, index, process, effect)

    def _may_begin(self, state: MoveState, index: int) -> bool:
        actors = self.scenario.actors
        for other, process in zip(actors, state.processes, strict=True):
            if other.name in actors[index].after and process.state is not None:
                return False
            # A copy that has crashed has not said that everything was copied.
            if other.name in actors[index].after and other.knows == "copy" and not process.ended:
                return False
        return True

    def _ask(
        self, state: MoveState, index: int, process: Process, ask: Any
    ) -> tuple[str, MoveState, str | None]:
        if process.sent_at < 0:
            process = process._replace(sent_at=state.now)
        now = state.now + (self.scenario.ahead if ask.side is Side.NEW else 0)
        before = state.records[ask.side]
        reply, write, _ = decide(before, ask.command, now)
        records = list(state.records)
        if write is not None:
            records[ask.side] = write
        after = state._replace(records=(records[0], records[1]))
        after = self._advance(after, index, process, reply)
        name, where = self.scenario.actors[index].name, ask.side.name.lower()
        words = f"{name}'s {describe_command(ask.command)} in the {where} store: "
        words += describe_reply(reply)
        if write is not None:
            words += f"; {describe_record(write)}"
        return words, after, self._contradiction(state, after)

    def _act(
        self, state: MoveState, index: int, process: Process
    ) -> Iterator[tuple[str, MoveState, str | None]]:
        actor = self.scenario.actors[index]
        yield f"{actor.name} has not begun", self._advance(state, index, process, False), None
        if state.now >= process.sent_at + LEASE:
            return  # no body begins after its deadline
        broken = None
        if state.acted and not actor.retry_safe:
            broken = f"I1: {state.acted} has acted already, and {actor.name} acts again"
        for other, rival in zip(self.scenario.actors, state.processes, strict=True):
            is_held = state.now < rival.deadline and rival.state is not None
            if broken is None and rival is not process and is_held:
                broken = f"I5: {other.name} may still act, and {actor.name} acts"
        holding = process._replace(deadline=process.sent_at + LEASE)
        after = self._advance(state._replace(acted=actor.name), index, holding, True)
        yield f"{actor.name} acts", after, broken

    def _advance(self, state: MoveState, index: int, process: Process, result: Any) -> MoveState:
        assert process.state is not None
        flow = self._flows.advance(process.state, result)
        if flow.raised is not None:
            raise flow.raised
        if flow.effect is not None:
            return self._with(state, index, process._replace(state=flow))
        told = flow.value
        assert isinstance(told, Told)
        after = self._with(state, index, Process(None, ended=True))
        return after._replace(told=told.body) if told.body else after

    @staticmethod
    def _with(state: MoveState, index: int, process: Process) -> MoveState:
        processes = (*state.processes[:index], process, *state.processes[index + 1 :])
        return state._replace(processes=processes)

    @staticmethod
    def _contradiction(before: MoveState, after: MoveState) -> str | None:
        if before.told and after.told != before.told:
            return f"I2: a caller was told {before.told!r}, and another one {after.told!r}"
        return None

    def check(self, state: MoveState) -> str | None:
        """What is wrong in this state, seen by those who may come now or after the leases."""
        memo = (state.now, state.records, state.told)
        if memo not in self._checked:
            self._checked[memo] = self._check(state)
        return self._checked[memo]

    def _check(self, state: MoveState) -> str | None:
        for knows in self.scenario.seen_by:
            for wait in (0, LEASE):
                visitor = MovingActor("V", knows)
                reply = self._visit(visitor, state, state.now + wait)
                if state.told and not (isinstance(reply, Replay) and reply.body == state.told):
                    return f"I4: a caller was told {state.told!r}; who knows {knows}: {reply}"
                if wait and isinstance(reply, Busy):
                    return f"I10: after the lease, who knows {knows} gets {reply}"
        return None

    def _visit(self, visitor: MovingActor, state: MoveState, now: int) -> Any:
        """The reply to one more claim, all of whose commands come in a row."""
        records = list(state.records)
        sending = _send(visitor, self.rules, visitor.claim)
        reply: Any = None
        while True:
            try:
                ask = sending.send(reply)
            except StopIteration as end:
                return end.value
            time = now + (self.scenario.ahead if ask.side is Side.NEW else 0)
            reply, write, _ = decide(records[ask.side], ask.command, time)
            if write is not None:
                records[ask.side] = write


def explore_move(scenario: MoveScenario, rules: ModuleType = dual_program) -> MoveReport:
    """Visit every reachable state, breadth first, or stop at the first violation."""
    world = MoveWorld(scenario, rules)
    start = world.start()
    ways: dict[MoveState, tuple[MoveState, str] | None] = {start: None}
    queue = deque([start])
    transitions = 0
    while queue:
        state = queue.popleft()
        for words, after, breaks in world.transitions(state):
            transitions += 1
            broken = breaks
            if broken is None and after not in ways:
                ways[after] = (state, words)
                queue.append(after)
                broken = world.check(after)
            if broken is not None:
                trace = _trace(ways, state, words)
                number, _, what = broken.partition(": ")
                violation = Violation(number, what, trace)
                return MoveReport(scenario.name, len(ways), transitions, violation)
        if len(ways) > STATES_MAX:
            raise RuntimeError(f"{scenario.name}: more than {STATES_MAX:,} states; bound it more")
    return MoveReport(scenario.name, len(ways), transitions, None)


def _trace(
    ways: dict[MoveState, tuple[MoveState, str] | None], state: MoveState, last: str
) -> tuple[str, ...]:
    words = [last]
    way = ways[state]
    while way is not None:
        words.append(way[1])
        way = ways[way[0]]
    return tuple(reversed(words))
