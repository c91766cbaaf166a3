"""What a handler or a caller function looks at, from its compiled code.

These are guesses for `oncekey doctor`: nothing is called, and what a function leaves to other
functions is not followed. Where nothing can be said, None is returned.
"""

from __future__ import annotations

import dis
from typing import Any, Final

from oncekey.engine.body_check import code_of, names_in
from oncekey.http.inspection.guarded_views import unwrapped

# The names by which a body makes running it again harmless.
_REPEATABLE: Final = frozenset(("step", "child_key", "fence"))
_ELSEWHERE: Final = ("GLOBAL", "NAME", "DEREF", "CLOSURE", "CLASSDEREF")


def is_constant(function: Any) -> bool | None:
    """True if a function returns the same whatever it is called with: it looks at no argument, and
    at nothing outside of itself."""
    code = code_of(getattr(function, "dependency", function))  # of FastAPI's Depends
    if code is None:
        return None
    arguments = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    for instruction in dis.get_instructions(code):
        if not instruction.opname.startswith("LOAD_"):
            continue
        if instruction.opname.endswith(_ELSEWHERE):
            return False
        names = instruction.argval if isinstance(instruction.argval, tuple) else ()
        if arguments & {instruction.argval if not names else None, *names}:
            return False
    return True


def mentions_attempt(view: Any) -> bool | None:
    """True if a handler names a step, a child key, the fence, or anything called attempt."""
    found = False
    for one in unwrapped(view):
        code = code_of(one)
        if code is None:
            continue
        found = True
        for name in names_in(code):
            if name in _REPEATABLE or "attempt" in name.lower():
                return True
    return False if found else None
