"""The invariants of CONTRIBUTING.md that one key can break, each by its number.

Every check is written from the promise, not from the code: it must not call what it checks. It
returns None if the promise holds, else what is wrong. The mutants show that each check can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.support.explorer.code_under_test import CodeUnderTest
from tests.support.explorer.descriptions import describe_record, owner_name
from tests.support.explorer.ledger import ENDED, Change, LedgerPage, SideEffect, is_live
from tests.support.explorer.process import HeldClaim
from tests.support.explorer.scenario import Actor
from tests.support.explorer.window_rules import AskingRule, stranger

from oncekey.core.commands import (
    Busy,
    Claim,
    Claimed,
    Done,
    Finish,
    Lost,
    Mismatched,
    Release,
    Replay,
    Resolve,
    Seen,
    Unknown,
)
from oncekey.core.effects import AttemptOutcome
from oncekey.core.events import EventKind
from oncekey.core.record import FOREVER_US, Record, State

# --- on a body's effect ----------------------------------------------------------------------


def i1_at_most_one_effect(
    record: Record | None, actor: Actor, held: HeldClaim, now: int, page: LedgerPage
) -> str | None:
    """I1: an effect is the owner's, and one that cannot be repeated is its generation's last."""
    if not _holds(record, held):
        stored = describe_record(record)
        return f"{actor.name} acts under fence {held.fence}, but the store has {stored}"
    if page.effect is SideEffect.FINAL:
        return f"{actor.name} acts, and this generation already had an effect"
    return None


# --- on a decision of the store ----------------------------------------------------------------


def _is_only_noted(before: Record, wrote: Record) -> bool:
    return wrote._replace(note=before.note) == before


def i2_one_finish(change: Change) -> str | None:
    """I2: only the owner finishes, pending or given up as unknown; a finished record never changes
    until it expires, unless an operator frees a failed one."""
    before, wrote = change.before, change.wrote
    if before is None or wrote is None or _is_only_noted(before, wrote):
        return None
    command = change.command
    if isinstance(command, Resolve) and command.expected is State.FAILED is before.state:
        return None  # an operator frees what has failed, and a new generation begins
    if is_live(before, change.now) and before.state in ENDED:
        return f"finished as {describe_record(before)}, changed to {describe_record(wrote)}"
    decided = isinstance(command, (Resolve, Finish, Release))
    if is_live(before, change.now) and before.state is State.UNKNOWN and not decided:
        return f"unknown was left by something else than a decision: {describe_record(wrote)}"
    if isinstance(command, (Finish, Release)):
        mine = before.owner == command.owner and command.fence in (None, before.fence)
        if not mine or before.state not in (State.PENDING, State.UNKNOWN):
            return f"a finish of another owner was taken over {describe_record(before)}"
    if sum(end.state in ENDED for end in change.new.ends) > 1:
        return "two outcomes in one generation"
    return None


def i2_the_note_says_who_decided(change: Change) -> str | None:
    """I2: a key is decided once, as it was shown, and its note's last line says by whom; an owner
    that ended its key itself is not named there."""
    before, command, after = change.before, change.command, change.after
    if isinstance(change.reply, Lost) or before is None or after is None:
        return None
    line = after.note.rpartition("\n")[2]
    if isinstance(command, Finish) and change.wrote is not None and line:
        return f"the owner ended it, but the note says {line!r}"
    if not isinstance(command, Resolve):
        return None
    if before.fence != command.fence:
        return f"fence {command.fence} was shown, and fence {before.fence} was decided"
    if after.state is not command.state or not line.startswith(command.note):
        return f"{command.note!r} got Done for {describe_record(after)}, whose note is {line!r}"
    return None


def i3_first_bytes(change: Change) -> str | None:
    """I3: a replay carries the bytes stored first."""
    reply = change.reply
    if not isinstance(reply, Replay):
        return None
    stored = [end for end in change.old.ends if end.state in ENDED]
    if len(stored) == 1 and (reply.state, reply.body) == (stored[0].state, stored[0].body):
        return None
    return f"replayed {reply.body!r}, first stored {[end.body for end in stored]}"


def i4_done_is_stored(change: Change) -> str | None:
    """I4: an outcome whose finish got the reply Done is in the store exactly so."""
    command, after = change.command, change.after
    if not isinstance(command, Finish) or not isinstance(change.reply, Done):
        return None
    if command.state not in ENDED:
        return None
    if after is not None and (after.state, after.body) == (command.state, command.body):
        return None
    return f"Done for {command.body!r}, but the store has {describe_record(after)}"


def i5_no_early_takeover(change: Change) -> str | None:
    """I5: while a lease is alive nobody but its owner changes a pending record."""
    before, wrote = change.before, change.wrote
    if before is None or wrote is None or before.state is not State.PENDING:
        return None
    if change.now >= before.lease_until:
        return None
    owner = None if isinstance(change.command, Resolve) else getattr(change.command, "owner", None)
    if owner == before.owner:
        return None
    return (
        f"{describe_record(before)}, and it was changed to {describe_record(wrote)} at {change.now}"
    )


def i6_fence_grows(change: Change) -> str | None:
    """I6: a new grant's fence is above every earlier one, over all generations."""
    before, reply = change.before, change.reply
    if not isinstance(reply, Claimed):
        return None
    again = before is not None and before.state is State.PENDING and before.fence == reply.fence
    if again or reply.fence > change.old.top:
        return None
    return f"granted fence {reply.fence} after {change.old.top}"


