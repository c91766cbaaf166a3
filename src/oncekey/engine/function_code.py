"""What the compiled code of a function names.

Nothing is called, and what a function leaves to other functions is not followed. So these are
guesses: good for a warning, not for a decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType
from typing import Any, Final

_COMMITTING: Final = frozenset(("atomic", "begin"))


def mentions_commit(function: Any) -> bool:
    """True if a function names a commit, or what commits at its end."""
    code = code_of(function)
    return code is not None and any(
        "commit" in name.lower() or name in _COMMITTING for name in names_in(code)
    )


def code_of(function: Any) -> CodeType | None:
    """The code of a function or a method; None of anything else."""
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def names_in(code: CodeType) -> Iterator[str]:
    """Every name in a function and in the functions defined in it."""
    yield from code.co_names
    yield from code.co_varnames
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
