"""How the dashboard writes things for people: times, ages, sizes, counts, and stored values, which
are redacted for readers who may not see them.

Everything here is text; the templates escape it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

from oncekey.core.record import decision, lines
from oncekey.core.step_format import StepStatus
from oncekey.engine.keys.key_status import KeyStatus

VALUE_SHOWN_MAX_CHARS: Final = 20_000
HIDDEN: Final = "hidden: the dashboard was started without bodies"

_UNITS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))
_SIZES: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_MANY_MIN: Final = 10.0  # from here on a figure has no decimals

# state -> the sign before its name, since not everybody tells hues apart
SIGNS: Final = {
    "pending": "◔",
    "succeeded": "✓",
    "failed": "✕",
    "unknown": "?",
    "freed": "↺",
}
MEANINGS: Final = {
    "pending": "In flight: an attempt holds the key.",
    "succeeded": "It ran. Retries get the stored answer.",
    "failed": "It failed for good. Retries get the stored error.",
    "unknown": "Its owner fell silent, and nobody knows whether it happened. It is not run again "
    "until somebody decides.",
    "freed": "It failed halfway. A retry goes on after its finished steps.",
}
SILENT: Final = "Its owner fell silent. It is safe to run again: the next retry takes over."
DECIDED: Final = "Somebody else than its owner decided it. Retries get what is stored."
EXPIRED: Final = "It has expired: the next call runs again."


def meaning_of(status: KeyStatus) -> str:
    """What the state of a key means, in a sentence."""
    if status.expired:
        return EXPIRED
    if status.state == "pending" and status.lease_until <= status.seen_at:
        return SILENT
    if status.state in ("succeeded", "failed") and decision(status.note):
        return DECIDED
    return MEANINGS.get(status.state, "")


def when(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def span(seconds: float) -> str:
    """A duration in its largest unit: "250 ms", "4.2 s", "3 min", "2 d"."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1_000:.0f} ms"
    size, unit = next(unit for unit in _UNITS if seconds >= unit[0])
    figure = seconds / size
    text = f"{figure:.0f}" if figure >= _MANY_MIN else f"{figure:.1f}".removesuffix(".0")
    return f"{text} {unit}"


def between(later: datetime, earlier: datetime) -> str:
    """How far apart two times are: "3 min ago", "in 2 h"."""
    seconds = (later - earlier).total_seconds()
    return f"in {span(-seconds)}" if seconds < 0 else f"{span(seconds)} ago"


def size(count: int) -> str:
    for unit, name in _SIZES:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def count(number: float) -> str:
    """A count, or a rate, with as many digits as help."""
    if number == int(number) or number >= _MANY_MIN:
        return f"{number:,.0f}"
    return f"{number:.2g}"


def share(part: float) -> str:
    return f"{part:.1%}"


class Shown(NamedTuple):
    """A stored value as the reader may see it. `is_hidden` if that is not at all."""

    label: str
    text: str
    is_hidden: bool = False


def answer_of_key(status: KeyStatus, bodies: bool) -> list[Shown]:
    """What a key has answered: nothing before its end. Of a response the status, of an error the
    type are shown to every reader."""
    shown: list[Shown] = []
    if status.http_status is not None:
        shown.append(Shown("Status", str(status.http_status)))
    if status.error is not None:
        kind, colon, _ = status.error.partition(": ")
        text = status.error if bodies or not colon else f"{kind}: ({HIDDEN})"
        shown.append(Shown("Error", text, not bodies and bool(colon)))
    elif status.finished_at is not None and status.state != "freed":
        response = status.value if isinstance(status.value, dict) else {}
        if status.surface == "http" and "headers" in response:
            shown.append(_value("Headers", response["headers"], bodies))
            if "body" in response:
                shown.append(_value("Body", response["body"], bodies))
        else:
            shown.append(_value("Value", status.value, bodies))
    if status.arguments is not None:
        shown.append(_value("Arguments", status.arguments, bodies))
    return shown


def step_text(step: StepStatus, bodies: bool) -> list[Shown]:
    """What is stored of a step. Its child key and the other side's own id are for everybody: they
    are what an operator looks for over there."""
    shown = []
    if step.intent and step.quoted_intent:
        shown.append(Shown("Sent with the key", step.intent))
        shown.append(Shown("or, by a client that quotes keys", step.quoted_intent))
    if step.child_uuid:
        shown.append(Shown("or, by a client that sends UUIDs", step.child_uuid))
    if step.external_id is not None:
        shown.append(Shown("Known there as", step.external_id))
    if step.status is not None:
        shown.append(Shown("Status there", step.status))
    if not step.done:
        if step.request is not None:
            shown.append(_value("Request", step.request, bodies))
    elif step.error is not None:
        shown.append(Shown("Error", step.error if bodies else HIDDEN, not bodies))
    else:
        shown.append(_value("Result", step.value, bodies))
    return shown


def note_lines(note: str) -> list[str]:
    """The decisions of others than the owner, oldest first."""
    return lines(note)


def _value(label: str, value: Any, bodies: bool) -> Shown:
    return Shown(label, as_json(value)) if bodies else Shown(label, HIDDEN, is_hidden=True)


def as_json(value: Any) -> str:
    """A value as indented JSON, cut if it is long; text is shown as it is."""
    text = value if isinstance(value, str) else _dumped(value)
    if len(text) <= VALUE_SHOWN_MAX_CHARS:
        return text
    return f"{text[:VALUE_SHOWN_MAX_CHARS]}…\n({len(text):,} characters)"


def _dumped(value: Any) -> str:
    return json.dumps(value, default=repr, ensure_ascii=False, indent=2)


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "when": when,
    "span": span,
    "size": size,
    "count": count,
    "share": share,
}
