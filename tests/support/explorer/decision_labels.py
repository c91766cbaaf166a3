"""Sorts decisions of the store into kinds, so that an exploration can report what it has met."""

from __future__ import annotations

from tests.support.explorer.ledger import Change, is_live

from oncekey.core.commands import (
    Busy,
    Claim,
    Claimed,
    Finish,
    Lost,
    Mismatched,
    Release,
    Renew,
    Replay,
    Resolve,
    Unknown,
)
from oncekey.core.record import State


def kind_of(change: Change) -> str:
    """The kind of a decision, e.g. "takeover"."""
    before, command, reply = change.before, change.command, change.reply
    if isinstance(command, Claim):
        if isinstance(reply, Claimed):
            if reply.taken_over:
                return "takeover"
            if before is None:
                return "claim"
            if not is_live(before, change.now):
                return "expiry"
            return "claim of a freed key" if before.state is State.ABSENT else "claim again"
        if isinstance(reply, Unknown):
            return "give-up" if change.wrote is not None else "unknown"
        kinds = {Replay: "replay", Mismatched: "mismatch", Busy: "in flight", Lost: "straggler"}
        return kinds[type(reply)]
    verbs = {Finish: "finish", Renew: "renew", Release: "release", Resolve: "resolve"}
    verb = verbs.get(type(command), "look")
    if isinstance(reply, Lost):
        return f"{verb} refused"
    if verb == "finish" and change.wrote is not None and before is not None:
        return "finish of an unknown key" if before.state is State.UNKNOWN else verb
    return verb if change.wrote is not None or verb == "look" else f"{verb} again"
