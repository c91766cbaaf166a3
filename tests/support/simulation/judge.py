"""The judge of a simulated world: what has really happened to each key, and what that breaks.

The checks of single decisions, outcomes and states are the explorer's. Those that need time,
several generations or the end of a world are here. The judge sees everything at once, which nobody
in the world does; it calls no code under test but to ask what would happen to another claim.
"""

from __future__ import annotations

from tests.support.explorer import invariants as rules
from tests.support.explorer import window_rules
from tests.support.explorer.code_under_test import CodeUnderTest
from tests.support.explorer.descriptions import describe_record
from tests.support.explorer.ledger import (
    ENDED,
    Change,
    LedgerPage,
    SideEffect,
    acknowledged,
    is_live,
    page_after,
)
from tests.support.explorer.process import HeldClaim
from tests.support.explorer.scenario import Actor
from tests.support.simulation.plan import IDS, KEYS, Plan
from tests.support.simulation.simulated_process import SimulatedProcess

from oncekey.core.commands import Claim, Claimed, Command, Finish, Look, Resolve, SaveStep
from oncekey.core.effects import AttemptOutcome
from oncekey.core.record import Record, State
from oncekey.core.state_machine import Decision


class Broken(Exception):
    """An invariant that does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(invariant, what)
        self.invariant = invariant
        self.what = what


class Owner:
    """What the judge has to know of an attempt whose body runs."""

    __slots__ = (
        "actor", "careful", "claim_is_lost", "deadline", "held", "lease", "process", "will_act",
    )  # fmt: skip

    def __init__(
        self,
        actor: Actor,
        process: SimulatedProcess,
        held: HeldClaim,
        lease: int,
        careful: bool,
        will_act: bool,
    ) -> None:
        self.actor = actor
        self.process = process
        self.held = held
        self.lease = lease
        self.deadline = held.deadline
        self.careful = careful
        self.will_act = will_act
        self.claim_is_lost = False

    def is_lost(self, now: int) -> bool:
        """As `attempt.lost`: it reads its own clock too."""
        return self.claim_is_lost or self.process.clock(now) >= self.deadline

    def may_still_act(self, now: int) -> bool:
        """True if its body may act without asking the store first."""
        return self.will_act and not (self.careful and self.is_lost(now))


class KeyHistory:
    """What has happened to one key.

    effects     what bodies did to the outside world, by generation
    generation  the present one; a fence belongs to the generation that it was granted in
    done        the finished steps of this generation, and by fence those its owner was to be given
    saved       the steps of which an owner has stored something, by its fence
    owners      those who believe that they hold the key, and by fence whoever had begun a body
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.page = LedgerPage()
        self.generation = 0
        self.generations: dict[int, int] = {}
        self.effects: dict[int, SideEffect] = {}
        self.done: set[str] = set()
        self.done_before: dict[int, frozenset[str]] = {}
        self.saved: set[tuple[int, str]] = set()
        self.called: set[tuple[int, str]] = set()
        self.holders: dict[Owner, None] = {}
        self.owners: dict[int, Owner] = {}
        self.swept = 0

    def effect_under(self, fence: int) -> SideEffect:
        """What bodies did in the generation of this fence."""
        return self.effects.get(self.generations.get(fence, -1), SideEffect.NONE)

    def begins_anew(self) -> None:
        """A new generation: whatever was done before does not count against it."""
        page = self.page
        self.page = page._replace(ends=(), past=(*page.past, *page.ends), acked=None)
        self.generation += 1
        self.done = set()


