"""Commands to a store and its replies: frozen data, nothing else.

A store's one verb is `apply(commands) -> replies`, reply i answering command i. Commands carry
all a decision needs except the record and the clock, which belong to the store.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncekey.core.record import Record, State, Step

# --- commands ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """I want to run this. `owner` is random per attempt, so a repeat is known for what it is."""

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


@dataclass(frozen=True, slots=True)
class Finish:
    """It ended: `state` is SUCCEEDED, FAILED, or UNKNOWN (interrupted, nobody can tell)."""

    id: bytes
    owner: bytes
    fence: int
    state: State
    body: bytes


@dataclass(frozen=True, slots=True)
class Renew:
    """I am alive: `lease` more microseconds from now."""

    id: bytes
    owner: bytes
    fence: int
    lease: int


@dataclass(frozen=True, slots=True)
class Release:
    """Nothing happened, free the key. `fence` is None where the claim's reply never came."""

    id: bytes
    owner: bytes
    fence: int | None


@dataclass(frozen=True, slots=True)
class SaveStep:
    """Remember this step: first the intent (`done=False`), then its result."""

    id: bytes
    owner: bytes
    fence: int
    name: str
    done: bool
    body: bytes


@dataclass(frozen=True, slots=True)
class Look:
    """Read the record; changes nothing."""

    id: bytes


@dataclass(frozen=True, slots=True)
class Resolve:
    """Recovery or an operator decides an unknown key; `note` says who and why."""

    id: bytes
    fence: int
    state: State
    body: bytes
    note: str


Command = Claim | Finish | Renew | Release | SaveStep | Look | Resolve

# --- replies -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claimed:
    """The key is yours. `taken_over` tells that an earlier owner fell silent."""

    fence: int
    attempt: int
    steps: tuple[Step, ...]
    taken_over: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """Finished before: its outcome, and how much longer it holds."""

    state: State
    body: bytes
    attempt: int
    fence: int
    expires_in: int


@dataclass(frozen=True, slots=True)
class Different:
    """The key belongs to another request; `version` is its fingerprint's."""

    version: int


@dataclass(frozen=True, slots=True)
class Busy:
    """Someone holds the key for `remaining` more microseconds, unless renewed."""

    remaining: int


@dataclass(frozen=True, slots=True)
class Unsure:
    """The owner died; the record as it stands, for `recover`."""

    record: Record


@dataclass(frozen=True, slots=True)
class Done:
    """The command took effect, now or when it was first sent."""


@dataclass(frozen=True, slots=True)
class Lost:
    """You do not hold this key (any more); nothing was changed."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The record as it stands, and the store's clock."""

    record: Record | None
    now: int


Reply = Claimed | Replay | Different | Busy | Unsure | Done | Lost | Seen
