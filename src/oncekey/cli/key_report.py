"""How operators see keys: one key as rows of names and values, or many keys as a table.

Long values are shortened for people; --json --bodies has every byte. Stored answers, arguments and
the values of steps may be anybody's personal data: unless somebody asks for them, their types and
sizes stand for them. States, times, headers, errors and notes are always shown: they say what to
do.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from oncekey.cli.output import counted, utc
from oncekey.core.record import lines
from oncekey.core.step_format import StepStatus
from oncekey.engine.keys.key_list import KeySummary, Listing
from oncekey.engine.keys.key_status import KeyStatus

VALUE_MAX_CHARS = 2_000
STEP_MAX_CHARS = 300
_MEANING = {
    "pending": "in flight: an attempt holds the key",
    "succeeded": "it ran; retries get the stored answer",
    "failed": "it failed for good; retries get the stored error",
    "freed": "it failed halfway; a retry goes on after its finished steps",
    "unknown": "its owner died; it is not run again until somebody decides",
}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SILENT = "its owner fell silent: the next retry, or `oncekey recover`, takes over"
_EXPIRED = "expired: the next call runs again"

_SIZE_ONLY = re.compile(r"\(\d+ bytes that are no text\)")
_TYPES: tuple[tuple[Any, str], ...] = (
    (bool, "boolean"),
    ((int, float), "number"),
    (str, "text"),
    (list, "list"),
    (dict, "object"),
)

COLUMNS = (
    "tag", "state", "age", "attempt", "scope", "operation", "route", "key", "status",
)  # fmt: skip
STATE_STYLES = {
    "pending": "yellow",
    "succeeded": "green",
    "failed": "red",
    "unknown": "bold red",
    "freed": "cyan",
}
_ALWAYS = 4  # columns that are shown even if they are empty
Table = tuple[Sequence[str], list[list[str]], dict[str, str]]


# --- one key --------------------------------------------------------------------------------------


def status_data(status: KeyStatus, *, bodies: bool) -> dict[str, Any]:
    """Everything about a key, for --json; `notes` has the lines of the note. A step that did not
    end has its child key in each form, since a provider has the one that its client sent."""
    shown = _shown(status, bodies=bodies)
    steps = [{**dataclasses.asdict(one), "quoted_intent": one.quoted_intent} for one in shown.steps]
    return {**dataclasses.asdict(shown), "steps": steps, "notes": lines(status.note)}


def key_rows(status: KeyStatus, *, bodies: bool) -> dict[str, str]:
    """The rows about a key's current state."""
    meaning = _EXPIRED if status.expired else _MEANING.get(status.state, "")
    if status.state == "pending" and status.lease_until <= status.seen_at and not status.expired:
        meaning = _SILENT
    rows = {"state": f"{status.state} ({meaning})", "operation": status.operation}
    if status.route:
        where = "queue" if status.surface == "queue" else "request"
        rows[where] = f"{status.route} ({status.name})" if status.name else status.route
    rows["scope"] = status.scope or "(none)"
    if status.key:
        rows["key"] = status.key
    rows["tag"] = f"{status.tag} (its name in logs)"
    return {**rows, **_timeline(_shown(status, bodies=bodies))}


def past_rows(status: KeyStatus, *, bodies: bool) -> dict[str, str]:
    """The rows about a past generation of the same key."""
    timeline = _timeline(_shown(status, bodies=bodies))
    return {"state": f"{status.state} (a past generation)", **timeline}


def _timeline(status: KeyStatus) -> dict[str, str]:
    safe = "retry-safe" if status.retry_safe else "at most once"
    rows = {
        "attempt": f"{status.attempt}, fence {status.fence}, {safe}",
        "began": when(status.created_at),
    }
    if status.finished_at is None:
        rows["lease until"] = when(status.lease_until)
    else:
        rows["finished"] = when(status.finished_at)
    expiry = status.expires_at
    rows["kept until"] = "somebody decides it" if expiry is None else when(expiry)
    rows.update(_answer(status))
    for number, line in enumerate(lines(status.note), 1):
        rows[f"decision {number}"] = line
    if status.arguments is not None:
        rows["asked for"] = _json(status.arguments, STEP_MAX_CHARS)
    rows.update((f"step {step.name}", _step(step)) for step in status.steps)
    return rows


def _answer(status: KeyStatus) -> dict[str, str]:
    if status.error is not None:
        return {"error": _short(status.error, VALUE_MAX_CHARS)}
    if status.http_status is not None:
        return _response(status.value)
    if status.finished_at is None or status.state not in ("succeeded", "failed"):
        return {}
    return {"answer": _json(status.value, VALUE_MAX_CHARS)}


