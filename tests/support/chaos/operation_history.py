"""The history of a run, operation by operation: what was asked, answered, done and recorded.

An operation is named by who asks and under which key. Owns the reading of the events; what must
hold is in invariant_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.support.chaos.chaos_history import Event
from tests.support.chaos.chaos_plan import ChaosOptions
from tests.support.chaos.payment_names import (
    GROUP,
    PARCEL_SCOPE,
    PARCELS,
    QUEUE_SCOPE,
    SECOND_NAME,
    SECOND_SCOPE,
    operation_id,
    queue_id,
)

from oncekey.queues.broker_identity import OPERATION as BROKER_OPERATION

GRANTS: Final = ("claimed", "takeover")
SUCCESS: Final = 201
_TAG_CHARS: Final = 12


@dataclass(slots=True)
class Try:
    """One request of a client, and the reply to it, if one came."""

    number: int
    variant: str
    sent: float
    worker: int = 0
    came: float | None = None
    status: int = 0
    code: str = ""
    body: str = ""
    replayed: bool = False

    @property
    def is_success(self) -> bool:
        return self.status == SUCCESS


@dataclass(slots=True)
class OperationHistory:
    """Everything that happened to one operation, by time."""

    id: str
    level: str = ""
    tries: dict[int, Try] = field(default_factory=dict)
    publishings: list[Event] = field(default_factory=list)  # its message, each time it was sent
    published: list[float] = field(default_factory=list)
    effects: list[Event] = field(default_factory=list)
    repeated_effects: list[Event] = field(default_factory=list)
    rows: list[Event] = field(default_factory=list)
    begins: list[Event] = field(default_factory=list)
    holds: list[Event] = field(default_factory=list)
    ends: list[Event] = field(default_factory=list)
    recoveries: list[Event] = field(default_factory=list)
    engine_events: list[Event] = field(default_factory=list)
    record: Event | None = None

    @property
    def key(self) -> str:
        return self.id.rpartition("/")[2]

    @property
    def scope(self) -> str:
        return self.id.rpartition("/")[0]

    def successes(self) -> Iterator[Try]:
        """Yield the requests that got the operation's answer, by the time of the answer."""
        found = [one for one in self.tries.values() if one.is_success]
        yield from sorted(found, key=lambda one: one.came or 0.0)

    def grants(self) -> list[Event]:
        """Return who was told to have the key, by fence."""
        found = [event for event in self.engine_events if event["what"] in GRANTS]
        return sorted(found, key=lambda event: event["fence"])

    def effect_ids(self) -> set[str]:
        """Return the effects that there are: rows of a transaction, or the provider's. Where both
        belong together, only those that have both."""
        if self.level == "late":
            rows = {row["run"] for row in self.rows}
            return {effect["id"] for effect in self.effects} & rows
        if self.level == "transactional":
            return {row["run"] for row in self.rows}
        return {effect["id"] for effect in self.effects}


@dataclass(slots=True)
class RunHistory:
    """A whole run: its operations, its faults, and when it had healed."""

    options: ChaosOptions = field(default_factory=lambda: ChaosOptions(0))
    operations: dict[str, OperationHistory] = field(default_factory=dict)
    faults: list[Event] = field(default_factory=list)
    healed_at: float = 0.0
    ended: Event | None = None
    notes: list[Event] = field(default_factory=list)
    unprotected: list[Event] = field(default_factory=list)  # when a store could lose commits
    refusals: list[Event] = field(default_factory=list)  # consumers that refused to run
    logs: list[Event] = field(default_factory=list)  # the warnings and errors of consumers
    deletions: list[Event] = field(default_factory=list)  # of the queue of parcels
    commits_failed: int = 0
    guarantees: list[tuple[str, str]] = field(default_factory=list)  # each level and its reason

    def operation(self, id: str) -> OperationHistory:
        if id not in self.operations:
            self.operations[id] = OperationHistory(id)
        return self.operations[id]

    def faults_between(self, start: float, end: float, *kinds: str) -> list[Event]:
        """Return the faults, of these kinds or of any, that overlap a span of time."""
        return [
            fault
            for fault in self.faults
            if fault["at"] <= end
            and fault["until"] >= start
            and (not kinds or fault["what"] in kinds)
        ]


_OF_OPERATION: Final = {
    "effect again": "repeated_effects",
    "row": "rows",
    "begin": "begins",
    "hold": "holds",
    "end": "ends",
    "recovery": "recoveries",
}
_OF_RUN: Final = {
    "unprotected": "unprotected",
    "refused": "refusals",
    "logged": "logs",
    "parcels deleted": "deletions",
}


def read_history(events: Iterable[Event]) -> RunHistory:
    """Sort the events of a run by operation."""
    run = RunHistory()
    engine_events: list[Event] = []
    by_tag: dict[str, OperationHistory] = {}
    for event in events:
        kind = event["kind"]
        if kind == "plan":
            given = event["options"]
            run.options = ChaosOptions(**{**given, "kinds": tuple(given.get("kinds", ()))})
        elif kind == "fault":
            run.faults.append(event)
        elif kind == "healed":
            run.healed_at = event["at"]
        elif kind == "run ended":
            run.ended = event
        elif kind == "event":
            engine_events.append(event)
        elif kind == "record":
            if event["operation"].startswith(BROKER_OPERATION):
                continue  # which broker a consumer belongs to; no operation of the run
            operation = run.operation(_id_of_record(event))
            operation.record = event
            by_tag[event["record"][:_TAG_CHARS]] = operation
        else:
            _add(run, kind, event)
    for event in engine_events:
        if event["tag"] in by_tag:
            by_tag[event["tag"]].engine_events.append(event)
    return run


def _add(run: RunHistory, kind: str, event: Event) -> None:
    """Add what one operation did."""
    if kind == "effect":
        run.operation(event["id_of"]).effects.append(event)
    elif kind == "effect again":
        run.operation(event["id_of"]).repeated_effects.append(event)
    elif kind in _OF_OPERATION:
        getattr(run.operation(event["id"]), _OF_OPERATION[kind]).append(event)
    elif kind == "published":
        run.operation(event["id"]).published.append(event["at"])
    elif kind == "send":
        operation = run.operation(event["id"])
        operation.level = event["level"]
        one = Try(event["n"], event["variant"], event["at"], event["worker"])
        operation.tries[one.number] = one
    elif kind == "reply":
        one = run.operation(event["id"]).tries[event["n"]]
        one.came, one.status, one.code = event["at"], event["status"], event["code"]
        one.body, one.replayed = event["body"], event["replayed"]
    elif kind in ("found dead", "left in the stream"):
        run.notes.append(event)
    elif kind in _OF_RUN:
        getattr(run, _OF_RUN[kind]).append(event)
    elif kind == "commits failed":
        run.commits_failed += event["count"]
    elif kind == "guarantee":
        said = (event["level"], event["reason"])
        if said not in run.guarantees:
            run.guarantees.append(said)
    elif kind == "publish":
        operation = run.operation(event["id"])
        operation.level = "queue"
        operation.publishings.append(event)


def _id_of_record(event: Event) -> str:
    if event["operation"].startswith(GROUP):
        is_second = event["scope"].endswith(f" on {SECOND_NAME}")
        return queue_id(event["key"], SECOND_SCOPE if is_second else QUEUE_SCOPE)
    if event["operation"].startswith(PARCELS):
        return queue_id(event["key"], PARCEL_SCOPE)
    return operation_id(event["scope"], event["key"])
