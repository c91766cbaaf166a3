"""Draws the Mermaid state diagram of keys, on places chosen by hand: there are five states.

Understood is `before --> after : label`. Labels of the same two states share one arrow.
"""

from __future__ import annotations

import re

from docs_build.svg import LINE_HEIGHT, DiagramError, box, document, label, path
from docs_build.svg import text_width as width_of

_EDGE = re.compile(r"(\w+) --> (\w+) : (.+)")
_START = re.compile(r"\[\*\] --> (\w+)")
_WIDTH, _HEIGHT = 920, 580
_HALF_WIDTH, _HALF_HEIGHT = 52, 18

_PLACES = {
    "absent": (90, 270),
    "pending": (430, 270),
    "succeeded": (800, 270),
    "unknown": (430, 470),
    "failed": (800, 470),
}
# (before, after) -> the arrow, where its text stands, and how the text is anchored.
_ARROWS = {
    ("absent", "pending"): ("M144 262H374", 258, 254, "middle"),
    ("pending", "absent"): ("M376 280H146", 262, 299, "middle"),
    ("pending", "pending"): ("M400 250C370 180 490 180 460 250", 430, 186, "middle"),
    ("pending", "succeeded"): ("M484 270H744", 612, 263, "middle"),
    ("pending", "failed"): ("M484 284L752 450", 690, 398, "start"),
    ("pending", "unknown"): ("M430 290V450", 422, 362, "end"),
    ("unknown", "succeeded"): ("M484 456L752 290", 712, 340, "start"),
    ("unknown", "failed"): ("M484 474H744", 612, 492, "middle"),
    ("unknown", "absent"): ("M376 470C230 470 110 420 104 292", 205, 394, "start"),
    ("succeeded", "absent"): ("M800 250C800 20 90 20 90 248", 430, 68, "middle"),
    ("failed", "absent"): ("M800 490C800 570 70 600 70 292", 430, 570, "middle"),
}


def draw_states(lines: list[str]) -> str:
    labels: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if _START.fullmatch(line):
            continue
        found = _EDGE.fullmatch(line)
        if found is None or (found[1], found[2]) not in _ARROWS:
            raise DiagramError(f"no place is set aside for this transition: {line}")
        labels.setdefault((found[1], found[2]), []).append(found[3])
    shapes = [path("M20 270H34", css="message"), '<circle class="head" cx="15" cy="270" r="5"/>']
    for edge, texts in labels.items():
        points, x, y, anchor = _ARROWS[edge]
        below = (len(texts) - 1) * LINE_HEIGHT if edge[1] == "absent" or edge[0] == "unknown" else 0
        shapes.append(path(points, css="message"))
        shapes.append(label(x, y + below, "<br/>".join(texts), anchor=anchor))
    for name, (x, y) in _PLACES.items():
        half = max(_HALF_WIDTH, width_of(name) / 2 + 12)
        shapes.append(box(x - half, y - _HALF_HEIGHT, 2 * half, 2 * _HALF_HEIGHT, css="node"))
        shapes.append(label(x, y + 5, name, css="name"))
    return document(_WIDTH, _HEIGHT, "The states of a key and the transitions between them", shapes)
