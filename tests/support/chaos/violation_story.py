"""Tells one violation in plain sentences: the events of its key, and the faults that touched it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tests.support.chaos.chaos_history import Event
from tests.support.chaos.invariant_rules import Violation, first_of_each
from tests.support.chaos.operation_history import OperationHistory, RunHistory, Try
from tests.support.chaos.run_summary import LOSING_FAULTS, LOSS_SECONDS

AROUND_SECONDS: Final = 1.0
LINES_MAX: Final = 40
_STATES: Final = {0: "absent", 1: "pending", 2: "succeeded", 3: "failed", 4: "unknown"}
# The faults that touch every operation.
_SHARED: Final = ("database", "store network")


def stories(violations: Sequence[Violation], run: RunHistory) -> list[str]:
    """Return the stories of the first violation of each invariant; one for each operation."""
    by_id: dict[str, list[Violation]] = {}
    for one in first_of_each(violations):
        by_id.setdefault(one.id, []).append(one)
    return ["\n".join([*map(_head, same[:-1]), story(same[-1], run)]) for same in by_id.values()]


def _head(violation: Violation) -> str:
    return f"{violation.invariant} is violated for {violation.id or 'the run'}: {violation.text}."


def story(violation: Violation, run: RunHistory) -> str:
    """Return the story of one violation, a sentence per line."""
    head = _head(violation)
    operation = run.operations.get(violation.id)
    if operation is None:
        return head
    told = sorted(_events(operation))
    touched = [one for one in _near(run, told) if _touches(one, operation)]
    told = sorted([*told, *(line for fault in touched for line in _fault(fault))])
    lines = [f"{at:9.3f} s  {text}" for at, text in told]
    if len(lines) > LINES_MAX:
        lines = _shortened(lines, [at for at, _ in told], violation.at)
    return "\n".join([head, f"Its level is {operation.level}.", *lines, _last(operation)])


def _near(run: RunHistory, told: list[tuple[float, str]]) -> list[Event]:
    """Return the faults near something that happened to the key, and the first loss after it."""
    if not told:
        return []
    end = told[-1][0]
    losses = run.faults_between(end, end + LOSS_SECONDS, *LOSING_FAULTS)[:1]
    near = [
        fault
        for fault in run.faults
        if any(
            fault["at"] - AROUND_SECONDS <= at <= fault["until"] + AROUND_SECONDS for at, _ in told
        )
    ]
    return near + [fault for fault in losses if fault not in near]


def _shortened(lines: list[str], times: list[float], at: float) -> list[str]:
    """Keep the first lines, and those around the time of the violation."""
    first = LINES_MAX // 4
    middle = next((n for n, time in enumerate(times) if time >= at), len(lines) - 1)
    start = min(max(first, middle - LINES_MAX // 2), len(lines) - (LINES_MAX - first))
    end = start + LINES_MAX - first
    between = f"{'':12} ... {start - first} lines left out ..."
    after = [f"{'':12} ... {len(lines) - end} lines left out ..."] if end < len(lines) else []
    return [*lines[:first], *([between] if start > first else []), *lines[start:end], *after]


def _touches(fault: Event, operation: OperationHistory) -> bool:
    """True if a fault broke something that this operation used."""
    target = fault["target"]
    if target in _SHARED or (target == "broker" and operation.level == "queue"):
        return True
    workers = {event["by"].replace("-", " ") for event in (*operation.begins, *operation.ends)}
    asked = {f"client network {one.worker}" for one in operation.tries.values()}
    return target in workers | asked


def _events(operation: OperationHistory) -> Iterator[tuple[float, str]]:
    for one in operation.tries.values():
        yield from _try(one)
    for at in operation.published:
        yield at, "The broker confirms its message."
    for event in operation.begins:
        what = f"attempt {event['attempt']}, fence {event['fence']}"
        yield event["at"], f"A body begins in {event['by']}: {what}."
    for event in operation.ends:
        what = f"fence {event['fence']} ends in {event['by']}, with effect {event['effect']}"
        yield event["at"], f"The body with {what}."
    for event in operation.effects:
        what = f"makes effect {event['id']} for fence {event['fence']} of {event['by']}"
        yield event["at"], f"The provider {what}."
    for event in operation.repeated_effects:
        yield event["at"], f"The provider recognises the child key of effect {event['id']}."
    for event in operation.recoveries:
        found = event["effect"] or "no effect"
        yield event["at"], f"The recovery in {event['by']} finds {found}."
    for event in operation.engine_events:
        fence = f", fence {event['fence']}" if event["fence"] else ""
        yield event["at"], f"oncekey in {event['by']} says {event['what']}{fence}."


def _try(one: Try) -> Iterator[tuple[float, str]]:
    asked = "" if one.variant == "same" else f" ({one.variant})"
    yield one.sent, f"A client sends request {one.number}{asked} to worker {one.worker}."
    if one.came is not None:
        replay = ", a replay" if one.replayed else ""
        said = " ".join(part for part in (str(one.status), one.code, one.body) if part)
        yield one.came, f"Request {one.number} gets {said}{replay}."


def _fault(fault: Event) -> Iterator[tuple[float, str]]:
    yield fault["at"], f"FAULT {fault['number']} begins: {fault['what']} ({fault['target']})."
    yield fault["until"], f"FAULT {fault['number']} is over: {fault['what']}."


def _last(operation: OperationHistory) -> str:
    record = operation.record
    if record is None:
        state = "missing"
    else:
        state = f"{_STATES[record['state']]}, attempt {record['attempt']}, fence {record['fence']}"
    return f"At the end its record is {state}; effects: {len(operation.effect_ids())}."
