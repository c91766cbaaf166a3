"""Finds values in a JSON document by a path such as $.data[0].id or $.charges[*].

It knows the forms that name one place, or every element of a list: .name, ['a name'], [0], [*].
"""

from __future__ import annotations

import json
import re
from typing import Any

from oncekey.core.errors import ConfigurationError

_STEP = re.compile(r"\.([\w-]+)|\['([^']*)'\]|\[(-?\d{1,9})\]|\[(\*)\]")

Step = str | int | None


def document(body: bytes) -> Any:
    """Return a response's JSON. Raises ValueError, also for one that is nested too deeply."""
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error


def parse(path: str) -> tuple[Step, ...]:
    """Return the path's steps: a name, an index, or None for every element.

    Raises ConfigurationError.
    """
    text = path.removeprefix("$")
    if text and text[0] not in ".[":
        text = f".{text}"
    steps: list[Step] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise ConfigurationError(
                f"{path!r} is not a path into JSON such as $.id, $.data[0].id or $.charges[*]"
            )
        at = found.end()
        name, quoted, index, _ = found.groups()
        if index is not None:
            steps.append(int(index))
        else:
            steps.append(name if name is not None else quoted)
    return tuple(steps)


def find(document: Any, steps: tuple[Step, ...]) -> list[Any]:
    """Return the values at this path; none if there is no such place."""
    values = [document]
    for step in steps:
        values = [inner for value in values for inner in _inside(value, step)]
    return values


def _inside(value: Any, step: Step) -> list[Any]:
    if step is None:
        return value if isinstance(value, list) else []
    if isinstance(step, str):
        return [value[step]] if isinstance(value, dict) and step in value else []
    if isinstance(value, list) and -len(value) <= step < len(value):
        return [value[step]]
    return []
