"""The whole system as immutable states: one store, one clock, some attempts, and the wire.

A state names everything that can matter later. Its parts are interned, so states compare by
identity of their parts, and what a part can do is worked out once. The invariants are judged
where something happens: on decisions, sweeps, effects and verdicts, and on every new state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.support.explorer import invariants as rules
from tests.support.explorer.kinds import kind_of
from tests.support.explorer.kit import Kit
from tests.support.explorer.ledger import (
    Book,
    Change,
    Effect,
    Ledger,
    Ledgers,
    acknowledged,
    turned,
)
from tests.support.explorer.options import Option, Options
from tests.support.explorer.process import Message, Proc
from tests.support.explorer.scenario import START, TICK, Scenario
from tests.support.explorer.words import command_words, record_words, reply_words

from oncekey.core.commands import Lost, Reply
from oncekey.core.record import Record


class Cell:
    """What the store holds for the key, and the highest fence it has deleted; equal contents are
    one object."""

    __slots__ = ("floor", "record")

    def __init__(self, record: Record | None, floor: int) -> None:
        self.record = record
        self.floor = floor


class Whole(NamedTuple):
    """A state of everything."""

    now: int
    cell: Cell
    ledger: Ledger
    losses: int
    crashes: int
    wire: tuple[Message, ...]
    procs: tuple[Proc, ...]
    set_backs: int  # how often the clock may still be set back


class Broken(NamedTuple):
    """An invariant's number and what is wrong."""

    invariant: str
    what: str


class Step(NamedTuple):
    words: str
    kind: str
    after: Whole
    broken: Broken | None = None


class Applied(NamedTuple):
    """One decision of the store, judged."""

    cell: Cell
    ledger: Ledger
    reply: Reply
    kind: str
    words: str
    broken: Broken | None


