"""Writes the marks of a move (core/move_marks.py) into its two stores. Programs, as in
dual_program.py: `bind` begins a move or joins it, `finish_copy` says that everything was copied."""

from __future__ import annotations

from typing import Final

from oncekey.core.commands import Look, Seen
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.move_marks import COPIED, MARK_ID, Mark, mark_of, next_mark, write_mark
from oncekey.core.moved_records import Side
from oncekey.stores.move.side_by_side import NEW, OLD, Call, Program, result_of

MARK_TRIES: Final = 20  # processes that begin at the same time stand in each other's way


def bind(check: bytes, move: str) -> Program[Seen]:
    """Bind both stores to the same secret, and join the move that both are in; if there is none,
    begin one that is called `move`. The result has no mark: the two together may be used."""
    yield from _bind_secret(check)
    before: list[Mark | None] | None = None
    for _ in range(MARK_TRIES):
        marks, now = yield from _read_marks()
        try:
            mark = next_mark(marks[OLD], marks[NEW], move)
        except ConfigurationError:
            if marks == before:
                raise
            before = marks  # perhaps one was written between the two reads
            continue
        if mark is None:
            return Seen(None, now[NEW])
        result_of((yield Call(mark.side, "apply", ([write_mark(mark, now[mark.side])],))))
    raise StoreUnavailable("other processes change the marks of this move all the time")


def _bind_secret(check: bytes) -> Program[None]:
    for side in (OLD, NEW):
        bound = yield Call(side, "bind", (check,))
        if isinstance(bound, ConfigurationError):
            raise ConfigurationError(f"the {side.name.lower()} store: {bound}") from bound
        result_of(bound)


def finish_copy() -> Program[None]:
    """Write that everything was copied: in the old store first, so that nobody begins to use it
    alone after somebody may use the new one."""
    for side in (OLD, NEW):
        marks, now = yield from _read_marks()
        mark = marks[side]
        assert mark is not None, "bind has written it"
        if mark.stage != COPIED:
            copied = Mark(mark.move, side, COPIED, mark.fence + 1)
            result_of((yield Call(side, "apply", ([write_mark(copied, now[side])],))))


def was_copied() -> Program[bool]:
    """True if this move has been copied before."""
    marks, _ = yield from _read_marks()
    return all(mark is not None and mark.stage == COPIED for mark in marks)


def _read_marks() -> Program[tuple[list[Mark | None], list[int]]]:
    """The marks of both stores, and their clocks, by side."""
    marks: list[Mark | None] = []
    now: list[int] = []
    for side in Side:
        (seen,) = result_of((yield Call(side, "apply", ([Look(MARK_ID)],))))
        marks.append(mark_of(result_of(seen)))
        now.append(seen.now)
    return marks, now
