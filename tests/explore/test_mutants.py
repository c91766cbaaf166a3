"""Every seeded bug must be caught, and for the invariant that it breaks.

Each mutant is the real source text with one thing wrong. If one survives, the explorer or the races
on SQLite and PostgreSQL do not check enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
from tests.explore.sql_mutants import M11, SQL_MUTANTS, SQLMutant, look_for
from tests.support.explorer.code_under_test import REAL, CodeUnderTest
from tests.support.explorer.mutation import Edit, mutated
from tests.support.explorer.race_scenarios import RACES
from tests.support.explorer.scenarios import SCENARIOS
from tests.support.explorer.search import explore
from tests.support.explorer.sqlite_races import race_on_sqlite
from tests.support.postgres_stores import DATABASE, server

from oncekey.core import attempt_flow, heartbeat_flow, state_machine
from oncekey.stores.sqlite import program

TWELVE = {f"m{number}" for number in range(1, 13)}


@dataclass(frozen=True)
class Mutant:
    """A seeded bug: its module, the scenario or race that catches it, and what it breaks."""

    number: str
    name: str
    module: ModuleType
    edits: tuple[Edit, ...]
    where: str
    breaks: str


def _mutant(
    number: str, name: str, module: ModuleType, old: str, new: str, where: str, breaks: str
) -> Mutant:
    return Mutant(number, name, module, (Edit(old, new),), where, breaks)


_OWNS = "record.owner != owner or record.fence != fence"
_AGAIN = (
    "    if before != PENDING and (before != UNKNOWN or state == UNKNOWN):\n"
    "        # The same owner again"
)

MUTANTS = (
    _mutant(
        "m1", "finish without owner check", state_machine,
        f"if record is None or {_OWNS}:", "if record is None:",
        "fenced, three attempts", "I2",
    ),
    Mutant(
        "m2", "finish without state check", state_machine,
        (
            Edit(_AGAIN, "    if False:\n        # The same owner again"),
            Edit("_ENDED[before, state]", "state"),
        ),
        "at most once, lost and late", "I2",
    ),
    _mutant(
        "m3", "takeover without compare-and-set", program,
        "yield BEGIN\n        replies, writes = yield from self._decide(left)",
        "replies, writes = yield from self._decide(left)\n        yield BEGIN",
        "a dead owner's key", "I5",
    ),
    _mutant(
        "m4", "in flight before mismatch", state_machine,
        "    (_is_other_request, _mismatched),\n",
        "    (lambda r, c, now: r.state == PENDING and _held(r, c, now), _busy),\n"
        "    (_is_other_request, _mismatched),\n",
        "another request under the same key", "I7",
    ),
    _mutant(
        "m5", "clock read twice in one decision", program,
        "claimed.append(record_row(write))",
        "claimed.append(record_row(decide(None, command, self._clock()).write))",
        "a new key", "S3",
    ),
    _mutant(
        "m6", "free on error when not retry-safe", attempt_flow,
        "elif isinstance(error, NotStarted) or times.retry_safe:",
        "elif isinstance(error, Exception):",
        "at most once, every ending", "I1",
    ),
    _mutant(
        "m7", "per-row fence counter", state_machine,
        "above = (record.fence if record is not None else floor) + 1\n"
        "    return above if above > now else now",
        "return record.fence + 1 if record is not None else 1",
        "generations: expiry and sweep", "I6",
    ),
    _mutant(
        "m8", "sweeper blind to live leases", state_machine,
        "return now >= record.audit_until",
        "return now >= record.created_at + record.keep",
        "at most once, heartbeat", "I12",
    ),
    _mutant(
        "m9", "mismatch that writes", state_machine,
        "Decision(Mismatched(version_of(record.fingerprint)))",
        'Decision(Mismatched(version_of(record.fingerprint)), record._replace(note="mismatch"))',
        "another request under the same key", "I7",
    ),
    _mutant(
        "m10", "completion after the first byte", attempt_flow,
        "if isinstance(result.reply, Done):\n        return outcome",
        "if not isinstance(result.reply, Lost):\n        return outcome",
        "at most once, lost and late", "I13",
    ),
    _mutant(
        "m12", "deadline from the reply", attempt_flow,
        "granted(claim, reply, result.sent_at)", "granted(claim, reply, result.at)",
        "fenced, three attempts", "I5",
    ),
)  # fmt: skip

# Beyond the twelve of the design: each shows that one more check can fail.
MORE = (
    _mutant(
        "x1", "takeover without the other's consent", state_machine,
        "return record.retry_safe and claim.retry_safe", "return claim.retry_safe",
        "retry-safe and not, mixed", "I1",
    ),
    _mutant(
        "x2", "replay of other bytes", state_machine,
        "Replay(record.state, record.body, record.attempt",
        "Replay(record.state, record.body[1:], record.attempt",
        "at most once, three attempts", "I3",
    ),
    _mutant(
        "x3", "finish that forgets the body", state_machine,
        "record.ended(_ENDED[before, state], now, body)",
        'record.ended(_ENDED[before, state], now, b"")',
        "at most once, three attempts", "I4",
    ),
    _mutant(
        "x4", "takeover before the lease is over", state_machine,
        "return now < record.lease_until", "return now < record.lease_until - 10",
        "fenced, heartbeat", "I5",
    ),
    _mutant(
        "x5", "heartbeat's deadline from the reply", heartbeat_flow,
        "deadline = result.sent_at + grant.lease", "deadline = result.at + grant.lease",
        "fenced, heartbeat", "I5",
    ),
    _mutant(
        "x6", "a repeated claim is a stranger's", state_machine,
        "return record.state == PENDING and record.owner == claim.owner", "return False",
        "at most once, lost and late", "I9",
    ),
    _mutant(
        "x7", "a repeated release is refused", state_machine,
        "return _DONE if record.state == ABSENT else _LOST", "return _LOST",
        "fenced, every ending", "I9",
    ),
    _mutant(
        "x8", "a dead owner holds for ever", state_machine,
        "return now < record.lease_until",
        "return now < record.lease_until or not record.retry_safe",
        "at most once, three attempts", "I10",
    ),
    _mutant(
        "x9", "a dead claim is never swept", state_machine,
        "return now >= record.audit_until",
        "return now >= record.audit_until and record.state != PENDING",
        "fenced, three attempts", "I11",
    ),
    _mutant(
        "x10", "another request's outcome for the overtaken", attempt_flow,
        "same = record.fingerprint == claim.fingerprint and seen.now < record.expires_at",
        "same = seen.now < record.expires_at",
        "generations: expiry and sweep", "I3",
    ),
    _mutant(
        "x11", "a straggler's claim is taken", state_machine,
        "    (_already_released, _lost),\n", "",
        "outage: no claim is answered", "I9",
    ),
    _mutant(
        "x12", "a late finish gets Done for what recovery decided", state_machine,
        "return _DONE if before == state and same else _refuse_late(record, command)",
        "return _DONE if before == state else _refuse_late(record, command)",
        "recovery", "I4",
    ),
    _mutant(
        "x13", "what is unknown expires as what has ended", state_machine,
        "return now >= record.expires_at",
        "return now >= (record.finished_at or record.lease_until) + record.keep",
        "undecided for longer than keep", "I11",
    ),
    _mutant(
        "x14", "anybody finishes what was given up", state_machine,
        f"if record is None or {_OWNS}:",
        f"if record is None or (record.state != UNKNOWN and ({_OWNS})):",
        "retry-safe and not, mixed", "I2",
    ),
    Mutant(
        "x15", "a late finish over what recovery decided", state_machine,
        (
            Edit(_AGAIN, "    if before == state:\n        # The same owner again"),
            Edit("_ENDED[before, state]", "state"),
        ),
        "recovery", "I2",
    ),
    _mutant(
        "x16", "a late owner's result is refused", state_machine,
        "(before != UNKNOWN or state == UNKNOWN)", "True",
        "at most once, heartbeat", "I14",
    ),
    _mutant(
        "x17", "a duplicate of another request is told to wait", state_machine,
        "return Busy(claim.lease) if same else Mismatched(version_of(claim.fingerprint))",
        "return Busy(claim.lease)",
        "at most once, three attempts", "I7",
    ),
    _mutant(
        "x18", "a duplicate of another request gets the answer", state_machine,
        "return reply if same else Mismatched(version_of(claim.fingerprint))",
        "return reply",
        "at most once, three attempts", "I7",
    ),
    _mutant(
        "x19", "a duplicate gets the reply that it holds the key", state_machine,
        "    if isinstance(reply, Claimed):\n",
        "    if isinstance(reply, Claimed) and same:\n        return reply\n"
        "    if isinstance(reply, Claimed):\n",
        "fenced, three attempts", "I7",
    ),
    _mutant(
        "x22", "a fresh key's fence is the clock", state_machine,
        "if record is not None else floor) + 1", "if record is not None else 0) + 1",
        "the clock is set back after a sweep", "I6",
    ),
    _mutant(
        "x20", "the sweeper forgets the fences it deletes", program,
        "            yield from _raise_fence_floor(max(record.fence for record in garbage))\n", "",
        "a key from before the clock was set back", "I6",
    ),
    _mutant(
        "x21", "a first claim forgets what was deleted", program,
        "decide(None, command, now, floor)", "decide(None, command, now)",
        "a key from before the clock was set back", "I6",
    ),
    _mutant(
        "x24", "an operator decides what has been decided", state_machine,
        "        return _DONE if repeated else _LOST\n    if command.lease",
        "        if repeated:\n            return _DONE\n    if command.lease",
        "an operator and a late owner", "I2",
    ),
    _mutant(
        "x25", "an operator frees what its owner has gone on with", state_machine,
        "if command.lease_until not in (0, record.lease_until):", "if False:",
        "an operator and a recovery", "I1",
    ),
    _mutant(
        "x26", "the note forgets who decided", state_machine,
        "note=notes.ended(record.note) + command.note", "note=record.note",
        "an operator and a late owner", "I2",
    ),
    _mutant(
        "x23", "a body begins though its claim was refused again", attempt_flow,
        "if isinstance(renewed.reply, Lost):\n            # Taken over",
        "if False:\n            # Taken over",
        "fenced, three attempts", "I5",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Caught:
    """How a mutant was caught: the invariant, what was wrong, and how many states it took."""

    invariant: str
    what: str
    effort: str


def _in_explorer(mutant: Mutant, copy: ModuleType) -> Caught | None:
    code: CodeUnderTest
    if mutant.module is state_machine:
        code = replace(
            REAL,
            decide=copy.decide,
            is_garbage=copy.is_garbage,
            reply_to_duplicate=copy.reply_to_duplicate,
        )
    elif mutant.module is heartbeat_flow:
        code = replace(REAL, heartbeat=copy.heartbeat)
    else:
        code = replace(REAL, attempt=copy.attempt)
    scenario = next(one for one in SCENARIOS if one.name == mutant.where)
    report = explore(scenario, code)
    if report.violation is None:
        return None
    effort = f"{report.states:,} states, {len(report.violation.trace)} steps"
    return Caught(report.violation.invariant, str(report.violation), effort)


def _in_interleaver(mutant: Mutant, copy: ModuleType, path: Path) -> Caught | None:
    race = next(one for one in RACES if one.name == mutant.where)
    report = race_on_sqlite(race, path, copy)
    if not report.invariant:
        return None
    return Caught(report.invariant, str(report), f"{report.runs:,} schedules")


def _in_database(mutant: SQLMutant) -> Caught | None:
    report = look_for(mutant, server().url(DATABASE))
    if not report.invariant:
        return None
    return Caught(report.invariant, str(report), f"{report.runs:,} schedules")


Add = Callable[[Mutant | SQLMutant, Caught | None], None]


@pytest.fixture(scope="module")
def table(summary: list[str]) -> Iterator[Add]:
    """Collects one line per mutant for the summary at the end of the run."""
    lines: list[str] = []
    caught: dict[str, bool] = {}

    def add(mutant: Mutant | SQLMutant, how: Caught | None) -> None:
        caught[mutant.number] = how is not None and how.invariant == mutant.breaks
        result = f"{how.invariant:<4} {how.effort}" if how else "SURVIVED"
        lines.append(f"{mutant.number:<4} {mutant.name:<44} {result}")

    yield add
    seeded = sum(caught.get(number, False) for number in TWELVE)
    more = [right for number, right in caught.items() if number not in TWELVE]
    lines.append(f"caught {seeded} of 12 seeded mutants, {sum(more)} of {len(more)} more")
    summary.extend(["", *lines])


@pytest.mark.parametrize("mutant", [*MUTANTS, *MORE], ids=lambda m: f"{m.number} {m.name}")
def test_a_mutant_is_caught_for_what_it_breaks(mutant: Mutant, tmp_path: Path, table: Add) -> None:
    copy = mutated(mutant.module, *mutant.edits)
    if mutant.module is program:
        how = _in_interleaver(mutant, copy, tmp_path / "race.db")
    else:
        how = _in_explorer(mutant, copy)
    table(mutant, how)
    assert how is not None, "it survived"
    assert how.invariant == mutant.breaks, how.what


@pytest.mark.parametrize("mutant", [M11, *SQL_MUTANTS], ids=lambda m: f"{m.number} {m.name}")
def test_a_mutant_of_the_sql_is_caught_for_what_it_breaks(mutant: SQLMutant, table: Add) -> None:
    how = _in_database(mutant)
    table(mutant, how)
    assert how is not None, "it survived"
    assert how.invariant == mutant.breaks, how.what


def test_all_twelve_mutants_of_the_design_are_there() -> None:
    assert {mutant.number for mutant in (*MUTANTS, M11)} == TWELVE


def test_an_edit_whose_text_is_not_found_once_is_refused() -> None:
    with pytest.raises(ValueError, match="occurs 0 times"):
        mutated(state_machine, Edit("no such text", ""))
    with pytest.raises(ValueError, match="needs text that occurs once"):
        mutated(state_machine, Edit("return", ""))


def test_an_unchanged_copy_of_the_code_breaks_no_invariant() -> None:
    machines, flows, beats = mutated(state_machine), mutated(attempt_flow), mutated(heartbeat_flow)
    share = machines.reply_to_duplicate
    code = CodeUnderTest(
        machines.decide, machines.is_garbage, flows.attempt, beats.heartbeat, share
    )
    report = explore(SCENARIOS[0], code)
    assert report.violation is None
    assert report.states > 100_000
