"""Commands whose reply never came: what the sender's repeats tell about them.

A connection that breaks leaves a command that took effect or did not. Its sender repeats it, word
for word, and the answer to that often settles the matter: then the two become one command that was
sent when the first was and answered when the last was. Owns that reasoning and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.support.hammer.command_log import Entry

from oncekey.core.record import State

ERROR = "error"
# Whether these took effect matters to no rule: a lease that lasts longer than believed harms none.
HARMLESS = ("Renew", "SaveStep", "Look")
ENDINGS = ("Finish", "Release")


def resolve_failures(entries: Sequence[Entry], keep: int) -> tuple[list[Entry], bool]:
    """One key's log without the claims that failed, and whether the truth about all is known.

    What would have ended a hold stays in it: it may have.
    """
    repeats: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        if entry.reply != ERROR:
            repeats.setdefault(_words(entry), []).append(entry)
    resolved = {
        id(entry): entry for entry in entries if entry.reply != ERROR or entry.verb in ENDINGS
    }
    certain = True
    for failed in entries:
        if failed.reply != ERROR or failed.verb in HARMLESS:
            continue
        later = [one for one in repeats.get(_words(failed), ()) if one.sent >= failed.came]
        answer = min(later, key=lambda entry: entry.sent, default=None)
        if answer is not None and _took_effect(failed, answer):
            known = resolved[id(answer)]
            resolved[id(answer)] = replace(known, sent=min(known.sent, failed.sent))
        elif answer is None or not _had_no_effect(failed, answer, keep):
            certain = False
    return list(resolved.values()), certain


def _words(entry: Entry) -> tuple[object, ...]:
    return (entry.verb, entry.owner, entry.fence, entry.state, entry.body, entry.note)


def _took_effect(failed: Entry, answer: Entry) -> bool:
    """Then or now: nobody else can have come between."""
    if failed.verb != "Claim":
        return answer.reply == "Done"
    if answer.came >= failed.sent + failed.lease:
        return False
    # A repeat does not tell whether the first took over from a dead owner. Where it is text that
    # nobody knows, the first may have been the one to give the dead owner up.
    how = answer.taken_over or answer.given_attempt == 1
    return answer.reply == "Unknown" or (answer.reply == "Claimed" and how)


def _had_no_effect(failed: Entry, answer: Entry, keep: int) -> bool:
    """If it had, the repeat would have been answered otherwise."""
    if failed.verb == "Claim":
        refused = answer.reply in ("Busy", "Mismatched", "Replay")
        return refused and answer.came < failed.sent + failed.lease
    final = failed.state in (State.SUCCEEDED, State.FAILED)
    return failed.verb == "Finish" and final and answer.came < failed.sent + keep
