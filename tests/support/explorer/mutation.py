"""Changed copies of real modules and other texts, made from their source.

The text that an edit replaces must occur exactly once, so a mutant fails loudly when the source
changes. The copy is a module of its own; the real one is not changed.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Edit:
    """Replace `old`, which occurs exactly once, by `new`."""

    old: str
    new: str


def edited(text: str, name: str, *edits: Edit) -> str:
    """The text with the edits made; `name` says in errors whose text it is."""
    for edit in edits:
        if text.count(edit.old) != 1:
            raise ValueError(
                f"{name}: {edit.old!r} occurs {text.count(edit.old)} times; a mutant needs text "
                "that occurs once"
            )
        text = text.replace(edit.old, edit.new)
    return text


def mutated(module: ModuleType, *edits: Edit) -> ModuleType:
    """A copy of `module` with the edits made."""
    source = edited(inspect.getsource(module), module.__name__, *edits)
    copy = ModuleType(module.__name__)
    copy.__file__ = module.__file__
    copy.__package__ = module.__package__
    exec(compile(source, f"<mutant of {module.__name__}>", "exec"), copy.__dict__)
    return copy
