"""The judge: one scenario for every crossing, and the rules that it must keep.

The rules are promises of README's tables, in the order in which the scenario comes to them. The
promises about a store that is away, a late owner, a cancelled caller and a redrive have tests of
their own.
"""

from __future__ import annotations

from tests.crossings.figures import Said, is_exact, measured, read
from tests.crossings.rules import RULES
from tests.crossings.shop import Answer
from tests.crossings.worlds import World

CENTS, OTHER_CENTS = 500, 900


class Judgement(AssertionError):
    """A rule is broken."""

    def __init__(self, rule: str, found: object) -> None:
        super().__init__(f"{rule}: {RULES[rule]}; found {found}")
        self.rule = rule


def expect(rule: str, holds: bool, found: object) -> None:
    if not holds:
        raise Judgement(rule, found)


class Judge:
    """Plays the scenario. `truth` is the state that each key must have, as the judge counts it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.truth: dict[str, str] = {}
        self.frees = world.crossing.level in ("fenced", "transactional")

    def play(self, said: Said) -> None:
        world = self.world
        world.open_before()
        before = self.first("m")
        world.open_after()
        self.still("m", before)
        world.change()
        self.change_seen()
        self.still("m", before)
        answer = self.first("a")
        self.same_again("a", answer)
        self.other_request("a")
        self.error("b")
        self.death("c")
        self.pending("d")
        self.figures(said)
        self.effects()
        self.swept("a")

    # --- the rules ----------------------------------------------------------------------------

    def first(self, key: str) -> Answer:
        answer = self.call(key)
        expect("first", answer.kind == "done" and self.runs(key) == 1, answer)
        self.truth[key] = "succeeded"
        return answer

    def still(self, key: str, before: Answer) -> None:
        answer = self.call(key)
        expect("moved", answer == before and self.runs(key) == 1, (before, answer))

    def same_again(self, key: str, first: Answer) -> None:
        for _ in range(2):
            again = self.call(key)
            expect("replay", again == first and self.runs(key) == 1, (first, again))

    def other_request(self, key: str) -> None:
        answer = self.call(key, OTHER_CENTS)
        expect("mismatch", answer.kind == "mismatch" and self.runs(key) == 1, answer)

    def error(self, key: str) -> None:
        self.world.shop.declines.add(key)
        first = self.call(key)
        expect("error", first.kind in ("raised", "failed") and self.runs(key) == 1, first)
        answer = self.call(key)
        wanted = ("done", 2) if self.frees else ("failed", 1)
        expect("error", (answer.kind, self.runs(key)) == wanted, answer)
        self.truth[key] = "succeeded" if self.frees else "failed"

    def death(self, key: str) -> None:
        world = self.world
        died = world.call_and_die(key, CENTS)
        expect("death", died.kind == "died" and self.runs(key) == 1, died)
        if world.rows is None:
            world.end_leases()
        for _ in range(2):
            answer = self.call(key)
            wanted = ("done", 2) if self.frees else ("unknown", 1)
            expect("death", (answer.kind, self.runs(key)) == wanted, answer)
        self.truth[key] = "succeeded" if self.frees else "unknown"

    def pending(self, key: str) -> None:
        """An owner that dies now, for the readers: its lease is alive."""
        self.world.clock.catch_up()
        if self.world.rows is None:
            self.world.call_and_die(key, CENTS)
            self.truth[key] = "pending"

    def change_seen(self) -> None:
        """The next claim notices what has changed, and runs: nothing more is required."""
        world, change = self.world, self.world.crossing.change
        if change == "none":
            return
        answer = self.call("z")
        if change == "forgotten":
            wanted = "done" if world.crossing.level == "any" else "refused"
            expect("label", answer.kind == wanted, answer)
            label = world.place.store.guarantee.level.label
            expect("label", label == "best effort", label)
            world.place.forget_replica()
            world.place.look_again()
            answer = self.call("z")
        expect("label", answer.kind == "done" and self.runs("z") == 1, answer)
        self.truth["z"] = "succeeded"

    def figures(self, said: Said) -> None:
        world = self.world
        found = read(world, said)
        states = list(self.truth.values())
        if found.states is not None:
            expect("figures", found.states == self.truth, (found.states, self.truth))
        expect("figures", found.pending == states.count("pending"), found)
        expect("figures", found.unknown == states.count("unknown"), found)
        rows = self.rows_stored()
        expect("figures", found.rows == rows == len(self.truth) + self.own_records(), (found, rows))
        own = measured(world).bytes
        most = 0 if is_exact(world) else own / 2
        expect("figures", own > 0 and abs(found.bytes - own) <= most, (found, own))
        if found.guarantee is not None:
            expect("label", found.guarantee == self.label(), found)

    def effects(self) -> None:
        counted = self.world.effects()
        for key, state in self.truth.items():
            if state == "succeeded":
                expect("effects", counted.get(key) == 1, f"{counted} for {key!r}")

    def swept(self, key: str) -> None:
        self.world.sweep()
        dead = ["unknown"] if self.frees else ["unknown", "pending"]  # its lease is over now
        kept = sum(state in dead for state in self.truth.values())
        rows = self.rows_stored()
        expect("swept", rows == kept + self.own_records(), f"{rows} records, {kept} undecided")
        answer = self.call(key)
        expect("swept", (answer.kind, self.runs(key)) == ("done", 2), answer)

    # --- what was counted ---------------------------------------------------------------------

    def rows_stored(self) -> int:
        """How many records there are, counted without oncekey; of two stores what both have."""
        world = self.world
        rows = world.place.records()
        if world.crossing.move in ("arriving", "leaving") and world.partner is not None:
            return max(rows, world.partner.records())
        return rows

    def own_records(self) -> int:
        """How many records oncekey has for itself: the mark of a move, the broker of a consumer."""
        crossing = self.world.crossing
        return (crossing.move != "none") + (crossing.surface in ("consumer", "faststream"))

    def label(self) -> str:
        """The level that the store must say it has now."""
        crossing = self.world.crossing
        if crossing.store in ("memory", "cluster") or crossing.change in ("lowered", "replica"):
            return "best effort"
        single = {"redis": "fenced", "valkey": "fenced", "etcd": "fenced"}
        return single.get(crossing.store, "transactional")

    def call(self, key: str, cents: int = CENTS) -> Answer:
        answer: Answer = self.world.surface.call(key, cents)
        return answer._replace(error=None) if answer.kind != "refused" else answer

    def runs(self, key: str) -> int:
        return self.world.shop.runs[key]
