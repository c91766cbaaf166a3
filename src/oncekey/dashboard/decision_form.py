"""Deciding a key: the form is checked, its decision is shown for confirmation, then it is written.

What is confirmed is bound to the key as it was shown: if the key has another state, fence or lease
by then, nothing is written, and the page says what has changed.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from oncekey.core.codec import JSON
from oncekey.core.errors import ConfigurationError, KeyChanged
from oncekey.dashboard.dashboard_keys import Decision
from oncekey.dashboard.display import as_json
from oncekey.dashboard.key_page import actions_of, found_key, key_response
from oncekey.dashboard.page_request import PageRequest
from oncekey.dashboard.request_checks import ANSWER_MAX_CHARS
from oncekey.engine.keys import administration
from oncekey.engine.keys.administration import HttpAnswer
from oncekey.engine.keys.key_status import KeyStatus

OPERATOR_MAX_CHARS: Final = 100
REASON_MAX_CHARS: Final = 500
MESSAGE_MAX_CHARS: Final = 1_000

_WORDS: Final = {
    "succeeded": "It succeeded: every retry gets this answer.",
    "failed": "It failed for good: every retry gets this error.",
    "free": "It never happened: the next retry runs it.",
    "release": "It may run again: the next call runs it. What it failed with stays in its history.",
}
# The fields that go from the form to the confirmation, unchanged.
_CARRIED: Final = (
    "action", "value", "status", "body", "content_type", "message", "by", "why", "state", "fence",
    "lease",
)  # fmt: skip


class Wanted(NamedTuple):
    """A decision that could be read from a form."""

    decision: Decision
    by: str
    why: str


async def confirm(request: PageRequest) -> Response:
    """The first form: shows what would be written."""
    status = await found_key(request)
    if not _is_as_shown(request, status):
        return changed(request, status)
    try:
        wanted = wanted_of(request, status)
        note = administration.note_of(_word(wanted.decision), status, by=wanted.by, why=wanted.why)
    except ConfigurationError as error:
        past = await request.keys.run(administration.past_of(status, JSON))
        return key_response(
            request, status, past, problem=str(error), typed=dict(request.form), code=400
        )
    return request.page(
        "confirm.html",
        page="key",
        status_now=status,
        meaning=_WORDS[wanted.decision.action],
        note=note,
        answer=_shown_answer(wanted.decision),
        carried={**{name: request.form.get(name, "") for name in _CARRIED}, "by": wanted.by},
    )


async def decide(request: PageRequest) -> Response:
    """The confirmed form: writes it."""
    status = await found_key(request)
    if not _is_as_shown(request, status):
        return changed(request, status)
    try:
        wanted = wanted_of(request, status)
        await request.keys.decide(status, wanted.decision, wanted.by, wanted.why)
    except KeyChanged:
        return changed(request, await found_key(request))
    except ConfigurationError as error:
        past = await request.keys.run(administration.past_of(status, JSON))
        return key_response(request, status, past, problem=str(error), code=400)
    # A key that was freed without a finished step leaves no record to show.
    gone = await request.keys.run(administration.look_at(bytes.fromhex(status.id), JSON)) is None
    done = "released" if wanted.decision.action in ("free", "release") else "resolved"
    return request.redirect(f"/?done={done}" if gone else f"/keys/{status.id}?done={done}")


def changed(request: PageRequest, status: KeyStatus) -> Response:
    """Says that the key is not what was shown, and that nothing was written."""
    was = {name: request.form.get(name, "") for name in ("state", "fence", "lease")}
    return request.page("changed.html", status=409, page="key", now=status, was=was)


def wanted_of(request: PageRequest, status: KeyStatus) -> Wanted:
    """The decision in a form. Raises ConfigurationError, which says what is missing."""
    form = request.form
    action = form.get("action", "")
    if action not in actions_of(status):
        raise ConfigurationError("Choose what became of it.")
    by = request.by or _line(form, "by", "Your name", OPERATOR_MAX_CHARS)
    why = _line(form, "why", "The reason", REASON_MAX_CHARS)
    if action == "succeeded":
        return Wanted(Decision(action, value=_answer(form, status)), by, why)
    if action == "failed":
        message = _line(form, "message", "The error message", MESSAGE_MAX_CHARS)
        return Wanted(Decision(action, message=message), by, why)
    return Wanted(Decision(action), by, why)


def _answer(form: Any, status: KeyStatus) -> Any:
    if status.surface == "http":
        code = form.get("status", "").strip()
        if not code.isascii() or not code.isdigit():
            raise ConfigurationError("The status must be a number from 200 to 599.")
        kind = form.get("content_type", "").strip() or "application/json"
        body = _long(form, "body", "The body")
        if kind == "application/json" and body:
            _json(body, "The body")
        return HttpAnswer(int(code), body, kind)
    return _json(_long(form, "value", "The value"), "The value")


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f'{name} must be JSON, such as {{"charge": "ch_1"}} or null: {error}'
        ) from None


def _long(form: Any, name: str, label: str) -> str:
    text: str = form.get(name, "").replace("\r\n", "\n").strip()  # browsers send CR LF
    if len(text) > ANSWER_MAX_CHARS:
        raise ConfigurationError(f"{label} may have {ANSWER_MAX_CHARS:,} characters.")
    return text


def _line(form: Any, name: str, label: str, most: int) -> str:
    text: str = form.get(name, "").strip()
    if not text or not text.isprintable() or len(text) > most:
        raise ConfigurationError(f"{label} must be 1 to {most} characters on one line.")
    return text


def _is_as_shown(request: PageRequest, status: KeyStatus) -> bool:
    """True if state, fence and lease are those of the page that the form was on. A silent owner
    that came back has another lease, even if it fell silent again."""
    shown = [request.form.get(name) for name in ("state", "fence", "lease")]
    now = [status.state, str(status.fence), status.lease_until.isoformat()]
    return shown == now and not status.expired


def _word(decision: Decision) -> str:
    """The word that the note has for a decision, as `resolve` and `release` write it."""
    if isinstance(decision.value, HttpAnswer):
        return f"answered {decision.value.status}"
    return decision.action if decision.action in ("succeeded", "failed") else "freed"


def _shown_answer(decision: Decision) -> list[tuple[str, str]]:
    if isinstance(decision.value, HttpAnswer):
        rows = [("Status", str(decision.value.status))]
        body = str(decision.value.body)
        return (
            [*rows, ("Content type", decision.value.content_type), ("Body", body)] if body else rows
        )
    if decision.action == "succeeded":
        return [("Value", as_json(decision.value))]
    return [("Error", decision.message)] if decision.message is not None else []
