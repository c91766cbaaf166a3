"""What must hold in the history of a run: one rule for each invariant, as far as it can be seen.

A rule yields what is wrong with one operation. Rules know only what clients, bodies, the provider
and the database's tables told; they never ask oncekey. `OBSERVED` says for each invariant how it is
seen, and what of it cannot be seen from outside.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tests.support.chaos.chaos_plan import LEASE_SECONDS
from tests.support.chaos.operation_history import SUCCESS, OperationHistory, RunHistory
from tests.support.chaos.rule_excuses import says_away, was_overtaken

OBSERVED: Final = {
    "I1": "a key has one row or one effect at the provider, or one of each, however often it was "
    "sent",
    "I2": "one fence finishes; one request gets the answer that is not a replay",
    "I3": "all answers under a key have the same bytes",
    "I4": "once a client has an answer, no later request gets anything but it, or an error that "
    "says that the store is away; the record is there at the end, and the effect too; a "
    "transaction has left both its row and its record, or neither",
    "I5": "nobody else is granted a key while its owner's own clock says that it still holds it; "
    "not judged around jumps of the database's clock. Whether a body begins late is not seen: a "
    "pause may fall between the look at the clock and the body's first line",
    "I6": "no fence is given to two bodies or workers, later attempts have higher fences, and the "
    "record has the highest",
    "I7": "two different requests never both succeed under a key, and a request is refused only if "
    "another one was sent under its key",
    "I8": "an answer names the caller that asked; another caller's key has its own effect",
    "I9": "a lost reply of the store never makes one fence begin two bodies",
    "I10": "once all faults are healed, no key is in flight for longer than a lease (and the jump "
    "of a clock); what is retry-safe or in a transaction is never unknown",
    "I11": "every operation has an outcome in the end, and no record is pending",
    "I12": "the sweeper runs all the time, and every key whose body began, or that was answered, "
    "still has its record at the end",
    "I13": "the record at the end has the very bytes that clients got before crashes and failovers",
    "I14": "a body that ended in a process that was not killed has an outcome, also if its client "
    "had left, or the server was being stopped",
    "I15": "a request with a bad token gets 401, whatever its key has",
    "I16": "where the app commits its rows after the handler, every answer that says success has "
    "exactly one row, and so has every record that says it",
}

# What tells a client of an outcome, beside a success.
KNOWN: Final = ("outcome-unknown", "key-reused", "failed", "rows-failed")
SUCCESS_STORED: Final = f'"status":{SUCCESS}'
STATE_PENDING, STATE_SUCCEEDED, STATE_FAILED, STATE_UNKNOWN = 1, 2, 3, 4
NO_RECORDS: Final = ("moved",)  # their store is not read at the end: their clients ask it
NEVER_UNKNOWN: Final = ("transactional", "fenced", "queue")
MARGIN_SECONDS: Final = 10.0
STORED_WITHIN_SECONDS: Final = 20.0  # an outcome, while the store comes and goes
STORED_SOON_SECONDS: Final = 5.0  # an outcome, if nothing is in its way
DATABASE_FAULTS: Final = ("database", "store network")


@dataclass(frozen=True, slots=True)
class Violation:
    """One invariant that did not hold for one operation."""

    invariant: str
    id: str
    text: str
    at: float


Rule = Callable[[OperationHistory, RunHistory], Iterator[tuple[str, float]]]


def check(run: RunHistory) -> list[Violation]:
    """Return everything that is wrong, by time."""
    found = [
        Violation(rule.__name__.split("_")[0].upper(), operation.id, text, round(at, 3))
        for operation in run.operations.values()
        if not was_overtaken(operation, run)
        for rule in RULES
        for text, at in rule(operation, run)
    ]
    return sorted([*found, *_of_the_run(run)], key=lambda one: one.at)


def first_of_each(violations: Sequence[Violation]) -> list[Violation]:
    """Return the first violation of each invariant, in the order of the invariants."""
    first: dict[str, Violation] = {}
    for one in violations:
        first.setdefault(one.invariant, one)
    return [first[name] for name in OBSERVED if name in first]


def i1_one_effect(operation: OperationHistory, run: RunHistory) -> Iterator[tuple[str, float]]:
    if len(operation.effects) > 1:
        times = ", ".join(f"{one['at']:.2f} s" for one in operation.effects)
        yield f"it has {len(operation.effects)} effects, at {times}", operation.effects[1]["at"]
    if len(operation.rows) > 1:
        yield f"it has {len(operation.rows)} rows", operation.rows[1]["at"]


def i2_one_finish(operation: OperationHistory, run: RunHistory) -> Iterator[tuple[str, float]]:
    finished = [one for one in operation.engine_events if one["what"] == "finished"]
    fences = {one["fence"] for one in finished}
    if operation.level != "transactional" and len(fences) > 1:
        yield f"fences {sorted(fences)} have all finished", finished[-1]["at"]
    firsts = [one for one in operation.successes() if not one.replayed]
    if len(firsts) > 1:
        numbers = [one.number for one in firsts]
        yield f"requests {numbers} all got an answer that is not a replay", firsts[1].came or 0.0


def i3_same_answer(operation: OperationHistory, run: RunHistory) -> Iterator[tuple[str, float]]:
    bodies: dict[str, float] = {}
    for one in operation.successes():
        bodies.setdefault(one.body, one.came or 0.0)
    if len(bodies) > 1:
        yield f"its answers differ: {' and '.join(bodies)}", list(bodies.values())[1]


def i4_answer_stays(operation: OperationHistory, run: RunHistory) -> Iterator[tuple[str, float]]:
    first = next(operation.successes(), None)
    if first is None or first.came is None:
        return
    for one in operation.tries.values():
        if one.variant != first.variant or one.sent <= first.came or one.came is None:
            continue
        if not one.is_success and not says_away(one, operation, run):
            yield (
                f"request {one.number} got {one.status} {one.code} after request {first.number} "
                f"had got the answer",
                one.came,
            )
    told = json.loads(first.body)["effect"]
    if operation.level == "late":
        is_there = told in {effect["id"] for effect in operation.effects}  # its row is I16
    else:
        is_there = told in operation.effect_ids()
    if not is_there:
        yield f"a client was told of the effect {told}, which is not there", first.came


def i4_row_and_record(operation: OperationHistory, run: RunHistory) -> Iterator[tuple[str, float]]:
    if operation.level != "transactional" or next(operation.successes(), None) is not None:
        return  # what a client was told is compared above, and in I13
    has_record = operation.record is not None and operation.record["state"] == STATE_SUCCEEDED
    if has_record != bool(operation.rows):
        left = "its record, but no row" if has_record else "a row, but no record of its success"
        yield f"its transaction has left {left}", run.ended["at"] if run.ended else 0.0


def i5_no_early_takeover(
    operation: OperationHistory, run: RunHistory
) -> Iterator[tuple[str, float]]:
    if operation.level == "transactional":
        return  # it has no lease: its lock ends with its connection, and then it cannot commit
    for taken in operation.grants():
        for hold in operation.holds:
            if hold["lost"] or hold["fence"] >= taken["fence"] or hold["at"] <= taken["at"]:
                continue
            began = min((one["at"] for one in operation.begins), default=0.0)
            # Afterwards the clock stays where it jumped to, and a promoted server has it too.
            if not run.faults_between(began - LEASE_SECONDS, hold["at"], "database clock jumps"):
                yield (
                    f"fence {taken['fence']} was granted while the owner with fence "
                    f"{hold['fence']} still held the key by its own clock",
                    taken["at"],
                )


def i6_fences_grow(operation: OperationHistory, run: RunHistory) -> Iterator[tuple[str, float]]:
    grants = operation.grants()
    if operation.level == "transactional" or not grants:
        return
    last = grants[-1]["at"]
    attempts = [one["attempt"] for one in grants]
    for earlier, later in pairwise(grants):
        if later["fence"] > earlier["fence"] and later["attempt"] <= earlier["attempt"]:
            yield f"the attempts, by fence, are {attempts}", later["at"]
        if later["fence"] == earlier["fence"] and later["by"] != earlier["by"]:
            who = f"{earlier['by']} and {later['by']}"
            yield f"fence {later['fence']} was granted to {who}", later["at"]
    record = operation.record
    if record is not None and record["fence"] < grants[-1]["fence"]:
        yield f"fence {grants[-1]['fence']} was granted, but the record has {record['fence']}", last


def i7_mismatch_iff_other_request(
    operation: OperationHistory, run: RunHistory
) -> Iterator[tuple[str, float]]:
    succeeded = {one.variant: one.came or 0.0 for one in operation.successes()}
    if len({variant == "other body" for variant in succeeded}) > 1:
        yield "two different requests have succeeded under one key", max(succeeded.values())
    sent = [one for one in operation.tries.values() if one.variant != "bad token"]
    for one in sent:
        if one.code != "key-reused" or one.came is None:
            continue
        others = [other for other in sent if other.variant != one.variant and other.sent < one.came]
        if not others:
            yield f"request {one.number} got a mismatch, but no other was sent", one.came


def i8_own_answers(operation: OperationHistory, run: RunHistory) -> Iterator[tuple[str, float]]:
    for one in operation.successes():
        told = json.loads(one.body)
        if told["id"] != operation.id or told["account"] != operation.scope:
            yield f"it got the answer of {told['id']}", one.came or 0.0


def i9_one_body_per_fence(
    operation: OperationHistory, run: RunHistory
) -> Iterator[tuple[str, float]]:
    if operation.level == "transactional":
        return  # its fence is the transaction's, and nothing is left of one that was rolled back
    for fence, count in Counter(one["fence"] for one in operation.begins).items():
        if count > 1:
            last = [one["at"] for one in operation.begins if one["fence"] == fence][-1]
            yield f"{count} bodies have begun with fence {fence}", last


def i10_free_after_its_lease(
    operation: OperationHistory, run: RunHistory
) -> Iterator[tuple[str, float]]:
    options = run.options
    grace = options.recover_grace_seconds if operation.level == "recovered" else 0.0
    limit = run.healed_at + LEASE_SECONDS + options.jump_seconds + grace + MARGIN_SECONDS
    for one in operation.tries.values():
        if one.code == "in-flight" and one.sent > limit:
            yield f"request {one.number} still got in-flight", one.sent
            return


def i10_repeatable_is_never_unknown(
    operation: OperationHistory, run: RunHistory
) -> Iterator[tuple[str, float]]:
    if operation.level not in NEVER_UNKNOWN:
        return
    for one in operation.tries.values():
        if one.code == "outcome-unknown":
            yield f"request {one.number} got outcome-unknown, but it can be repeated", one.sent
            return


def i11_an_outcome_in_the_end(
    operation: OperationHistory, run: RunHistory
) -> Iterator[tuple[str, float]]:
    if run.ended is None or not run.ended["complete"]:
        return  # its processes were stopped before they could ask; `_of_the_run` says so
    state = operation.record["state"] if operation.record is not None else 0
    end = run.ended["at"]
    if state == STATE_PENDING:
        yield "its record is pending at the end", end
    if operation.level == "queue" and operation.published and not operation.effect_ids():
        yield "its message was published, but it has no effect", end
    if operation.level == "queue" and operation.published and state != STATE_SUCCEEDED:
        yield f"its message was published, but its record has state {state}", end
    if _is_unknown(operation):
        yield "no client has learnt its outcome", end


def _is_unknown(operation: OperationHistory) -> bool:
    """True if clients have asked, and none was told an outcome."""
    asked = [one for one in operation.tries.values() if one.variant == "same"]
    return bool(asked) and not any(one.is_success or one.code in KNOWN for one in asked)


def i12_records_stay(operation: OperationHistory, run: RunHistory) -> Iterator[tuple[str, float]]:
    if operation.level in ("transactional", *NO_RECORDS) or operation.record is not None:
        return  # what is rolled back leaves no record
    if operation.begins and next(operation.successes(), None) is None:
        yield "its body began, but there is no record", operation.begins[0]["at"]


def i13_durable_before_seen(
    operation: OperationHistory, run: RunHistory
) -> Iterator[tuple[str, float]]:
    first = next(operation.successes(), None)
    if first is None or first.came is None or operation.level in NO_RECORDS:
        return
    record = operation.record
    if record is None:
        yield "a client has its answer, but there is no record", first.came
    elif record["state"] != STATE_SUCCEEDED:
        yield f"a client has its answer, but the record has state {record['state']}", first.came
    elif first.body not in record["body"]:
        yield "the record has another answer than the one that a client got", first.came


def i14_a_healthy_owner_is_heard(
    operation: OperationHistory, run: RunHistory
) -> Iterator[tuple[str, float]]:
    if operation.level not in ("once", "recovered") or operation.record is None:
        return  # a record that is missing is I12 or I13
    state = operation.record["state"]
    for ended in operation.ends:
        until = ended["at"] + STORED_WITHIN_SECONDS
        mine = ended["by"].replace("-", " ")
        hit = [
            fault
            for fault in run.faults_between(ended["at"] - 1, until)
            if fault["target"] == mine and fault["what"] != "worker paused"
        ]
        near = run.faults_between(ended["at"] - 5, until)
        away = [fault for fault in near if _is_database(fault)]
        slow = away or [fault for fault in near if fault["target"] == mine and fault not in hit]
        soon = ended["at"] + (STORED_WITHIN_SECONDS if slow else STORED_SOON_SECONDS)
        killed = any(one["what"] == "worker killed" and one["at"] <= soon for one in hit)
        if killed or (hit and away) or until > run.healed_at:
            continue
        if state not in (STATE_SUCCEEDED, STATE_FAILED):
            yield f"its body ended in {ended['by']}, but the record has state {state}", ended["at"]


def _is_database(fault: dict[str, object]) -> bool:
    return fault["target"] in DATABASE_FAULTS


def i15_bad_tokens_get_nothing(
    operation: OperationHistory, run: RunHistory
) -> Iterator[tuple[str, float]]:
    for one in operation.tries.values():
        if one.variant == "bad token" and one.came is not None and one.status != 401:
            yield f"a bad token got {one.status} {one.code}", one.came


def i16_no_success_without_its_row(
    operation: OperationHistory, run: RunHistory
) -> Iterator[tuple[str, float]]:
    if operation.level != "late":
        return  # a transaction has its row and its record together, which is I4
    runs = [row["run"] for row in operation.rows]
    for one in operation.successes():
        told, came = json.loads(one.body)["effect"], one.came or 0.0
        if runs.count(told) != 1:
            yield f"request {one.number} got a success, and the row of {told} is not there", came
            return
    # An answer of the app that says 500 is stored too, and is no success.
    record = operation.record
    if record is None or record["state"] != STATE_SUCCEEDED or runs:
        return
    if SUCCESS_STORED in record["body"]:
        yield (
            "its record says success, and its row is not there",
            run.ended["at"] if run.ended else 0.0,
        )


def i12_the_sweeper_takes_nothing(run: RunHistory) -> Iterator[Violation]:
    if run.ended is not None and run.ended["past_generations"]:
        count = run.ended["past_generations"]
        yield Violation("I12", "", f"{count} records were moved to the audit", run.ended["at"])


def _of_the_run(run: RunHistory) -> Iterator[Violation]:
    yield from i12_the_sweeper_takes_nothing(run)
    if run.ended is None or not run.ended["complete"]:
        unknown = [one.id for one in run.operations.values() if _is_unknown(one)]
        text = "the clients or the stream did not come to an end"
        if unknown:
            text += f"; outcomes that are unknown: {len(unknown)}, the first is of {unknown[0]}"
        yield Violation("I11", "", text, 0.0)
    for note in run.notes:
        yield Violation("I11", "", f"{note}", note["at"])


RULES: Final[tuple[Rule, ...]] = (
    i1_one_effect,
    i2_one_finish,
    i3_same_answer,
    i4_answer_stays,
    i4_row_and_record,
    i5_no_early_takeover,
    i6_fences_grow,
    i7_mismatch_iff_other_request,
    i8_own_answers,
    i9_one_body_per_fence,
    i10_free_after_its_lease,
    i10_repeatable_is_never_unknown,
    i11_an_outcome_in_the_end,
    i12_records_stay,
    i13_durable_before_seen,
    i14_a_healthy_owner_is_heard,
    i15_bad_tokens_get_nothing,
    i16_no_success_without_its_row,
)