def _response(response: dict[str, Any]) -> dict[str, str]:
    rows = {"response": str(response["status"])}
    rows.update((f"  {name}", value) for name, value in response["headers"].items())
    if response.get("omitted"):
        rows["body"] = "(it was not stored)"
    elif "body" in response:
        rows["body"] = _json(response["body"], VALUE_MAX_CHARS)
    return rows


def _step(step: StepStatus) -> str:
    if not step.done:
        sent = "" if step.request is None else f": {_json(step.request, STEP_MAX_CHARS)}"
        uuid = f", or the UUID {step.child_uuid} by one that sends UUIDs" if step.child_uuid else ""
        return (
            f"begun {when(step.at)}, not known to have ended; sent with the key {step.intent}, or "
            f"{step.quoted_intent} in quotes by a client that quotes keys{uuid}{sent}"
        )
    result = step.error if step.error is not None else _json(step.value, STEP_MAX_CHARS)
    named = [f"id {step.external_id}"] if step.external_id is not None else []
    named += [f"status {step.status}"] if step.status is not None else []
    there = f" as {', '.join(named)}" if named else ""
    return f"done {when(step.at)}{there}: {_short(result, STEP_MAX_CHARS)}"


# --- many keys ------------------------------------------------------------------------------------


def listing_table(listing: Listing) -> Table:
    """The columns, the rows and the styles of words; empty columns are left out."""
    return _table([_cells(key, listing.now) for key in listing.keys])


def status_table(keys: Sequence[KeyStatus]) -> Table:
    """The same table of keys that were looked at one by one."""
    return _table([_cells(key, key.seen_at) for key in keys])


def _table(rows: list[list[str]]) -> Table:
    used = [
        number
        for number in range(len(COLUMNS))
        if number < _ALWAYS or any(row[number] for row in rows)
    ]
    columns = [COLUMNS[number] for number in used]
    return columns, [[row[number] for number in used] for row in rows], STATE_STYLES


def _cells(key: KeySummary | KeyStatus, now: datetime) -> list[str]:
    return [
        key.tag,
        f"{key.state}, expired" if key.expired else key.state,
        span(max(0.0, (now - key.created_at).total_seconds())),
        str(key.attempt),
        key.scope,
        key.operation,
        f"{key.route} ({key.name})" if key.name else key.route,
        key.key,
        str(key.http_status or ""),
    ]


# --- bodies ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Redacted:
    """What stands for a value that is not shown."""

    type: str
    bytes: int
    redacted: bool = True

    def __str__(self) -> str:
        return f"({self.type}, {counted(self.bytes, 'byte')}; --bodies shows it)"


def _shown(status: KeyStatus, *, bodies: bool) -> KeyStatus:
    """The status as it may be shown: without what is in its bodies, unless they are asked for."""
    if bodies:
        return status
    return dataclasses.replace(
        status,
        value=_redacted_answer(status),
        arguments=_redacted(status.arguments),
        steps=tuple(
            dataclasses.replace(step, value=_redacted(step.value), request=_redacted(step.request))
            for step in status.steps
        ),
    )


def _redacted_answer(status: KeyStatus) -> Any:
    if status.http_status is None:
        return _redacted(status.value)
    if "body" not in status.value:
        return status.value
    return {**status.value, "body": _redacted(status.value["body"])}


def _redacted(value: Any) -> Any:
    if value is None or (isinstance(value, str) and _SIZE_ONLY.fullmatch(value)):
        return value
    text = value if isinstance(value, str) else json.dumps(value, default=repr, ensure_ascii=False)
    kind = next((name for types, name in _TYPES if isinstance(value, types)), "value")
    return Redacted(kind, len(text.encode(errors="replace")))


# --- words ----------------------------------------------------------------------------------------


def when(at: datetime) -> str:
    """A time and how far away it is, because nobody subtracts time stamps well at night."""
    seconds = (at - datetime.now(UTC)).total_seconds()
    words = f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"
    return f"{utc(at)} ({words})"


def span(seconds: float) -> str:
    """A length of time in its largest unit."""
    size, unit = next((unit for unit in _UNITS if seconds >= unit[0]), _UNITS[-1])
    return f"{seconds / size:.0f} {unit}"


def _json(value: Any, most: int) -> str:
    if isinstance(value, Redacted):
        return str(value)
    return _short(json.dumps(value, default=repr, ensure_ascii=False), most)


def _short(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[:most]}... ({len(text):,} characters; --json has all)"
