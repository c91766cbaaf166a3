"""What excuses an operation or a reply before the rules of a run, and why.

A store that is away, or below what the app requires, refuses: that is what it should do. And what
had begun before a store lost its protection could not be refused any more.
"""

from __future__ import annotations

from typing import Final

from tests.support.chaos.operation_history import OperationHistory, RunHistory, Try

# What a request may get at any time: the store, or the database of the rows, is away.
AWAY: Final = frozenset({"unavailable", "not-recorded", "rows-unavailable"})
AWAY_STATUS: Final = 503
UNKNOWN: Final = "outcome-unknown"
WITH_ROWS: Final = ("transactional", "late")
# While they last the store is, for a time, below what the workers require.
LOWERING_FAULTS: Final = (
    "standby promoted",
    "lagging standby promoted",
    "detached standby promoted",
    "new store not durable",
)


def says_away(one: Try, operation: OperationHistory, run: RunHistory) -> bool:
    """True if a reply says that the store is away, or the rows of an app: if their driver loses its
    connection, the app answers 500. So does a worker that starts while its store is below what the
    app requires."""
    if one.status == AWAY_STATUS or one.code in AWAY:
        return True
    if one.status < 500:
        return False
    until = one.came if one.came is not None else one.sent
    return operation.level in WITH_ROWS or bool(
        run.faults_between(one.sent, until, *LOWERING_FAULTS)
    )


def was_overtaken(operation: OperationHistory, run: RunHistory) -> bool:
    """True if it was on its way when a store stopped to keep what it acknowledges, and ended, or
    was told to be unknown, while that lasted. Nobody could refuse it any more. What begins in that
    time is judged: it requires more than the store said of itself, so it should be refused."""
    spans = [one for one in run.unprotected if one["store"] == _store_of(operation)]
    if not spans:
        return False
    ended = [one["at"] for one in (*operation.holds, *operation.ends)]
    told = [one for one in operation.tries.values() if one.is_success or one.code == UNKNOWN]
    ended += [one.came for one in told if one.came is not None]
    sent = [one.sent for one in operation.tries.values()]
    sent += [one["at"] for one in (*operation.publishings, *operation.begins)]
    return any(
        min(sent, default=0.0) <= span["at"]
        and any(span["at"] <= at <= span["until"] for at in ended)
        and not any(span["at"] < begin["at"] <= span["until"] for begin in operation.begins)
        for span in spans
    )


def _store_of(operation: OperationHistory) -> str:
    return "new store" if operation.level == "moved" else "database"
