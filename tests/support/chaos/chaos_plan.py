"""The plan of a run: which operations are sent when, and which faults happen when, all by one seed.

A plan is data. The same seed and options give the same plan, on any machine. What is not planned,
and differs from run to run, is how threads, processes and packets interleave.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Level = Literal["transactional", "fenced", "once", "recovered", "queue", "late", "moved", "parcel"]
Variant = Literal["same", "other body", "other caller", "bad token"]

# The shares of the levels among the operations.
LEVELS: Final[dict[Level, int]] = {
    "transactional": 23,
    "fenced": 21,
    "once": 14,
    "recovered": 10,
    "queue": 12,
    "late": 10,
    "moved": 6,
    "parcel": 4,
}
MESSAGES: Final = ("queue", "parcel")  # the levels whose operations are messages
# The levels that need servers of their own: only if a fault of these subjects may happen.
NEEDS: Final[dict[Level, str]] = {"moved": "new store", "parcel": "rabbitmq"}
LEASE_SECONDS: Final = 3
# A probe of an operation: how often it is sent, in percent, and how long after the first request.
PROBES: Final[dict[Variant, tuple[int, float]]] = {
    "same": (20, 30.0),
    "other body": (6, 4.0),
    "other caller": (5, 4.0),
    "bad token": (4, 4.0),
}
COPIES_PERCENT: Final = 10  # operations that are sent more than once at the same time
# How long bodies take, from and to, in seconds, and how often, in percent: most are quick, many
# long enough to be hit by a kill, some longer than a lease.
WORK: Final = {
    (0.0, 0.03): 60,
    (0.05, 0.8): 38,
    (1.1 * LEASE_SECONDS, 1.6 * LEASE_SECONDS): 2,
}
ABANDONED_PERCENT: Final = 2  # operations whose client gives up, until the run is over
FIRST_FAULT_SECONDS: Final = 2.0
CLOCK_JUMP_MAX_SECONDS: Final = 20


@dataclass(frozen=True, slots=True)
class Probe:
    """One more request under the key of an operation, `after` seconds later."""

    variant: Variant
    after: float


@dataclass(frozen=True, slots=True)
class Operation:
    """One logical operation: what is sent, how often at once, and what is probed afterwards."""

    number: int
    at: float
    level: Level
    key: str
    scope: str
    cents: int
    work_ms: int
    copies: int
    abandoned: bool
    probes: tuple[Probe, ...]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault: what it breaks, how often it is chosen, and for how long it lasts.

    Faults of one subject never overlap; those of different subjects do.
    """

    name: str
    subject: str
    weight: int
    seconds: tuple[float, float]


