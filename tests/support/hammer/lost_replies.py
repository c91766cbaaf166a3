"""Commands whose reply never came: whether they took effect, by the replies to their repeats.

A connection that breaks leaves a command that took effect or did not. Its sender repeats the same
command, and the reply to that often decides the question: then the two become one command that was
sent when the first was, and whose reply came when the last did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.support.hammer.command_log import Entry

from oncekey.core.record import State

ERROR = "error"
# No rule depends on whether these took effect: a lease may last longer than its owner believes.
HARMLESS = ("Renew", "SaveStep", "Look")
ENDINGS = ("Finish", "Release")


def resolve_failures(entries: Sequence[Entry], keep: int) -> tuple[list[Entry], bool]:
    """The log of one key without the claims that failed, and whether it is known which of them took
    effect.

    A finish or release that failed stays in the log, since it may have ended a grant.
    """
    repeats: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        if entry.reply != ERROR:
            repeats.setdefault(_content(entry), []).append(entry)
    resolved = {
        id(entry): entry for entry in entries if entry.reply != ERROR or entry.verb in ENDINGS
    }
    certain = True
    for failed in entries:
        if failed.reply != ERROR or failed.verb in HARMLESS:
            continue
        later = [one for one in repeats.get(_content(failed), ()) if one.sent >= failed.came]
        repeat = min(later, key=lambda entry: entry.sent, default=None)
        if repeat is not None and _took_effect(failed, repeat):
            known = resolved[id(repeat)]
            resolved[id(repeat)] = replace(known, sent=min(known.sent, failed.sent))
        elif repeat is None or not _had_no_effect(failed, repeat, keep):
            certain = False
    return list(resolved.values()), certain


def _content(entry: Entry) -> tuple[object, ...]:
    return (entry.verb, entry.owner, entry.fence, entry.state, entry.body, entry.note)


def _took_effect(failed: Entry, repeat: Entry) -> bool:
    """The first command or its repeat took effect, and nobody else came in between."""
    if failed.verb != "Claim":
        return repeat.reply == "Done"
    if repeat.came >= failed.sent + failed.lease:
        return False
    # The reply to a repeat does not say whether the first took over from a dead owner. If it is
    # Unknown, the first may have been the one that gave up the dead owner.
    how = repeat.taken_over or repeat.given_attempt == 1
    return repeat.reply == "Unknown" or (repeat.reply == "Claimed" and how)


def _had_no_effect(failed: Entry, repeat: Entry, keep: int) -> bool:
    """If the first had taken effect, the reply to its repeat would be another."""
    if failed.verb == "Claim":
        refused = repeat.reply in ("Busy", "Mismatched", "Replay")
        return refused and repeat.came < failed.sent + failed.lease
    final = failed.state in (State.SUCCEEDED, State.FAILED)
    return failed.verb == "Finish" and final and repeat.came < failed.sent + keep
