"""Draws a Mermaid sequence diagram: participants, messages, notes.

Understood are `participant A as Name`, `A->>B: text`, `A-->>B: text` (dashed), `A-xB: text` (the
message is lost), `Note over A: text` and `Note over A,B: text`. A line break in a text is <br/>.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from docs_build.svg import LINE_HEIGHT, DiagramError, box, document, label, path, split_lines
from docs_build.svg import text_width as width_of

_PARTICIPANT = re.compile(r"participant (\w+)(?: as (.+))?")
_MESSAGE = re.compile(r"(\w+?)(--?)(>>|x)(\w+): (.+)")
_NOTE = re.compile(r"Note over (\w+)(?:,(\w+))?: (.+)")
_MARGIN = 12
_HEAD = 34
_GAP = 22
_COLUMN_MIN = 120


@dataclass(frozen=True)
class _Message:
    start: int
    end: int
    text: str
    dashed: bool
    lost: bool


@dataclass(frozen=True)
class _Note:
    first: int
    last: int
    text: str


def draw_sequence(lines: list[str]) -> str:
    names, events = _parsed(lines)
    centres = _centres(list(names.values()), events)
    shapes: list[str] = []
    y = float(_MARGIN + _HEAD)
    for event in events:
        rows = len(split_lines(event.text))
        if isinstance(event, _Note):
            drawn = _note(event, centres, y + 10)
            y += 10 + rows * LINE_HEIGHT + 12
        else:
            y += 14 + rows * LINE_HEIGHT
            drawn = _message(event, centres, y)
            y += 18 if event.start == event.end else 0
        shapes.append(drawn)
    bottom = y + _GAP
    for name, centre in zip(names.values(), centres, strict=True):
        half = width_of(name) / 2 + 12
        shapes.insert(0, path(f"M{centre:.0f} {_HEAD}V{bottom:.0f}", css="lifeline", arrow=False))
        shapes.append(box(centre - half, _MARGIN / 2, 2 * half, _HEAD - 4, css="node"))
        shapes.append(label(centre, _MARGIN / 2 + 20, name, css="name"))
    title = "Sequence diagram: " + "; ".join(split_lines(event.text)[0] for event in events)
    return document(_right_end(centres, list(names.values()), events), bottom, title, shapes)


def _parsed(lines: list[str]) -> tuple[dict[str, str], list[_Message | _Note]]:
    names: dict[str, str] = {}
    events: list[_Message | _Note] = []
    for line in lines:
        if found := _PARTICIPANT.fullmatch(line):
            names[found[1]] = found[2] or found[1]
        elif found := _NOTE.fullmatch(line):
            places = [_place(names, name, line) for name in (found[1], found[2] or found[1])]
            events.append(_Note(min(places), max(places), found[3]))
        elif found := _MESSAGE.fullmatch(line):
            start, end = _place(names, found[1], line), _place(names, found[4], line)
            events.append(_Message(start, end, found[5], found[2] == "--", found[3] == "x"))
        else:
            raise DiagramError(f"cannot draw this line of a sequence diagram: {line}")
    return names, events


def _place(names: dict[str, str], name: str, line: str) -> int:
    if name not in names:
        raise DiagramError(f"{name} is not declared as a participant: {line}")
    return list(names).index(name)


def _centres(names: list[str], events: list[_Message | _Note]) -> list[float]:
    """Where the lifelines are: far enough apart for what is written between them."""
    gaps = [
        max(_COLUMN_MIN, (width_of(left) + width_of(right)) / 2 + 36)
        for left, right in pairwise(names)
    ]
    first = width_of(names[0]) / 2 + 12
    for event in events:
        low, high = _span(event)
        need = width_of(event.text) + 28
        if low == high:
            if isinstance(event, _Message):
                if low < len(gaps):
                    gaps[low] = max(gaps[low], need + 30)
                continue
            if low == 0:
                first = max(first, need / 2)
            else:
                gaps[low - 1] = max(gaps[low - 1], need / 2 + 20)
            if low < len(gaps):
                gaps[low] = max(gaps[low], need / 2 + 20)
            continue
        missing = need - sum(gaps[low:high])
        for number in range(low, high):
            gaps[number] += max(0.0, missing) / (high - low)
    centres = [_MARGIN + first]
    for gap in gaps:
        centres.append(centres[-1] + gap)
    return centres


def _span(event: _Message | _Note) -> tuple[int, int]:
    if isinstance(event, _Note):
        return event.first, event.last
    return min(event.start, event.end), max(event.start, event.end)


def _right_end(centres: list[float], names: list[str], events: list[_Message | _Note]) -> float:
    last = len(names) - 1
    room = width_of(names[-1]) / 2 + 12
    for event in events:
        if _span(event)[0] == last:
            wide = width_of(event.text) + 28
            room = max(room, wide / 2 if isinstance(event, _Note) else wide + 34)
    return centres[-1] + room + _MARGIN


def _message(event: _Message, centres: list[float], y: float) -> str:
    css = "message dashed" if event.dashed else "message"
    start, end = centres[event.start], centres[event.end]
    if event.start == event.end:
        loop = f"M{start:.0f} {y - 4:.0f}h34v18h-30"
        return label(start + 42, y, event.text, anchor="start") + path(loop, css=css)
    toward = 1 if end > start else -1
    text = label((start + end) / 2, y - 6, event.text)
    if not event.lost:
        return text + path(f"M{start:.0f} {y:.0f}H{end - toward * 2:.0f}", css=css)
    stop = start + (end - start) * 0.62
    cross = f"M{stop - 6:.0f} {y - 6:.0f}l12 12m0 -12l-12 12"
    line = path(f"M{start:.0f} {y:.0f}H{stop:.0f}", css=css, arrow=False)
    return text + line + path(cross, css="message lost", arrow=False)


def _note(event: _Note, centres: list[float], y: float) -> str:
    left, right = centres[event.first], centres[event.last]
    half = max(width_of(event.text) + 20, right - left + 40) / 2
    middle = (left + right) / 2
    height = len(split_lines(event.text)) * LINE_HEIGHT + 8
    return box(middle - half, y, 2 * half, height, css="note", radius=3) + label(
        middle, y + height - 9, event.text
    )
