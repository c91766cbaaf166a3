"""What has really happened to the key, kept beside the store for the invariants to compare with.

A generation runs from the claim of a fresh (absent or expired) key to the next such claim.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from oncekey.core.commands import (
    Claim,
    Claimed,
    Command,
    Finish,
    Lost,
    Release,
    Reply,
    Resolve,
    Unknown,
)
from oncekey.core.record import Record, State

ENDED: Final = (State.SUCCEEDED, State.FAILED)


class SideEffect(enum.IntEnum):
    """What bodies did to the outside world in this generation."""

    NONE = 0
    REPEATABLE = 1  # by a retry-safe owner, whose child key makes it harmless
    FINAL = 2  # by any other owner


class End(NamedTuple):
    """How a key ended: finished, given up or released. It expires at `until`."""

    state: State
    body: bytes
    fence: int
    fingerprint: bytes
    until: int


class LedgerPage(NamedTuple):
    """The ledger at one moment.

    effect    what bodies did in this generation
    top       the highest fence ever granted
    ends      how this generation ended, in order, e.g. given up and then resolved
    past      the same of earlier generations
    acked     the outcome whose owner knows that it is stored, until it expires
    """

    effect: SideEffect = SideEffect.NONE
    top: int = 0
    ends: tuple[End, ...] = ()
    past: tuple[End, ...] = ()
    acked: End | None = None

    @property
    def all_ends(self) -> tuple[End, ...]:
        return (*self.ends, *self.past)


class Ledger:
    """A page of which there is one object per content."""

    __slots__ = ("page",)

    def __init__(self, page: LedgerPage) -> None:
        self.page = page


class Interner:
    """Gives the one Ledger object of each page."""

    def __init__(self) -> None:
        self._known: dict[LedgerPage, Ledger] = {}

    def of(self, page: LedgerPage) -> Ledger:
        known = self._known.get(page)
        if known is None:
            known = self._known[page] = Ledger(page)
        return known


class Change(NamedTuple):
    """One decision of the store, with the pages before and after it."""

    before: Record | None
    command: Command
    now: int
    reply: Reply
    wrote: Record | None
    old: LedgerPage
    new: LedgerPage

    @property
    def after(self) -> Record | None:
        return self.before if self.wrote is None else self.wrote


def is_live(record: Record | None, now: int) -> bool:
    """Not absent and not expired. Written out here, in order not to call the code under test."""
    if record is None:
        return False
    undecided = record.state is State.UNKNOWN or (
        record.state is State.PENDING and not record.retry_safe
    )
    span = record.keep_unknown if undecided else record.keep
    return now < (record.finished_at or record.lease_until) + span


def page_after(
    page: LedgerPage,
    before: Record | None,
    command: Command,
    now: int,
    reply: Reply,
    wrote: Record | None,
) -> LedgerPage:
    """The page after a decision."""
    if wrote is None:
        return page
    if isinstance(command, Claim) and isinstance(reply, Claimed):
        if not is_live(before, now):
            older = tuple(end._replace(until=0) for end in page.ends)
            page = LedgerPage(top=page.top, past=(*page.past, *older), acked=page.acked)
        return page._replace(top=max(page.top, reply.fence))
    if isinstance(reply, Lost):
        return page  # nothing was decided; a late owner's state was added to the note
    if isinstance(command, (Finish, Release, Resolve)) or isinstance(reply, Unknown):
        until = wrote.finished_at + wrote.keep if wrote.finished_at else 0
        end = End(wrote.state, wrote.body, wrote.fence, wrote.fingerprint, until)
        return page._replace(ends=(*page.ends, end))
    return page


def acknowledged(page: LedgerPage, command: Finish) -> LedgerPage:
    """The page after the owner has got the reply that its outcome is stored."""
    for end in page.ends:
        if end.fence == command.fence and (end.state, end.body) == (command.state, command.body):
            return page._replace(acked=end)
    return page
