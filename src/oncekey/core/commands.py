"""Commands to a store and its replies: frozen data, nothing else.

A store's one verb is `apply(commands) -> replies`, reply i answering command i. Commands carry
all a decision needs except the record and the clock, which belong to the store.

Named tuples, because several are made for every operation; the empty replies are classes of their
own, for two empty tuples would be equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from oncekey.core.record import FOREVER_US, Record, State, Step

# --- commands ------------------------------------------------------------------------------


class Claim(NamedTuple):
    """I want to run this. `owner` is random per attempt, so a repeat is known for what it is.

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
    operation: str = ""
    key: str = ""
    in_transaction: bool = False
    keep_unknown: int = FOREVER_US


class Finish(NamedTuple):
    """It ended: `state` is SUCCEEDED, FAILED, or UNKNOWN (interrupted, nobody can tell)."""

    id: bytes
    owner: bytes
    fence: int
    state: State
    body: bytes


class Renew(NamedTuple):
    """I am alive: `lease` more microseconds from now."""

    id: bytes
    owner: bytes
    fence: int
    lease: int


class Release(NamedTuple):
    """Nothing happened, free the key. `fence` is None where the claim's reply never came."""

    id: bytes
    owner: bytes
    fence: int | None


class SaveStep(NamedTuple):
    """Remember this step: first the intent (`done=False`), then its result."""

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
    """Recovery or an operator decides an unknown key; `note` says who and why."""

    id: bytes
    fence: int
    state: State
    body: bytes
    note: str


Command = Claim | Finish | Renew | Release | SaveStep | Look | Resolve

# --- replies -------------------------------------------------------------------------------


class Claimed(NamedTuple):
    """The key is yours. `taken_over` tells that an earlier owner fell silent."""

    fence: int
    attempt: int
    steps: tuple[Step, ...]
    taken_over: bool = False


class Replay(NamedTuple):
    """Finished before: its outcome, and how much longer it holds."""

    state: State
    body: bytes
    attempt: int
    fence: int
    expires_in: int


class Mismatched(NamedTuple):
    """The key belongs to another request; `version` is its fingerprint's."""

    version: int


class Busy(NamedTuple):
    """Someone holds the key for `remaining` more microseconds, unless renewed."""

    remaining: int


class Unknown(NamedTuple):
    """The owner died; the record as it stands, for `recover`, and the store's clock."""

    record: Record
    now: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """The command took effect, now or when it was first sent."""


@dataclass(frozen=True, slots=True)
class Lost:
    """You do not hold this key (any more); nothing was changed."""


class Seen(NamedTuple):
    """The record as it stands, and the store's clock."""

    record: Record | None
    now: int


Reply = Claimed | Replay | Mismatched | Busy | Unknown | Done | Lost | Seen