class Judge:
    """Checks one world, which moves `now`."""

    def __init__(self, plan: Plan, code: CodeUnderTest) -> None:
        self._code = code
        self._longest = plan.longest
        self.keys = {id: KeyHistory(name) for id, name in zip(IDS, KEYS, strict=True)}
        self.now = 0
        self.set_ahead_at = -1  # when the store's clock was last set ahead
        self.last_change: Change | None = None

    # --- decisions of the store ---------------------------------------------------------------

    def decided(
        self, before: Record | None, command: Command, clock: int, decision: Decision
    ) -> None:
        """The store has decided a command."""
        reply, wrote = decision.reply, decision.write
        if type(command) is Look:
            return
        history = self.keys[command.id]
        old = history.page
        new = page_after(old, before, command, clock, reply, wrote)
        change = self.last_change = Change(before, command, clock, reply, wrote, old, new)
        for number, rule in rules.ON_CHANGE:
            _expect(number, rule(change))
        for number, asking_rule in (*rules.ON_CHANGE_ASKING, *window_rules.ON_CHANGE_ASKING):
            _expect(number, asking_rule(change, self._code))
        if wrote is None:
            return
        history.page = new
        if type(command) is Claim and type(reply) is Claimed:
            self._granted(history, before, clock, reply)
        elif type(command) is SaveStep:
            history.saved.add((command.fence, command.name))
            if command.done:
                history.done.add(command.name)
        elif type(command) is Resolve and before is not None and before.state is State.FAILED:
            history.begins_anew()  # an operator says that it may run again
        self.look_at(command.id, wrote, clock)

    def _granted(
        self, history: KeyHistory, before: Record | None, clock: int, reply: Claimed
    ) -> None:
        if not is_live(before, clock):
            history.begins_anew()
        fence = reply.fence
        history.generations.setdefault(fence, history.generation)
        done = frozenset(history.done)
        missing = done - {step.name for step in reply.steps if step.done}
        if missing:
            raise Broken("I4", f"fence {fence} is not told of finished steps: {sorted(missing)}")
        history.done_before.setdefault(fence, done)

    def look_at(self, id: bytes, record: Record | None, clock: int) -> None:
        """Check what must hold whenever a record has changed."""
        history, code = self.keys[id], self._code
        for owner in history.holders:
            if self._counts_on_its_claim(owner):
                own_clock = owner.process.clock(self.now)
                held = owner.held._replace(deadline=owner.deadline)
                _expect("I5", rules.i5_owner_holds(record, held, own_clock))
        _expect("I4", rules.i4_acked_stays(record, clock, history.page))
        _expect("I10", rules.i10_a_crashed_key_recovers(record, clock, code))
        _expect("I11", rules.i11_everything_expires(record, clock, code, self._longest))

    def swept(self, record: Record, clock: int) -> None:
        """The sweeper has removed a record."""
        _expect("I12", rules.i12_sweep_removes_garbage_only(record, clock))
        history = self.keys[record.id]
        history.swept = record.fence
        history.page = history.page._replace(acked=None)

    # --- owners -------------------------------------------------------------------------------

    def begun(self, id: bytes, owner: Owner, record: Record | None) -> None:
        """A body begins; until its deadline its owner counts on its claim."""
        history = self.keys[id]
        history.owners[owner.held.fence] = owner
        history.holders[owner] = None
        own_clock = owner.process.clock(self.now)
        if own_clock >= owner.deadline:
            raise Broken("I5", f"{owner.actor.name}'s body begins after its own deadline")
        if self._counts_on_its_claim(owner):
            _expect("I5", rules.i5_owner_holds(record, owner.held, own_clock))

    def acts(self, id: bytes, owner: Owner, record: Record | None, retry_safe: bool) -> None:
        """A body acts on the outside world."""
        history = self.keys[id]
        fence = owner.held.fence
        effect = history.effect_under(fence)
        own_clock = owner.process.clock(self.now)
        if not owner.is_lost(self.now) and self._counts_on_its_claim(owner):
            page = history.page._replace(effect=effect)
            what = rules.i1_at_most_one_effect(record, owner.actor, owner.held, own_clock, page)
            _expect("I1", what)
        elif effect is SideEffect.FINAL and not retry_safe:
            name = owner.actor.name
            raise Broken("I1", f"{name} acts, and its generation already had an effect")
        done = SideEffect.REPEATABLE if retry_safe else SideEffect.FINAL
        history.effects[history.generations[fence]] = max(effect, done)

    def step_called(self, id: bytes, owner: Owner, name: str) -> None:
        """A body calls the function of a step."""
        history = self.keys[id]
        fence = owner.held.fence
        if name in history.done_before.get(fence, ()):
            raise Broken("I1", f"{owner.actor.name} calls step {name!r}, which had finished before")
        if (fence, name) not in history.saved:
            raise Broken(
                "I1", f"{owner.actor.name} calls step {name!r}, whose intent is not stored"
            )
        history.called.add((history.generations[fence], name))

    def acknowledged(self, finish: Finish) -> None:
        """An owner has got the reply that its outcome is stored."""
        if finish.state in ENDED:
            history = self.keys[finish.id]
            history.page = acknowledged(history.page, finish)

    def ended(self, id: bytes, actor: Actor, outcome: AttemptOutcome) -> None:
        """A caller gets its outcome."""
        page = self.keys[id].page
        _expect("I13", rules.i13_durable_first(outcome, actor, page))
        _expect("I3", rules.i3_replay_is_stored(outcome, actor, page))

    def _counts_on_its_claim(self, owner: Owner) -> bool:
        """False if the store's clock was set ahead since the claim was last confirmed: then its
        lease may end early, see docs/explanation/guarantees.md."""
        if self.set_ahead_at < 0:
            return True
        return owner.deadline - owner.lease > owner.process.clock(self.set_ahead_at)

    # --- the end ------------------------------------------------------------------------------

    def lost_result(self, id: bytes, fence: int, body: bytes, record: Record | None) -> None:
        """I14: a result that was reached is stored, unless others decided the key or took it over.
        Called when the world has come to rest, for a body whose process has lived on."""
        history = self.keys[id]
        page = history.page
        if page.top > fence or history.swept >= fence:
            return
        states = [end.state for end in page.all_ends if end.fence == fence]
        if not any(state in ENDED or state is State.ABSENT for state in states):
            stored = describe_record(record)
            raise Broken("I14", f"{body!r} was returned and never stored; the store has {stored}")


def _expect(invariant: str, what: str | None) -> None:
    if what is not None:
        raise Broken(invariant, what)
