"""Commands to a store and its replies: frozen data, nothing else.

A store applies commands with `apply(commands) -> replies`; reply i belongs to command i. Commands
carry all that a decision needs except the record and the clock, which are the store's.

The empty replies are classes of their own, since two empty tuples would be equal.

Where one is made for every operation, it is made by `from_fields(Kind, (...))`, with all fields in
their order: that takes half as long as calling the class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from oncekey.core.record import FOREVER_US, Record, State, Step

from_fields: Final = tuple.__new__

# --- commands ------------------------------------------------------------------------------


class Claim(NamedTuple):
    """Claim the key for one attempt. `owner` is random per attempt, so that a repeated claim is
    recognised. `scope`, `label` (origin.py) and `key` describe the record, and decide nothing.

    `in_transaction`: the claim belongs to a caller's transaction, so others see it only if
    somebody committed halfway; then nobody may run it again.
    """

    id: bytes
    owner: bytes
    fingerprint: bytes
    lease: int
    keep: int
    audit: int
    retry_safe: bool
    scope: str = ""
    label: str = ""
    key: str = ""
    in_transaction: bool = False
    keep_unknown: int = FOREVER_US


class Finish(NamedTuple):
    """The body ended: `state` is SUCCEEDED, FAILED, or UNKNOWN (interrupted, nobody can tell)."""

    id: bytes
    owner: bytes
    fence: int
    state: State
    body: bytes


class Renew(NamedTuple):
    """The owner is alive: its lease ends `lease` microseconds from now."""

    id: bytes
    owner: bytes
    fence: int
    lease: int


class Release(NamedTuple):
    """Nothing happened, free the key. `fence` is None if the reply to the claim never came."""

    id: bytes
    owner: bytes
    fence: int | None


class SaveStep(NamedTuple):
    """Store a step: first its intent (`done=False`), then its result."""

    id: bytes
    owner: bytes
    fence: int
    name: str
    done: bool
    body: bytes


class Look(NamedTuple):
    """Read the record; changes nothing."""

    id: bytes


class Resolve(NamedTuple):
    """Decide an unknown key, by recovery or by an operator; `note` says who and why. An operator
    may also free a failed key (`expected` is FAILED, `state` is ABSENT).

    `lease_until` is that of the record that was shown; 0 if it does not matter. A silent owner that
    comes back renews its lease and goes on, so what was found out before does not hold any more.
    """

    id: bytes
    fence: int
    state: State
    body: bytes
    note: str
    expected: State = State.UNKNOWN
    lease_until: int = 0


class Adopt(NamedTuple):
    """Take over a record as it stands in another store, where the clock read `at`: see
    moved_records.py. With `past` it is a past generation, for the history only. With `counts` it is
    known to count more than whatever has no higher fence here."""

    record: Record
    at: int
    past: bool = False
    counts: bool = False

    @property
    def id(self) -> bytes:
        return self.record.id


class ClaimAlso(NamedTuple):
    """Claim a key that another store has granted to the same claim, with that store's fence. The
    reply is FenceTooLow if this key may have had that fence, or a higher one, here."""

    claim: Claim
    fence: int

    @property
    def id(self) -> bytes:
        return self.claim.id

    @property
    def owner(self) -> bytes:
        return self.claim.owner

    @property
    def lease(self) -> int:
        return self.claim.lease

    @property
    def label(self) -> str:
        return self.claim.label


class RaiseFence(NamedTuple):
    """The claim has got the fence `to` in another store: it has that fence here as well."""

    id: bytes
    owner: bytes
    fence: int
    to: int


# These put a claim into a store.
CLAIMS: Final = (Claim, ClaimAlso)
# These may put a record into a store that had none of its key: before them the store's settings
# must be known, and after them it needs more room.
PUTTING: Final = (Claim, ClaimAlso, Adopt)

Command = (
    Claim | Finish | Renew | Release | SaveStep | Look | Resolve | Adopt | ClaimAlso | RaiseFence
)

# --- replies -------------------------------------------------------------------------------


class Claimed(NamedTuple):
    """The key is yours. `taken_over`: an earlier owner fell silent."""

    fence: int
    attempt: int
    steps: tuple[Step, ...]
    taken_over: bool = False


class Replay(NamedTuple):
    """The key has ended before: its outcome, and for how much longer it is replayed."""

    state: State
    body: bytes
    attempt: int
    fence: int
    expires_in: int


class Mismatched(NamedTuple):
    """The key belongs to another request; `version` is that of the stored fingerprint."""

    version: int


class Busy(NamedTuple):
    """Another owner holds the key for `remaining` more microseconds, or longer if it renews."""

    remaining: int


class Unknown(NamedTuple):
    """The owner died. The record is for `recover`; `now` is the store's clock."""

    record: Record
    now: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """The command has taken effect, now or when it was first sent."""


@dataclass(frozen=True, slots=True)
class Lost:
    """You do not hold this key (any more); nothing was changed."""


class Seen(NamedTuple):
    """The reply to Look: the record, None if there is none, and the store's clock."""

    record: Record | None
    now: int


class FenceTooLow(NamedTuple):
    """The reply to ClaimAlso: it was not granted, and would be with a fence above this one."""

    above: int


Reply = Claimed | Replay | Mismatched | Busy | Unknown | Done | Lost | Seen | FenceTooLow