def i7_mismatch_exactly(change: Change) -> str | None:
    """I7: mismatch exactly when the live record is bound to another request."""
    before, command = change.before, change.command
    if not isinstance(command, Claim):
        return None
    differs = False
    if before is not None and is_live(before, change.now):
        # A freed key stays bound to its request if steps of it were saved.
        bound = before.state is not State.ABSENT or bool(before.steps)
        differs = bound and before.fingerprint != command.fingerprint
    if differs == isinstance(change.reply, Mismatched):
        return None
    return f"the fingerprints {'differ' if differs else 'agree'}, the reply is {change.reply}"


def i7_rejections_change_nothing(change: Change) -> str | None:
    """I7: rejections and replays write nothing; a late owner's finish may add to the note."""
    before, wrote, reply = change.before, change.wrote, change.reply
    if wrote is None or not isinstance(reply, (Mismatched, Busy, Replay, Lost, Seen, Unknown)):
        return None
    if isinstance(change.command, Finish) and before and _is_only_noted(before, wrote):
        return None
    if isinstance(reply, Unknown) and before is not None and before.state is State.PENDING:
        return None  # giving up is a change; that it is not early is I5
    return f"{type(reply).__name__} wrote {describe_record(wrote)}"


def i9_repeatable(change: Change, code: CodeUnderTest) -> str | None:
    """I9: the same command again gets the same reply and changes nothing but the lease."""
    after = change.after
    again = code.decide(after, change.command, change.now)
    if type(again.reply) is not type(change.reply):
        return f"the reply was {change.reply}, repeated at once {again.reply}"
    if again.write is None or after is None:
        return None
    if again.write._replace(lease_until=0) != after._replace(lease_until=0):
        return f"repeating it changed {describe_record(after)} to {describe_record(again.write)}"
    return None


def i7_duplicates_get_the_same_reply(change: Change, code: CodeUnderTest) -> str | None:
    """I7: a duplicate that is replied to from this claim's reply gets what the store would have
    replied right after, and the store would have changed nothing."""
    if not isinstance(change.command, Claim):
        return None
    for fingerprint in (change.command.fingerprint, change.command.fingerprint + b"!"):
        duplicate = change.command._replace(owner=b"duplicate", fingerprint=fingerprint)
        shared = code.reply_to_duplicate(change.command, change.reply, duplicate)
        sent = code.decide(change.after, duplicate, change.now)
        if shared is not None and (shared != sent.reply or sent.write is not None):
            return f"a duplicate got {shared} after {change.reply}, the store replies {sent.reply}"
    return None


def i9_released_stays_released(change: Change) -> str | None:
    """I9: a claim that arrives again after its owner released the key does not take it."""
    before, command = change.before, change.command
    if before is None or not is_live(before, change.now) or not isinstance(command, Claim):
        return None
    gone = before.state is State.ABSENT and before.owner == command.owner
    if gone and isinstance(change.reply, Claimed):
        return f"{owner_name(command.owner)} had released the key and was granted it again"
    return None


def i14_a_late_owner_is_accepted(change: Change) -> str | None:
    """I14: the owner of a key that was given up meanwhile gets Done for its known result."""
    before, command = change.before, change.command
    if not isinstance(command, Finish) or before is None or before.state is not State.UNKNOWN:
        return None
    mine = (before.owner, before.fence) == (command.owner, command.fence)
    if not mine or isinstance(change.reply, Done):
        return None
    return f"{owner_name(command.owner)} ended {describe_record(before)}, and got {change.reply}"


ON_CHANGE: Final[tuple[tuple[str, Callable[[Change], str | None]], ...]] = (
    ("I2", i2_one_finish),
    ("I2", i2_the_note_says_who_decided),
    ("I3", i3_first_bytes),
    ("I4", i4_done_is_stored),
    ("I7", i7_mismatch_exactly),
    ("I7", i7_rejections_change_nothing),
    ("I5", i5_no_early_takeover),
    ("I6", i6_fence_grows),
    ("I9", i9_released_stays_released),
    ("I14", i14_a_late_owner_is_accepted),
)