FAULTS: Final = (
    FaultKind("worker killed", "worker", 10, (0.2, 1.5)),
    FaultKind("worker paused", "worker", 8, (0.5, 2.2 * LEASE_SECONDS)),
    FaultKind("worker stopped", "worker", 4, (0.2, 1.0)),
    FaultKind("consumer killed", "consumer", 5, (0.2, 2.0)),
    FaultKind("consumer paused", "consumer", 4, (0.5, 2.2 * LEASE_SECONDS)),
    FaultKind("database killed", "database", 3, (0.1, 1.0)),
    FaultKind("database crashed", "database", 2, (0.1, 1.0)),
    FaultKind("database restarted", "database", 3, (0.1, 0.5)),
    FaultKind("backend killed", "database", 3, (0.3, 0.6)),
    FaultKind("database frozen", "database", 3, (0.5, 4.0)),
    FaultKind("database clock jumps", "database", 3, (1.0, 4.0)),
    FaultKind("disk full", "database", 3, (1.0, 3.0)),
    FaultKind("standby promoted", "database", 4, (0.1, 1.0)),
    FaultKind("standby frozen", "database", 2, (0.5, 7.0)),
    FaultKind("standby killed", "database", 2, (0.2, 1.5)),
    FaultKind("lagging standby promoted", "database", 2, (1.0, 9.0)),
    FaultKind("detached standby promoted", "database", 3, (0.5, 3.0)),
    FaultKind("app commits refused", "database", 3, (0.3, 1.5)),
    FaultKind("app sessions ended at commit", "database", 3, (0.3, 1.5)),
    FaultKind("client connections cut", "client network", 4, (0.1, 0.3)),
    FaultKind("client network black hole", "client network", 4, (0.5, 3.0)),
    FaultKind("client network refuses", "client network", 3, (0.5, 2.0)),
    FaultKind("responses lost", "client network", 8, (0.5, 2.0)),
    FaultKind("responses cut short", "client network", 8, (0.5, 2.0)),
    FaultKind("store connections cut", "store network", 5, (0.1, 0.3)),
    FaultKind("store network black hole", "store network", 4, (0.5, 3.0)),
    FaultKind("store network refuses", "store network", 3, (0.5, 2.0)),
    FaultKind("store replies lost", "store network", 8, (0.5, 2.0)),
    FaultKind("broker killed", "broker", 2, (0.1, 1.0)),
    FaultKind("broker connections cut", "broker", 2, (0.1, 0.3)),
    FaultKind("broker of the same name", "second broker", 3, (0.2, 1.0)),
    FaultKind("consumers cancelled", "rabbitmq", 4, (0.1, 0.5)),
    FaultKind("rabbitmq queue crashed", "rabbitmq", 2, (0.1, 0.5)),
    FaultKind("rabbitmq connections closed", "rabbitmq", 3, (0.1, 0.5)),
    FaultKind("new store not durable", "new store", 3, (0.5, 3.0)),
    FaultKind("new store full", "new store", 2, (0.5, 3.0)),
    FaultKind("new store killed", "new store", 2, (0.1, 1.0)),
)
KINDS: Final = {kind.name: kind for kind in FAULTS}


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault. `target` is the number of a worker or consumer; `amount` depends on the
    kind: the seconds of a clock's jump, or how many replies are lost."""

    number: int
    at: float
    seconds: float
    kind: str
    target: int
    amount: float

    @property
    def subject(self) -> str:
        return KINDS[self.kind].subject


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """What a run is asked for; with the same options and seed, the plan is the same."""

    seed: int
    seconds: float = 60.0
    faults: int = 25
    rate: float = 40.0
    workers: int = 3
    consumers: int = 2
    durable: bool = True
    kinds: tuple[str, ...] = ()  # the kinds of faults to choose from; all, if empty

    @property
    def chosen_kinds(self) -> tuple[FaultKind, ...]:
        return tuple(KINDS[name] for name in self.kinds) if self.kinds else FAULTS

    @property
    def levels(self) -> dict[Level, int]:
        """The shares of the levels that this run has servers for."""
        subjects = {kind.subject for kind in self.chosen_kinds}
        return {
            level: share
            for level, share in LEVELS.items()
            if level not in NEEDS or NEEDS[level] in subjects
        }

    @property
    def all_consumers(self) -> int:
        """The consumers of the stream and, if there are parcels, as many of their queue."""
        return self.consumers * (2 if "parcel" in self.levels else 1)

    @property
    def jump_seconds(self) -> float:
        """How far the database's clock may go wrong, and back."""
        return 2 * CLOCK_JUMP_MAX_SECONDS if "database clock jumps" in self._names else 0.0

    @property
    def recover_grace_seconds(self) -> float:
        """How long a silent owner may still act: as long as it may be paused, by a clock that may
        jump. A recovery that finds no effect is believed only after that."""
        return 3 * LEASE_SECONDS + self.jump_seconds

    @property
    def _names(self) -> set[str]:
        return {kind.name for kind in self.chosen_kinds}


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """Everything that a run will do."""

    options: ChaosOptions
    operations: tuple[Operation, ...]
    faults: tuple[Fault, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def make_plan(options: ChaosOptions) -> ChaosPlan:
    """Return the plan of these options. The two parts have random numbers of their own, so that
    asking for more faults does not change the operations."""
    operations = _operations(options, random.Random(f"operations {options.seed}"))
    faults = _faults(options, random.Random(f"faults {options.seed}"))
    return ChaosPlan(options, tuple(operations), tuple(faults))


def _operations(options: ChaosOptions, chance: random.Random) -> Iterator[Operation]:
    at = 0.0
    levels = options.levels
    for number in range(round(options.rate * options.seconds)):
        at += chance.expovariate(options.rate)
        level: Level = chance.choices(tuple(levels), tuple(levels.values()))[0]
        low, high = chance.choices(tuple(WORK), tuple(WORK.values()))[0]
        copies = 1
        if chance.random() * 100 < COPIES_PERCENT:
            copies = chance.randint(2, 4)
        yield Operation(
            number=number,
            at=round(min(at, options.seconds), 3),
            level=level,
            key=f"{options.seed}-{number:06}",
            scope=f"acct_{chance.randint(1, 5)}",
            cents=chance.randint(1, 100_000),
            work_ms=round(chance.uniform(low, high) * 1_000),
            copies=copies,
            abandoned=chance.random() * 100 < ABANDONED_PERCENT,
            probes=tuple(_probes(chance)) if level not in MESSAGES else (),
        )


def _probes(chance: random.Random) -> Iterator[Probe]:
    for variant, (percent, seconds) in PROBES.items():
        if chance.random() * 100 < percent:
            yield Probe(variant, round(chance.uniform(0, seconds), 3))


def _faults(options: ChaosOptions, chance: random.Random) -> Iterator[Fault]:
    kinds = options.chosen_kinds
    chosen = _every_kind_first(kinds, options.faults, chance)
    room = max(0.0, options.seconds - FIRST_FAULT_SECONDS)
    for number, kind in enumerate(chosen):
        even = (number + chance.random()) / max(1, len(chosen))
        targets = options.all_consumers if kind.subject == "consumer" else options.workers
        yield Fault(
            number=number,
            at=round(FIRST_FAULT_SECONDS + even * room, 3),
            seconds=round(chance.uniform(*kind.seconds), 3),
            kind=kind.name,
            target=chance.randrange(max(1, targets)),
            amount=round(_amount(kind, chance), 3),
        )


def _every_kind_first(
    kinds: Sequence[FaultKind], count: int, chance: random.Random
) -> list[FaultKind]:
    """Return `count` kinds: each at least once if there is room, the rest by weight, shuffled."""
    first = chance.sample(kinds, min(count, len(kinds)))
    rest = chance.choices(kinds, [kind.weight for kind in kinds], k=count - len(first))
    chosen = [*first, *rest]
    chance.shuffle(chosen)
    return chosen


def _amount(kind: FaultKind, chance: random.Random) -> float:
    if "clock" in kind.name:
        return chance.choice((-1, 1)) * chance.uniform(1, CLOCK_JUMP_MAX_SECONDS)
    return chance.randint(1, 8)
