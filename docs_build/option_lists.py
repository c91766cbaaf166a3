"""Turns the aligned option lists of our docstrings into Markdown lists.

In the source an option list is written to be read there:

    lease       how long an owner may stay silent
    keep        how long a finished key deduplicates,
                counted from its end

Markdown would run these lines together, so each option becomes a list item.
"""

from __future__ import annotations

import re

_OPTION = re.compile(r"(?P<name>[a-z_][a-z_0-9]*(?:, [a-z_][a-z_0-9]*)*) {2,}(?P<text>\S.*)")
_QUOTED = re.compile(r'"[^"\s]*"')


def as_markdown(text: str) -> str:
    """The docstring with its option lists as Markdown lists; other lines are left as they are."""
    lines: list[str] = []
    in_list = False
    for line in text.splitlines():
        found = _OPTION.fullmatch(line)
        if found is not None:
            if not in_list and lines and lines[-1]:
                lines.append("")  # a list needs an empty line before it
            names = ", ".join(f"`{name}`" for name in found["name"].split(", "))
            lines.append(f"* {names}: {_with_code(found['text'])}")
            in_list = True
        elif in_list and line.startswith("  ") and line.strip():
            lines[-1] += " " + _with_code(line.strip())
        else:
            in_list = False
            lines.append(line)
    return "\n".join(lines)


def _with_code(text: str) -> str:
    """Quoted values as code: the asterisk of "*" is not an emphasis."""
    return _QUOTED.sub(r"`\g<0>`", text)
