"""What the compiled code of a function names.

Nothing is called, and what a function leaves to other functions is not followed. So these are
guesses: good for a warning, not for a decision.
"""

from __future__ import annotations

import dis
from collections.abc import Collection, Iterator
from types import CodeType
from typing import Any, Final

_COMMIT: Final = "commit"
_COMMITTING: Final = frozenset(("atomic", "begin"))
_COMMITTED: Final = frozenset(("on_commit",))  # it registers what a commit is followed by


def mentions_commit(function: Any) -> bool:
    """True if a function names a commit, or what commits at its end."""
    code = code_of(function)
    return code is not None and any(map(_is_commit, names_in(code)))


def commits_after(function: Any, called: Collection[str]) -> bool:
    """True if a function names a commit that can come after its call of something, which has one of
    the names `called` in it.

    A `session.commit()` on a line above the first call is over by then. What commits at the end of
    a block may stand anywhere, and so may what is in a nested function. If no call is found, every
    commit counts.
    """
    code = code_of(function)
    if code is None:
        return False
    if any(name != _COMMIT and _is_commit(name) for name in names_in(code)):
        return True
    for each in _codes_in(code):
        commits = [line for name, line in _loads_of(each) if name == _COMMIT]
        calls = [
            line for inner in _codes_in(each) for name, line in _loads_of(inner) if name in called
        ]
        if commits and (not calls or max(commits) >= min(calls)):
            return True
    return False


def code_of(function: Any) -> CodeType | None:
    """The code of a function or a method; None of anything else."""
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def names_in(code: CodeType) -> Iterator[str]:
    """Every name in a function and in the functions defined in it."""
    for each in _codes_in(code):
        yield from each.co_names
        yield from each.co_varnames
        yield from each.co_freevars


def _is_commit(name: str) -> bool:
    return ("commit" in name.lower() and name not in _COMMITTED) or name in _COMMITTING


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of the functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


def _loads_of(code: CodeType) -> Iterator[tuple[str, int]]:
    """Every name that is read in a function, and its line."""
    for instruction in dis.get_instructions(code):
        line = instruction.positions.lineno if instruction.positions is not None else None
        is_name = instruction.opname.startswith("LOAD_") and instruction.opcode not in dis.hasconst
        if line is None or not is_name:
            continue
        found = instruction.argval  # two names, where two variables are read at once
        for name in found if isinstance(found, tuple) else (found,):
            if isinstance(name, str):
                yield name, line
