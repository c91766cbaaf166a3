"""The whole system as immutable states: one store, one clock, some attempts, and the wire.

A state holds everything that can matter later. Its parts are interned, so states compare by the
identity of their parts, and what a part can do is computed once. The invariants are checked where
something happens: on decisions, sweeps, side effects and outcomes, and on every new state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.support.explorer import invariants as rules
from tests.support.explorer import window_rules
from tests.support.explorer.code_under_test import CodeUnderTest
from tests.support.explorer.decision_labels import kind_of
from tests.support.explorer.descriptions import describe_command, describe_record, describe_reply
from tests.support.explorer.ledger import (
    Change,
    Interner,
    Ledger,
    LedgerPage,
    SideEffect,
    acknowledged,
    page_after,
)
from tests.support.explorer.moves import Move, Moves
from tests.support.explorer.process import Message, Process
from tests.support.explorer.scenario import START, TICK, Scenario

from oncekey.core.commands import Lost, Reply
from oncekey.core.record import Record


class Cell:
    """What the store holds for the key, and the highest fence it has deleted. There is one object
    per content."""

    __slots__ = ("floor", "record")

    def __init__(self, record: Record | None, floor: int) -> None:
        self.record = record
        self.floor = floor


class WorldState(NamedTuple):
    """A state of the whole system."""

    now: int
    cell: Cell
    ledger: Ledger
    losses: int
    crashes: int
    wire: tuple[Message, ...]
    processes: tuple[Process, ...]
    set_backs: int  # how often the clock may still be set back


class BrokenInvariant(NamedTuple):
    """The number of an invariant, and what is wrong."""

    invariant: str
    what: str


class Transition(NamedTuple):
    """One thing that can happen: as text, its kind, and the state after it."""

    words: str
    kind: str
    after: WorldState
    broken: BrokenInvariant | None = None


class Applied(NamedTuple):
    """One decision of the store, and which invariant it broke, if any."""

    cell: Cell
    ledger: Ledger
    reply: Reply
    kind: str
    words: str
    broken: BrokenInvariant | None


class World:
    """Computes the successors of states in one scenario."""

    def __init__(self, scenario: Scenario, code: CodeUnderTest) -> None:
        self.scenario = scenario
        self._code = code
        self.moves = Moves(code)
        self._ledgers = Interner()
        self._cells: dict[tuple[Record | None, int], Cell] = {}
        self._applied: dict[tuple[Cell, Message, int, Ledger], Applied] = {}
        self._replied: dict[tuple[Move, Applied], Process] = {}
        self._delivered: dict[tuple[Process, int], Move] = {}
        self._checked: dict[tuple[Cell, int, Ledger], BrokenInvariant | None] = {}
        actors = scenario.actors
        self._longest = TICK * (
            max(a.lease for a in actors)
            + max(max(a.keep, a.keep_unknown or 0) for a in actors)
            + max(a.audit for a in actors)
        )

    def start(self) -> WorldState:
        processes = tuple(self.moves.start(actor) for actor in self.scenario.actors)
        ledger = self._ledgers.of(LedgerPage())
        crashes, losses = self.scenario.crashes, self.scenario.losses
        cell, set_backs = self._cell(None, 0), self.scenario.set_backs
        return WorldState(START, cell, ledger, losses, crashes, (), processes, set_backs)

    def transitions(self, state: WorldState) -> Iterator[Transition]:
        """Everything that can happen next."""
        if state.now < self.scenario.until:
            yield self._tick(state)
        record = state.cell.record
        if record is not None and self._code.is_garbage(record, state.now):
            yield self._sweep(state, record)
        # Owners count on clocks of their own, which nobody sets back. Here there is one clock for
        # all, so it is set back only while there is no owner.
        idle = state.set_backs and all(process.held is None for process in state.processes)
        if idle and record is None and state.cell.floor:
            yield self._set_back(state)
        for place, message in enumerate(state.wire):
            yield self._arrival(state, place, message)
        now, losses, crashes = state.now, state.losses, state.crashes
        moves_of = self.moves.of
        for index, process in enumerate(state.processes):
            for move in moves_of(process, now):
                if move.losses <= losses and move.crashes <= crashes:
                    if move.applies is not None:
                        yield self._application(state, index, move, move.applies)
                    elif move.truth is None or move.truth is _acted(state):
                        yield self._move(state, index, move)

    def check(self, state: WorldState) -> BrokenInvariant | None:
        """Check the invariants that hold in every state."""
        now, record = state.now, state.cell.record
        for process in state.processes:
            if process.held is not None:
                what = rules.i5_owner_holds(record, process.held, now)
                if what is not None:
                    return BrokenInvariant("I5", what)
        memo = (state.cell, now, state.ledger)
        if memo not in self._checked:
            self._checked[memo] = self._check_record(state)
        return self._checked[memo]

    def _check_record(self, state: WorldState) -> BrokenInvariant | None:
        now, record = state.now, state.cell.record
        code, longest = self._code, self._longest
        return (
            _broken("I4", rules.i4_acked_stays(record, now, state.ledger.page))
            or _broken("I10", rules.i10_a_crashed_key_recovers(record, now, code))
            or _broken("I11", rules.i11_everything_expires(record, now, code, longest))
        )

    # --- time and garbage ----------------------------------------------------------------------

    def _tick(self, state: WorldState) -> Transition:
        now = state.now + TICK
        ledger = state.ledger
        if ledger.page.acked is not None and now >= ledger.page.acked.until:
            ledger = self._ledgers.of(ledger.page._replace(acked=None))
        return Transition(f"clock -> {now}", "tick", state._replace(now=now, ledger=ledger))

    def _sweep(self, state: WorldState, record: Record) -> Transition:
        what = rules.i12_sweep_removes_garbage_only(record, state.now)
        words = f"the sweeper removes: {describe_record(record)}"
        # If the clock is never set back, the floor decides nothing and would only add states.
        floor = max(state.cell.floor, record.fence) if self.scenario.set_backs else 0
        after = state._replace(cell=self._cell(None, floor))
        return Transition(words, "sweep", after, _broken("I12", what))

    def _set_back(self, state: WorldState) -> Transition:
        """Set the clock back to the start; no record is left from before."""
        after = state._replace(now=START, set_backs=state.set_backs - 1)
        return Transition(f"clock is set back to {START}", "set back", after)

    # --- the store -----------------------------------------------------------------------------

    def _application(
        self, state: WorldState, index: int, move: Move, message: Message
    ) -> Transition:
        applied = self._apply(state, message)
        memo = (move, applied)
        process = self._replied.get(memo)
        if process is None:
            process = self._replied[memo] = self.moves.applied(move, applied.reply)
        processes = state.processes
        after = WorldState(
            state.now, applied.cell, applied.ledger, state.losses, state.crashes, state.wire,
            (*processes[:index], process, *processes[index + 1 :]), state.set_backs,
        )  # fmt: skip
        if not process.actor.quick or applied.broken is not None:
            return Transition(applied.words, applied.kind, after, applied.broken)
        delivered = self._delivered.get((process, state.now))
        if delivered is None:
            delivered = self.moves.delivery(process, state.now, beating=move.beating)
            self._delivered[process, state.now] = delivered
        last = self._move(after, index, delivered)
        words = f"{move.words}; {applied.words}; {last.words}"
        return Transition(words, applied.kind, last.after, last.broken)

    def _arrival(self, state: WorldState, place: int, message: Message) -> Transition:
        """A command arrives whose sender no longer waits for the reply."""
        applied = self._apply(state, message)
        after = state._replace(
            cell=applied.cell,
            ledger=applied.ledger,
            wire=(*state.wire[:place], *state.wire[place + 1 :]),
        )
        return Transition(f"late: {applied.words}", f"late: {applied.kind}", after, applied.broken)

    def _apply(self, state: WorldState, message: Message) -> Applied:
        memo = (state.cell, message, state.now, state.ledger)
        known = self._applied.get(memo)
        if known is None:
            known = self._applied[memo] = self._decide(state, message)
        return known

    def _decide(self, state: WorldState, message: Message) -> Applied:
        before, now, page = state.cell.record, state.now, state.ledger.page
        command = message.command
        text = f"store, on {message.actor.name}'s {describe_command(command)}"
        try:
            reply, wrote, _ = self._code.decide(before, command, now, state.cell.floor)
            new = page_after(page, before, command, now, reply, wrote)
            change = Change(before, command, now, reply, wrote, page, new)
            broken = self._verify(change)
        except Exception as error:  # a bug of the state machine, which is shown with the way there
            broken = BrokenInvariant("machine", f"it raised {error!r}")
            return Applied(state.cell, state.ledger, Lost(), "error", f"{text}: error", broken)
        words = f"{text}: {describe_reply(reply)}"
        if wrote is not None:
            words = f"{words}; {describe_record(wrote)}"
        cell = self._cell(change.after, state.cell.floor)
        return Applied(cell, self._ledgers.of(new), reply, kind_of(change), words, broken)

    def _verify(self, change: Change) -> BrokenInvariant | None:
        for number, rule in rules.ON_CHANGE:
            what = rule(change)
            if what is not None:
                return BrokenInvariant(number, what)
        for number, asking_rule in (*rules.ON_CHANGE_ASKING, *window_rules.ON_CHANGE_ASKING):
            what = asking_rule(change, self._code)
            if what is not None:
                return BrokenInvariant(number, what)
        return None

    # --- a process's own moves -----------------------------------------------------------------

    def _move(self, state: WorldState, index: int, move: Move) -> Transition:
        ledger, broken = state.ledger, None
        if move.acts:
            ledger, broken = self._act(state, index)
        elif move.outcome is not None:
            actor, page = move.after.actor, ledger.page
            broken = _broken("I13", rules.i13_durable_first(move.outcome, actor, page)) or _broken(
                "I3", rules.i3_replay_is_stored(move.outcome, actor, page)
            )
        elif move.raised is not None:
            broken = BrokenInvariant("flow", f"it raised {move.raised!r}")
        if move.acked is not None:
            ledger = self._ledgers.of(acknowledged(ledger.page, move.acked))
        wire = state.wire
        if move.leaves:
            wire = tuple(sorted((*wire, *move.leaves), key=lambda message: message.number))
        processes = state.processes
        after = WorldState(
            state.now, state.cell, ledger, state.losses - move.losses,
            state.crashes - move.crashes, wire,
            (*processes[:index], move.after, *processes[index + 1 :]), state.set_backs,
        )  # fmt: skip
        return Transition(move.words, move.kind, after, broken)

    def _act(self, state: WorldState, index: int) -> tuple[Ledger, BrokenInvariant | None]:
        process = state.processes[index]
        assert process.held is not None
        page = state.ledger.page
        what = rules.i1_at_most_one_effect(
            state.cell.record, process.actor, process.held, state.now, page
        )
        effect = SideEffect.REPEATABLE if process.actor.retry_safe else SideEffect.FINAL
        return self._ledgers.of(page._replace(effect=effect)), _broken("I1", what)

    def _cell(self, record: Record | None, floor: int) -> Cell:
        known = self._cells.get((record, floor))
        if known is None:
            known = self._cells[record, floor] = Cell(record, floor)
        return known


def _acted(state: WorldState) -> bool:
    return state.ledger.page.effect is not SideEffect.NONE


def _broken(invariant: str, what: str | None) -> BrokenInvariant | None:
    return None if what is None else BrokenInvariant(invariant, what)
