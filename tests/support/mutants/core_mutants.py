"""Seeded bugs in the core and in the program of the SQLite store: each is the real text with one
thing wrong.

MUTANTS are those of the design's list of twelve (m11 is in sql_mutants.py); each in MORE shows that
one more check can fail. A mutant names where the explorer finds it. Which test of the contract and
which rule of the hammer find the twelve is in expected_catches.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Final

from tests.support.explorer.mutation import Edit

from oncekey.core import attempt_flow, heartbeat_flow, state_machine
from oncekey.engine.attempts import attempt_driver, runner
from oncekey.stores.sqlite import program

TWELVE: Final = frozenset(f"m{number}" for number in range(1, 13))


@dataclass(frozen=True)
class Mutant:
    """A seeded bug: its module, the scenario or race that catches it, and what it breaks.

    `drivers`: the same mistake in the engines, where they take the usual way without a flow.
    """

    number: str
    name: str
    module: ModuleType
    edits: tuple[Edit, ...]
    where: str
    breaks: str
    drivers: tuple[tuple[ModuleType, Edit], ...] = ()


def _mutant(
    number: str, name: str, module: ModuleType, old: str, new: str, where: str, breaks: str
) -> Mutant:
    return Mutant(number, name, module, (Edit(old, new),), where, breaks)


_OWNS = "record.owner != owner or record.fence != fence"
_AGAIN = (
    "    if before != PENDING and (before != UNKNOWN or state == UNKNOWN):\n"
    "        # The same owner again"
)

_DEADLINE_OF_A_DRIVER = Edit(
    "granted(claim, reply, sent_at)", "granted(claim, reply, self._clock.now())"
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
    Mutant(
        "m12", "deadline from the reply", attempt_flow,
        (Edit("granted(claim, reply, result.sent_at)", "granted(claim, reply, result.at)"),),
        "fenced, three attempts", "I5",
        drivers=((runner, _DEADLINE_OF_A_DRIVER), (attempt_driver, _DEADLINE_OF_A_DRIVER)),
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
        "return _DONE if decided == (command.state, command.note, command.body) else _LOST\n",
        "if decided == (command.state, command.note, command.body):\n            return _DONE\n",
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
    _mutant(
        "x27", "a lease ends one microsecond early", state_machine,
        "return now < record.lease_until", "return now < record.lease_until - 1",
        "fenced, three attempts", "I5",
    ),
    _mutant(
        "x28", "keep is counted from the claim", state_machine,
        "record.ended(_ENDED[before, state], now, body)",
        "record.ended(_ENDED[before, state], record.created_at, body)",
        "at most once, three attempts", "I3",
    ),
    _mutant(
        "x29", "renewals add up", state_machine,
        "Trigger.RENEW), lease_until=now + command.lease",
        "Trigger.RENEW), lease_until=record.lease_until + command.lease",
        "fenced, heartbeat", "I10",
    ),
    _mutant(
        "x30", "the sweeper takes what is to be audited", state_machine,
        "return now >= record.audit_until", "return now >= record.expires_at",
        "fenced, three attempts", "I12",
    ),
    _mutant(
        "x31", "a takeover is the same attempt", state_machine,
        "attempt=record.attempt + 1,", "attempt=record.attempt,",
        "fenced, three attempts", "I11",
    ),
    _mutant(
        "x32", "a replay says that it is kept for longer", state_machine,
        "left = record.expires_at - now", "left = record.expires_at",
        "at most once, three attempts", "I3",
    ),
)  # fmt: skip
