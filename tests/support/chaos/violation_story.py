"""Tells one violation in plain sentences: the events of its key, and the faults around them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.chaos.chaos_history import Event
from tests.support.chaos.invariant_rules import Violation
from tests.support.chaos.operation_history import OperationHistory, RunHistory

AROUND_SECONDS = 2.0
LINES_MAX = 60
_STATES = {0: "absent", 1: "pending", 2: "succeeded", 3: "failed", 4: "unknown"}


def story(violation: Violation, run: RunHistory) -> str:
    """Return the story of one violation, a sentence per line."""
    head = f"{violation.invariant} is violated for {violation.id or 'the run'}: {violation.text}."
    operation = run.operations.get(violation.id)
    if operation is None:
        return head
    told = sorted(_of_operation(operation))
    if told:
        told += _faults(run, told[0][0] - AROUND_SECONDS, told[-1][0] + AROUND_SECONDS)
    lines = [f"{at:9.3f} s  {text}" for at, text in sorted(told)]
    if len(lines) > LINES_MAX:
        left_out = len(lines) - LINES_MAX
        half = LINES_MAX // 2
        lines = [*lines[:half], f"            ({left_out} more)", *lines[-half:]]
    record = operation.record
    last = f"At the end its record is {_STATES[record['state']] if record else 'missing'}"
    if record:
        last += f", attempt {record['attempt']}, fence {record['fence']}"
    effects = len(operation.effect_ids())
    return "\n".join([head, f"It is a {operation.level} operation.", *lines, f"{last}; effects: {effects}."])


def _of_operation(operation: OperationHistory) -> Iterator[tuple[float, str]]:
    for one in operation.tries.values():
        asked = "" if one.variant == "same" else f" ({one.variant})"
        yield one.sent, f"A client sends request {one.number}{asked}."
        if one.came is not None:
            replay = ", a replay" if one.replayed else ""
            yield one.came, f"Request {one.number} gets {one.status} {one.code}{one.body}{replay}."
    for at in operation.published:
        yield at, "The broker has confirmed its message."
    for event in operation.begins:
        yield event["at"], f"A body begins in {event['by']}, attempt {event['attempt']}, fence {event['fence']}."
    for event in operation.ends:
        yield event["at"], f"The body with fence {event['fence']} ends in {event['by']}, effect {event['effect']}."
    for event in operation.effects:
        yield event["at"], f"The provider makes effect {event['id']} for fence {event['fence']} of {event['by']}."
    for event in operation.repeated_effects:
        yield event["at"], f"The provider recognises the child key of effect {event['id']}."
    for event in operation.recoveries:
        yield event["at"], f"The recovery in {event['by']} finds effect {event['effect']}."
    for event in operation.engine_events:
        yield event["at"], f"oncekey in {event['by']} says {event['what']}, fence {event['fence']}."


def _faults(run: RunHistory, start: float, end: float) -> list[tuple[float, str]]:
    return [line for fault in run.faults_between(start, end) for line in _of_fault(fault)]


def _of_fault(fault: Event) -> Iterator[tuple[float, str]]:
    yield fault["at"], f"FAULT {fault['number']} begins: {fault['what']} ({fault['target']})."
    yield fault["until"], f"FAULT {fault['number']} is healed: {fault['what']}."
