"""Lists the attempts that run in this process, which answer their duplicates without a command.

An attempt holds its key until its own deadline, by the store's word, so until then a duplicate's
claim could only be told that. Owns the registry only; after the deadline, and once the attempt's
end is being stored, the store must say.
"""

from __future__ import annotations

from oncekey.core.commands import Busy, Claim, Mismatched
from oncekey.core.fingerprint import version_of
from oncekey.engine.attempt_base import AttemptBase


class Holders:
    """Safe from any thread: each step is one operation on a dict."""

    def __init__(self) -> None:
        self._held: dict[bytes, tuple[bytes, AttemptBase]] = {}

    def reset(self) -> None:
        """In a forked child, whose parent's attempts do not run here."""
        self._held = {}

    def add(self, fingerprint: bytes, attempt: AttemptBase) -> None:
        self._held[attempt._grant.id] = (fingerprint, attempt)

    def remove(self, attempt: AttemptBase) -> None:
        """Before its end is sent: from then on only the store knows."""
        id = attempt._grant.id
        held = self._held.get(id)
        if held is not None and held[1] is attempt:  # not one that has taken over
            self._held.pop(id, None)

    def left(self, id: bytes, now: int) -> int:
        """How much longer an attempt of this process surely holds the key; 0 if none does."""
        held = self._held.get(id)
        if held is None or held[1]._lost:
            return 0
        return max(0, held[1]._deadline - now)

    def reply(self, claim: Claim, now: int) -> Busy | Mismatched | None:
        """What the attempt that runs here means for this claim; None where the store must say."""
        left = self.left(claim.id, now)
        held = self._held.get(claim.id)
        if not left or held is None:
            return None
        if held[0] != claim.fingerprint:
            return Mismatched(version_of(held[0]))
        return Busy(left)