# These ask the code under test what it would decide; more of them are in window_rules.py.
ON_CHANGE_ASKING: Final[tuple[tuple[str, AskingRule], ...]] = (
    ("I9", i9_repeatable),
    ("I7", i7_duplicates_get_the_same_reply),
)

# --- on a sweep --------------------------------------------------------------------------------


def i12_sweep_removes_garbage_only(record: Record, now: int) -> str | None:
    """I12: a sweep removes no live claim and no unexpired outcome."""
    if record.state is State.PENDING and now < record.lease_until:
        return f"swept a live claim: {describe_record(record)}"
    if record.state is not State.ABSENT and is_live(record, now):
        return f"swept a record that is still needed: {describe_record(record)}"
    return None


# --- on the outcome of an attempt --------------------------------------------------------------


def i3_replay_is_stored(outcome: AttemptOutcome, actor: Actor, page: LedgerPage) -> str | None:
    """I3: what is replayed was stored, for the same request."""
    if outcome.kind is not EventKind.REPLAYED:
        return None
    if outcome.expires_in <= 0:
        return f"{actor.name} replays {outcome.body!r}, which had expired"
    replayed = (outcome.state, outcome.body, outcome.fence)
    for end in page.all_ends:
        if replayed == (end.state, end.body, end.fence) and end.fingerprint == actor.fingerprint:
            return None
    return f"{actor.name} replays {replayed}, which was never stored for this request"


def i13_durable_first(outcome: AttemptOutcome, actor: Actor, page: LedgerPage) -> str | None:
    """I13: what a caller gets was in the store before."""
    ends = [end for end in page.all_ends if end.fence == outcome.fence]
    if outcome.kind is EventKind.FINISHED and outcome.error is None:
        given = (outcome.state, outcome.body)
        if given not in [(end.state, end.body) for end in ends]:
            return f"{actor.name}'s caller gets {outcome.body!r}, the store never had it"
    elif outcome.kind is EventKind.FINISHED:
        if not any(end.state is not State.ABSENT for end in ends):
            return f"{actor.name}'s caller gets a stored failure, the store never had it"
    elif outcome.kind is EventKind.RELEASED and not ends:
        return f"{actor.name}'s caller gets a released key, it never was"
    return None


# --- on a state --------------------------------------------------------------------------------


def i4_acked_stays(record: Record | None, now: int, page: LedgerPage) -> str | None:
    """I4: an acknowledged finish is in the store until it expires."""
    acked = page.acked
    if acked is None or now >= acked.until:
        return None
    if record is not None and (record.state, record.body, record.fence) == acked[:3]:
        return None
    return f"acknowledged {acked.body!r}, now there is {describe_record(record)}"


def i5_owner_holds(record: Record | None, held: HeldClaim, now: int) -> str | None:
    """I5: before its deadline (send time + lease) an owner has the key, pending, in the store."""
    if now >= held.deadline or _holds(record, held):
        return None
    return (
        f"{owner_name(held.owner)} believes it holds fence {held.fence} until {held.deadline}, "
        f"but at {now} the store has {describe_record(record)}"
    )


def i10_a_crashed_key_recovers(record: Record | None, now: int, code: CodeUnderTest) -> str | None:
    """I10: if all crashed now, a new claim after the lease would be granted or get the outcome."""
    if record is None:
        return None
    later = max(now, record.lease_until)
    for retry_safe in (True, False):
        reply = code.decide(record, stranger(record.fingerprint, retry_safe), later).reply
        if not isinstance(reply, (Claimed, Unknown, Replay)):
            return f"at {later} a new claim on {describe_record(record)} gets {reply}"
    return None


def i11_everything_expires(
    record: Record | None, now: int, code: CodeUnderTest, longest: int
) -> str | None:
    """I11: once all windows have passed the key is fresh again and its record is garbage; what
    nobody has decided has no window, unless `keep_unknown` sets one."""
    if record is None:
        return None
    later = now + longest
    if is_live(record, later) and record.keep_unknown == FOREVER_US:
        reply = code.decide(record, stranger(record.fingerprint, False), later).reply
        return None if isinstance(reply, Unknown) else f"at {later} it gets {reply}"
    reply = code.decide(record, stranger(b"\x01new", False), later).reply
    if not isinstance(reply, Claimed):
        return f"at {later} a new claim on {describe_record(record)} gets {reply}"
    if not code.is_garbage(record, later):
        return f"at {later} the sweeper still keeps {describe_record(record)}"
    return None


def _holds(record: Record | None, held: HeldClaim) -> bool:
    return (
        record is not None
        and record.state is State.PENDING
        and record.owner == held.owner
        and record.fence == held.fence
    )
