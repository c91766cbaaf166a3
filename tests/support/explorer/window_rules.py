"""What a decision of the store promises for later: leases, retention and steps, to the microsecond.

The checks of invariants.py compare what was written with what happens afterwards, and believe the
times in a record. These do not: each asks the code under test about the moments just before and at
the end of a window that the promise gives, so that a window that is too short or too long by one
unit is found wherever a record is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.support.explorer.code_under_test import CodeUnderTest
from tests.support.explorer.descriptions import describe_record
from tests.support.explorer.ledger import ENDED, Change, is_live
from tests.support.explorer.scenario import KEY

from oncekey.core.commands import (
    Busy,
    Claim,
    Claimed,
    Done,
    Finish,
    Lost,
    Renew,
    Replay,
    Resolve,
    SaveStep,
)
from oncekey.core.record import State

# A rule that asks the code under test what it would decide.
AskingRule = Callable[[Change, CodeUnderTest], str | None]


def stranger(fingerprint: bytes, retry_safe: bool) -> Claim:
    """A claim of somebody who was never seen before."""
    return Claim(KEY, b"new" * 6, fingerprint, 1, 1, 1, retry_safe)


def i3_kept_from_its_end(change: Change, code: CodeUnderTest) -> str | None:
    """I3: an outcome is replayed until `keep` is over, counted from when it was stored, and not
    longer; and the replay says for how long."""
    wrote = change.wrote
    if wrote is None or wrote.state not in ENDED or not _is_end(change):
        return None
    if wrote.finished_at != change.now:
        return f"it ended at {change.now}, and {describe_record(wrote)} at {wrote.finished_at}"
    until = change.now + wrote.keep
    claim = stranger(wrote.fingerprint, True)
    last = code.decide(wrote, claim, until - 1).reply
    if not isinstance(last, Replay) or last.expires_in != 1:
        return (
            f"kept until {until}, but just before a claim of {describe_record(wrote)} gets {last}"
        )
    if not isinstance(code.decide(wrote, claim, until).reply, Claimed):
        return f"kept until {until}, but then {describe_record(wrote)} cannot be claimed"
    return None


def _is_end(change: Change) -> bool:
    return isinstance(change.command, (Finish, Resolve)) and not isinstance(change.reply, Lost)


def i12_audited_after_that(change: Change, code: CodeUnderTest) -> str | None:
    """I12: the sweeper leaves an outcome until its audit window is over."""
    wrote = change.wrote
    if wrote is None or wrote.state not in ENDED or not _is_end(change):
        return None
    until = change.now + wrote.keep + wrote.audit
    if code.is_garbage(wrote, until - 1):
        return f"audited until {until}, but {describe_record(wrote)} may be swept before"
    return None


def i4_finished_steps_stay(change: Change, code: CodeUnderTest) -> str | None:
    """I4: a late copy of its intent does not undo a finished step."""
    command = change.command
    if type(command) is not SaveStep or not command.done or not isinstance(change.reply, Done):
        return None
    late = code.decide(change.after, command._replace(done=False, body=b"late"), change.now)
    if late.write is None:
        return None
    return f"a late copy of the intent of {command.name!r} undoes its result"


def i5_held_until_its_end(change: Change, code: CodeUnderTest) -> str | None:
    """I5: nobody else gets the key while its lease lasts, not even in its last microsecond."""
    wrote = change.wrote
    if wrote is None or wrote.state is not State.PENDING or wrote.lease_until <= change.now:
        return None
    last = code.decide(wrote, stranger(wrote.fingerprint, True), wrote.lease_until - 1).reply
    if isinstance(last, Busy):
        return None
    return f"just before its end a claim of {describe_record(wrote)} gets {last}"


def i10_leases_are_as_asked(change: Change, code: CodeUnderTest) -> str | None:
    """I10: a key is held for one lease from the last claim or renewal, and not longer."""
    command, wrote = change.command, change.wrote
    if wrote is None or wrote.state is not State.PENDING or not isinstance(command, (Claim, Renew)):
        return None
    if wrote.lease_until == change.now + command.lease:
        return None
    return f"at {change.now} a lease of {command.lease} was asked for: {describe_record(wrote)}"


def i11_attempts_are_counted(change: Change, code: CodeUnderTest) -> str | None:
    """I11: each attempt of a generation has the next number; completers count their tries by it."""
    before, reply = change.before, change.reply
    if not isinstance(reply, Claimed):
        return None
    number = 1
    if before is not None and is_live(before, change.now):
        again = before.state is State.PENDING and before.fence == reply.fence
        number = before.attempt + (not again)
    return None if reply.attempt == number else f"attempt {number} has the number {reply.attempt}"


ON_CHANGE_ASKING: Final[tuple[tuple[str, AskingRule], ...]] = (
    ("I3", i3_kept_from_its_end),
    ("I4", i4_finished_steps_stay),
    ("I5", i5_held_until_its_end),
    ("I10", i10_leases_are_as_asked),
    ("I11", i11_attempts_are_counted),
    ("I12", i12_audited_after_that),
)
