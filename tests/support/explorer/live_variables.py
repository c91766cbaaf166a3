"""Which local variables of a suspended frame can still be read: live variable analysis.

A value that no instruction reads again does not count: two frames that differ only there behave
alike. In doubt a name counts as live, which costs states but hides nothing: loop variables (the
iterator itself cannot be seen), closures, and whatever an exception handler reads are always live.

The analysis cannot see values on the stack, so a `yield` must be a statement of its own;
tests/explore/test_explorer.py checks the text of the flows for that.
"""

from __future__ import annotations

import dis
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType

_JUMPS_ALWAYS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")


def live_values(frame: FrameType) -> list[tuple[str, str]]:
    """The names that a frame can still read, and the repr of their values."""
    live = _live_after(frame.f_code)[frame.f_lasti]
    return [(name, repr(value)) for name, value in frame.f_locals.items() if name in live]


@cache
def _live_after(code: CodeType) -> dict[int, frozenset[str]]:
    """For each instruction, the names that are read after it before they are set anew."""
    listing = list(dis.get_instructions(code))
    following = _successors(listing)
    always = _always(code, listing)
    before: dict[int, frozenset[str]] = {i.offset: always for i in listing}
    after = dict(before)
    changed = True
    while changed:
        changed = False
        for one in reversed(listing):
            out = always.union(*(before[place] for place in following[one.offset]))
            reads, sets = _reads_and_sets(one)
            into = (out - sets) | reads | always
            if into != before[one.offset] or out != after[one.offset]:
                before[one.offset], after[one.offset] = into, out
                changed = True
    return after


def _successors(listing: list[dis.Instruction]) -> dict[int, list[int]]:
    known = {one.offset for one in listing}
    places: dict[int, list[int]] = {}
    for one, follower in zip(listing, [*listing[1:], None], strict=True):
        to: list[int] = []
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            assert one.argval in known, one
            to.append(one.argval)
        if follower is not None and one.opname not in (*_JUMPS_ALWAYS, *_ENDS):
            to.append(follower.offset)
        places[one.offset] = to
    return places


def _reads_and_sets(one: dis.Instruction) -> tuple[frozenset[str], frozenset[str]]:
    if "_FAST" not in one.opname:
        return frozenset(), frozenset()
    names = frozenset(one.argval if isinstance(one.argval, tuple) else (one.argval,))
    if one.opname in ("STORE_FAST", "DELETE_FAST"):
        return frozenset(), names
    return (
        names,
        frozenset(),
    )  # also for the paired instructions of newer Pythons: in doubt, they are live


def _always(code: CodeType, listing: list[dis.Instruction]) -> frozenset[str]:
    names = {*code.co_cellvars, *code.co_freevars}
    handling = False
    for one, follower in pairwise(listing):
        if one.opname == "FOR_ITER" and "_FAST" in follower.opname:
            names |= _reads_and_sets(follower)[0] | _reads_and_sets(follower)[1]
        handling = handling or one.opname == "PUSH_EXC_INFO"
        if handling:
            names |= _reads_and_sets(one)[0]
    return frozenset(names)
