"""What a run amounts to: counts of operations, answers and faults, and the violations by invariant.

Also the explanation of violations: whether the database had lost what it had acknowledged, and what
the store itself had said about its guarantee.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from tests.support.chaos.invariant_rules import OBSERVED, STATE_UNKNOWN, Violation
from tests.support.chaos.operation_history import OperationHistory, RunHistory, Try

# Faults after which a database that does not wait for its disk or standby lacks commits.
LOSING_FAULTS: Final = (
    "database killed",
    "database crashed",
    "backend killed",
    "disk full",
    "standby promoted",
    "lagging standby promoted",
    "detached standby promoted",
    "new store not durable",
)
# For so long a commit may be lost that nobody has waited for.
LOSS_SECONDS: Final = 30.0


def summarize(run: RunHistory, violations: Sequence[Violation]) -> dict[str, Any]:
    """Return the figures of a run, ready for JSON."""
    operations = list(run.operations.values())
    engine = Counter(event["what"] for one in operations for event in one.engine_events)
    replies = Counter(_reply(one) for each in operations for one in each.tries.values())
    return {
        "seed": run.options.seed,
        "durable": run.options.durable,
        "seconds": round(run.ended["at"], 1) if run.ended else 0,
        "operations": len(operations),
        "levels": dict(Counter(one.level for one in operations).most_common()),
        "requests": sum(len(one.tries) for one in operations),
        "replies": dict(replies.most_common()),
        "messages": sum(len(one.published) for one in operations),
        "effects": sum(len(one.effect_ids()) for one in operations),
        "unknown keys": sum(_state(one) == STATE_UNKNOWN for one in operations),
        "engine": dict(engine.most_common()),
        "faults": len(run.faults),
        "faults by kind": dict(Counter(one["what"] for one in run.faults).most_common()),
        "commits failed": run.commits_failed,
        "consumers refused": dict(Counter(one["by"] for one in run.refusals)),
        "subscriptions ended": sum("ended the subscription" in one["text"] for one in run.logs),
        "unprotected": dict(Counter(one["store"] for one in run.unprotected)),
        "guarantees": run.guarantees,
        "violations": len(violations),
        "violations by invariant": dict(_by_invariant(violations)),
        "violated operations": len({one.id for one in violations}),
    }


def _reply(one: Try) -> str:
    if one.came is None:
        return "no reply"
    name = "replay" if one.replayed else one.code
    return f"{one.status} {name}".strip()


def _state(operation: OperationHistory) -> int:
    return operation.record["state"] if operation.record is not None else 0


def _by_invariant(violations: Sequence[Violation]) -> list[tuple[str, int]]:
    counts = Counter(one.invariant for one in violations)
    return [(name, counts[name]) for name in OBSERVED if counts[name]]


def explain(run: RunHistory, violations: Sequence[Violation]) -> str:
    """Return sentences about where the violations come from, if they come from lost commits."""
    if not violations:
        return ""
    after_loss = [one for one in violations if _follows_a_loss(one, run)]
    said = "; ".join(f"{level}: {reason}" for level, reason in run.guarantees)
    return (
        f"{len(after_loss)} of {len(violations)} violations are of operations during or after "
        f"which the database crashed or failed over. The store said of itself: {said or 'nothing'}."
    )


def _follows_a_loss(violation: Violation, run: RunHistory) -> bool:
    operation = run.operations.get(violation.id)
    if operation is None:
        return False
    times = [at for one in operation.tries.values() for at in (one.sent, one.came) if at]
    times += [event["at"] for event in operation.engine_events] + operation.published
    if not times:
        return False
    end = max(times) + LOSS_SECONDS
    return bool(run.faults_between(min(times), end, *LOSING_FAULTS))


def as_text(summary: dict[str, Any]) -> str:
    """Return the figures as lines of text."""
    lines = [
        f"seed {summary['seed']}, durability {'on' if summary['durable'] else 'off'}, "
        f"{summary['seconds']:g} s",
        f"{summary['operations']:,} operations ({_counts(summary['levels'])})",
        f"{summary['requests']:,} requests ({_counts(summary['replies'])}), "
        f"{summary['messages']:,} messages",
        f"{summary['effects']:,} effects, {summary['unknown keys']} keys of unknown outcome",
        f"oncekey: {_counts(summary['engine'])}",
        f"{summary['faults']} faults ({_counts(summary['faults by kind'])})",
    ]
    refused = sum(summary["consumers refused"].values())
    lines.append(
        f"{summary['commits failed']} commits of the app failed, {refused} consumers were refused, "
        f"{summary['subscriptions ended']} were cancelled; without protection: "
        f"{_counts(summary['unprotected']) or 'no store'}"
    )
    if summary["violations"]:
        lines.append(
            f"{summary['violations']} violations in {summary['violated operations']} operations "
            f"({_counts(summary['violations by invariant'])})"
        )
    else:
        lines.append("0 violations")
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
