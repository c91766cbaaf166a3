"""The report that `oncekey show` prints about a key: names and values, shortened for people.

Whoever needs every byte uses --json.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from oncekey.core.step_format import StepStatus
from oncekey.engine.key_status import KeyStatus

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


def key_rows(status: KeyStatus) -> dict[str, str]:
    """The rows about a key's current state."""
    meaning = _EXPIRED if status.expired else _MEANING.get(status.state, "")
    if status.state == "pending" and status.lease_until < datetime.now(UTC) and not status.expired:
        meaning = _SILENT
    return {
        "state": f"{status.state} ({meaning})",
        "operation": status.operation,
        "scope": status.scope or "(none)",
        "tag": f"{status.tag} (its name in logs)",
        **_timeline(status),
    }


def past_rows(status: KeyStatus) -> dict[str, str]:
    """The rows about a past generation of the same key."""
    return {"state": f"{status.state} (a past generation)", **_timeline(status)}


def _timeline(status: KeyStatus) -> dict[str, str]:
    rows = {
        "attempt": f"{status.attempt}, fence {status.fence}",
        "began": when(status.created_at),
    }
    if status.finished_at is None:
        rows["lease until"] = when(status.lease_until)
    else:
        rows["finished"] = when(status.finished_at)
    expiry = status.expires_at
    rows["kept until"] = "somebody decides it" if expiry is None else when(expiry)
    if status.error is not None:
        rows["error"] = _short(status.error, VALUE_MAX_CHARS)
    elif status.finished_at is not None:
        rows["answer"] = _json(status.value, VALUE_MAX_CHARS)
    if status.note:
        rows["note"] = status.note
    if status.arguments is not None:
        rows["asked for"] = _json(status.arguments, STEP_MAX_CHARS)
    rows.update((f"step {step.name}", _step(step)) for step in status.steps)
    return rows


def _step(step: StepStatus) -> str:
    if not step.done:
        sent = "" if step.request is None else f": {_json(step.request, STEP_MAX_CHARS)}"
        return (
            f"begun {when(step.at)}, not known to have ended; sent with the key {step.intent}{sent}"
        )
    result = step.error if step.error is not None else _json(step.value, STEP_MAX_CHARS)
    named = [f"id {step.external_id}"] if step.external_id is not None else []
    named += [f"status {step.status}"] if step.status is not None else []
    there = f" as {', '.join(named)}" if named else ""
    return f"done {when(step.at)}{there}: {_short(result, STEP_MAX_CHARS)}"


def when(at: datetime) -> str:
    """A time and how far away it is, because nobody subtracts time stamps well at night."""
    seconds = (at - datetime.now(UTC)).total_seconds()
    away = abs(seconds)
    size, unit = next((unit for unit in _UNITS if away >= unit[0]), _UNITS[-1])
    count = f"{away / size:.0f} {unit}"
    words = f"in {count}" if seconds > 0 else f"{count} ago"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC ({words})"


def _json(value: Any, most: int) -> str:
    return _short(json.dumps(value, default=repr, ensure_ascii=False), most)


def _short(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[:most]}... ({len(text):,} characters; --json has all)"