class World:
    """The successors of states in one scenario, for one kit."""

    def __init__(self, scenario: Scenario, kit: Kit) -> None:
        self.scenario = scenario
        self._kit = kit
        self.options = Options(kit)
        self._ledgers = Ledgers()
        self._cells: dict[tuple[Record | None, int], Cell] = {}
        self._applied: dict[tuple[Cell, Message, int, Ledger], Applied] = {}
        self._answered: dict[tuple[Option, Applied], Proc] = {}
        self._heard: dict[tuple[Proc, int], Option] = {}
        self._judged: dict[tuple[Cell, int, Ledger], Broken | None] = {}
        actors = scenario.actors
        self._longest = TICK * (
            max(a.lease for a in actors)
            + max(max(a.keep, a.keep_unknown or 0) for a in actors)
            + max(a.audit for a in actors)
        )

    def start(self) -> Whole:
        procs = tuple(self.options.start(actor) for actor in self.scenario.actors)
        ledger = self._ledgers.of(Book())
        crashes, losses = self.scenario.crashes, self.scenario.losses
        cell, set_backs = self._cell(None, 0), self.scenario.set_backs
        return Whole(START, cell, ledger, losses, crashes, (), procs, set_backs)

    def steps(self, state: Whole) -> Iterator[Step]:
        """Everything that can happen next."""
        if state.now < self.scenario.until:
            yield self._tick(state)
        record = state.cell.record
        if record is not None and self._kit.is_garbage(record, state.now):
            yield self._sweep(state, record)
        # Owners count on clocks of their own, which nobody sets back. Here there is one clock for
        # all, so it is set back only while there is no owner.
        idle = state.set_backs and all(proc.hold is None for proc in state.procs)
        if idle and record is None and state.cell.floor:
            yield self._set_back(state)
        for place, message in enumerate(state.wire):
            yield self._arrival(state, place, message)
        now, losses, crashes = state.now, state.losses, state.crashes
        options_of = self.options.of
        for index, proc in enumerate(state.procs):
            for option in options_of(proc, now):
                if option.losses <= losses and option.crashes <= crashes:
                    if option.applies is not None:
                        yield self._application(state, index, option, option.applies)
                    elif option.truth is None or option.truth is _acted(state):
                        yield self._move(state, index, option)

    def check(self, state: Whole) -> Broken | None:
        """The invariants of a state."""
        now, record = state.now, state.cell.record
        for proc in state.procs:
            if proc.hold is not None:
                what = rules.i5_owner_holds(record, proc.hold, now)
                if what is not None:
                    return Broken("I5", what)
        memo = (state.cell, now, state.ledger)
        if memo not in self._judged:
            self._judged[memo] = self._judge(state)
        return self._judged[memo]

    def _judge(self, state: Whole) -> Broken | None:
        now, record = state.now, state.cell.record
        kit, longest = self._kit, self._longest
        return (
            _broken("I4", rules.i4_acked_stays(record, now, state.ledger.book))
            or _broken("I10", rules.i10_a_crashed_key_answers(record, now, kit))
            or _broken("I11", rules.i11_nothing_stays_for_ever(record, now, kit, longest))
        )

    # --- time and garbage ----------------------------------------------------------------------

    def _tick(self, state: Whole) -> Step:
        now = state.now + TICK
        ledger = state.ledger
        if ledger.book.acked is not None and now >= ledger.book.acked.until:
            ledger = self._ledgers.of(ledger.book._replace(acked=None))
        return Step(f"clock -> {now}", "tick", state._replace(now=now, ledger=ledger))

    def _sweep(self, state: Whole, record: Record) -> Step:
        what = rules.i12_sweep_spares_the_living(record, state.now)
        words = f"the sweeper removes: {record_words(record)}"
        # Where the clock only goes on, the floor decides nothing and would only make more states.
        floor = max(state.cell.floor, record.fence) if self.scenario.set_backs else 0
        after = state._replace(cell=self._cell(None, floor))
        return Step(words, "sweep", after, _broken("I12", what))

    def _set_back(self, state: Whole) -> Step:
        """By all the time that has passed: nothing is left of what was there."""
        after = state._replace(now=START, set_backs=state.set_backs - 1)
        return Step(f"clock is set back to {START}", "set back", after)

    # --- the store -----------------------------------------------------------------------------

    def _application(self, state: Whole, index: int, option: Option, message: Message) -> Step:
        applied = self._apply(state, message)
        memo = (option, applied)
        proc = self._answered.get(memo)
        if proc is None:
            proc = self._answered[memo] = self.options.applied(option, applied.reply)
        procs = state.procs
        after = Whole(
            state.now, applied.cell, applied.ledger, state.losses, state.crashes, state.wire,
            (*procs[:index], proc, *procs[index + 1 :]), state.set_backs,
        )  # fmt: skip
        if not proc.actor.quick or applied.broken is not None:
            return Step(applied.words, applied.kind, after, applied.broken)
        heard = self._heard.get((proc, state.now))
        if heard is None:
            heard = self.options.delivery(proc, state.now, beating=option.beating)
            self._heard[proc, state.now] = heard
        last = self._move(after, index, heard)
        words = f"{option.words}; {applied.words}; {last.words}"
        return Step(words, applied.kind, last.after, last.broken)

    def _arrival(self, state: Whole, place: int, message: Message) -> Step:
        """A command whose sender no longer listens."""
        applied = self._apply(state, message)
        after = state._replace(
            cell=applied.cell,
            ledger=applied.ledger,
            wire=(*state.wire[:place], *state.wire[place + 1 :]),
        )
        return Step(f"late: {applied.words}", f"late: {applied.kind}", after, applied.broken)

    def _apply(self, state: Whole, message: Message) -> Applied:
        memo = (state.cell, message, state.now, state.ledger)
        known = self._applied.get(memo)
        if known is None:
            known = self._applied[memo] = self._decide(state, message)
        return known

    def _decide(self, state: Whole, message: Message) -> Applied:
        before, now, book = state.cell.record, state.now, state.ledger.book
        command = message.command
        said = f"store, on {message.actor.name}'s {command_words(command)}"
        try:
            reply, wrote, _ = self._kit.decide(before, command, now, state.cell.floor)
            new = turned(book, before, command, now, reply, wrote)
            change = Change(before, command, now, reply, wrote, book, new)
            broken = self._verify(change)
        except Exception as error:  # a bug of the machine, to be shown with the way there
            broken = Broken("machine", f"it raised {error!r}")
            return Applied(state.cell, state.ledger, Lost(), "error", f"{said}: error", broken)
        words = f"{said}: {reply_words(reply)}"
        if wrote is not None:
            words = f"{words}; {record_words(wrote)}"
        cell = self._cell(change.after, state.cell.floor)
        return Applied(cell, self._ledgers.of(new), reply, kind_of(change), words, broken)

    def _verify(self, change: Change) -> Broken | None:
        for number, rule in rules.ON_CHANGE:
            what = rule(change)
            if what is not None:
                return Broken(number, what)
        return _broken("I9", rules.i9_repeatable(change, self._kit)) or _broken(
            "I7", rules.i7_duplicates_are_told_alike(change, self._kit)
        )

    # --- a process's own moves -----------------------------------------------------------------

    def _move(self, state: Whole, index: int, option: Option) -> Step:
        ledger, broken = state.ledger, None
        if option.acts:
            ledger, broken = self._act(state, index)
        elif option.verdict is not None:
            actor, book = option.after.actor, ledger.book
            broken = _broken(
                "I13", rules.i13_durable_first(option.verdict, actor, book)
            ) or _broken("I3", rules.i3_verdict_is_stored(option.verdict, actor, book))
        elif option.broke is not None:
            broken = Broken("flow", f"it raised {option.broke!r}")
        if option.acked is not None:
            ledger = self._ledgers.of(acknowledged(ledger.book, option.acked))
        wire = state.wire
        if option.leaves:
            wire = tuple(sorted((*wire, *option.leaves), key=lambda message: message.number))
        procs = state.procs
        after = Whole(
            state.now, state.cell, ledger, state.losses - option.losses,
            state.crashes - option.crashes, wire,
            (*procs[:index], option.after, *procs[index + 1 :]), state.set_backs,
        )  # fmt: skip
        return Step(option.words, option.kind, after, broken)

    def _act(self, state: Whole, index: int) -> tuple[Ledger, Broken | None]:
        proc = state.procs[index]
        assert proc.hold is not None
        book = state.ledger.book
        what = rules.i1_at_most_one_effect(
            state.cell.record, proc.actor, proc.hold, state.now, book
        )
        effect = Effect.REPEATABLE if proc.actor.retry_safe else Effect.FINAL
        return self._ledgers.of(book._replace(effect=effect)), _broken("I1", what)

    def _cell(self, record: Record | None, floor: int) -> Cell:
        known = self._cells.get((record, floor))
        if known is None:
            known = self._cells[record, floor] = Cell(record, floor)
        return known


def _acted(state: Whole) -> bool:
    return state.ledger.book.effect is not Effect.NONE


def _broken(invariant: str, what: str | None) -> Broken | None:
    return None if what is None else Broken(invariant, what)
