"""Derives what a duplicate of a claim is told from the reply to that claim.

Two claims of one key that wait in one process need not both be sent: the second one's reply follows
from the first one's, as if the store had decided the second right after the first, at the same time
of its clock. The explorer and a test hold this against `machine.decide`.

Pure. Must not know who waits where; that is engine/duplicates.py.
"""

from __future__ import annotations

from oncekey.core.commands import Busy, Claim, Claimed, Mismatched, Replay, Reply, Unknown
from oncekey.core.fingerprint import version_of


def reply_to_duplicate(claim: Claim, reply: Reply, duplicate: Claim) -> Reply | None:
    """The reply to `duplicate` right after `claim` got `reply`; None where it cannot be told and
    the duplicate must be sent.

    The duplicate must hold nothing: it was never sent, or it was answered. One whose reply was
    lost may be the very claim that others are told of.
    """
    same = claim.fingerprint == duplicate.fingerprint
    if isinstance(reply, Claimed):
        return Busy(claim.lease) if same else Mismatched(version_of(claim.fingerprint))
    if isinstance(reply, (Replay, Unknown)):  # told only to a request that is the record's own
        return reply if same else Mismatched(version_of(claim.fingerprint))
    if isinstance(reply, (Busy, Mismatched)):
        # A caller's transaction may hold a key whose request nobody outside has seen.
        return reply if same else None
    return None
