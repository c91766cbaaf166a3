"""What an all-seeing bookkeeper remembers beside the store, for the invariants to compare with.

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


class Effect(enum.IntEnum):
    """What bodies did to the outside world in this generation."""

    NONE = 0
    REPEATABLE = 1  # by an owner that is retry-safe: dedups on its child key
    FINAL = 2  # by an owner that is not


class End(NamedTuple):
    """How a key ended: finished, given up or released; `until` is when that expires."""

    state: State
    body: bytes
    fence: int
    fingerprint: bytes
    until: int


class Book(NamedTuple):
    """The bookkeeper's page.

    effect    what bodies did in this generation
    top       the highest fence ever granted
    ends      how this generation ended, in order: given up, then resolved, say
    past      the same of earlier generations
    acked     the outcome whose owner knows that it is stored, until it expires
    """

    effect: Effect = Effect.NONE
    top: int = 0
    ends: tuple[End, ...] = ()
    past: tuple[End, ...] = ()
    acked: End | None = None

    @property
    def all_ends(self) -> tuple[End, ...]:
        return (*self.ends, *self.past)


class Ledger:
    """A page; equal pages are one object."""

    __slots__ = ("book",)

    def __init__(self, book: Book) -> None:
        self.book = book


class Ledgers:
    def __init__(self) -> None:
        self._known: dict[Book, Ledger] = {}

    def of(self, book: Book) -> Ledger:
        known = self._known.get(book)
        if known is None:
            known = self._known[book] = Ledger(book)
        return known


class Change(NamedTuple):
    """One decision of the store, with the pages before and after it."""

    before: Record | None
    command: Command
    now: int
    reply: Reply
    wrote: Record | None
    old: Book
    new: Book

    @property
    def after(self) -> Record | None:
        return self.before if self.wrote is None else self.wrote


def is_live(record: Record | None, now: int) -> bool:
    """Not absent and not expired; written out here so as not to ask the code under test."""
    if record is None:
        return False
    undecided = record.state is State.UNKNOWN or (
        record.state is State.PENDING and not record.retry_safe
    )
    span = record.keep_unknown if undecided else record.keep
    return now < (record.finished_at or record.lease_until) + span


def turned(
    book: Book,
    before: Record | None,
    command: Command,
    now: int,
    reply: Reply,
    wrote: Record | None,
) -> Book:
    """The page after a decision."""
    if wrote is None:
        return book
    if isinstance(command, Claim) and isinstance(reply, Claimed):
        if not is_live(before, now):
            older = tuple(end._replace(until=0) for end in book.ends)
            book = Book(top=book.top, past=(*book.past, *older), acked=book.acked)
        return book._replace(top=max(book.top, reply.fence))
    if isinstance(reply, Lost):
        return book  # no decision: a late owner's word was noted
    if isinstance(command, (Finish, Release, Resolve)) or isinstance(reply, Unknown):
        until = wrote.finished_at + wrote.keep if wrote.finished_at else 0
        end = End(wrote.state, wrote.body, wrote.fence, wrote.fingerprint, until)
        return book._replace(ends=(*book.ends, end))
    return book


def acknowledged(book: Book, command: Finish) -> Book:
    """The page once the owner was told that its outcome is stored."""
    for end in book.ends:
        if end.fence == command.fence and (end.state, end.body) == (command.state, command.body):
            return book._replace(acked=end)
    return book
