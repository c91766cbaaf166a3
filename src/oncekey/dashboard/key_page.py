"""One key: its facts, its timeline, what is stored of it, and what can be decided."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response

from oncekey.core.codec import JSON
from oncekey.dashboard import display
from oncekey.dashboard.page_request import PageRequest
from oncekey.dashboard.request_checks import Refused
from oncekey.dashboard.timeline import timeline_of
from oncekey.engine.keys import administration
from oncekey.engine.keys.key_status import KeyStatus

_ID: Final = re.compile(r"[0-9a-f]{32}")


async def key(request: PageRequest) -> Response:
    status = await found_key(request)
    past = await request.keys.run(administration.past_of(status, JSON))
    return key_response(request, status, past, done=request.done)


async def found_key(request: PageRequest) -> KeyStatus:
    """The key whose id is in the path. Raises Refused if there is none."""
    id = request.request.path_params["id"]
    if not _ID.fullmatch(id):
        raise Refused(404, "There is no such key.")
    status = await request.keys.run(administration.look_at(bytes.fromhex(id), JSON))
    if status is None:
        raise Refused(404, "There is no such key: it was never seen, was freed, or was swept.")
    return status


def key_response(
    request: PageRequest,
    status: KeyStatus,
    past: Sequence[KeyStatus],
    *,
    done: str = "",
    problem: str = "",
    typed: dict[str, str] | None = None,
    code: int = 200,
) -> Response:
    """The page of a key; with a problem, and what was typed, after a form that cannot be taken."""
    return request.page(
        "key.html",
        status=code,
        page="key",
        key=shown_key(status, request.options.bodies),
        past=[shown_key(one, request.options.bodies) for one in reversed(past)],
        actions=actions_of(status) if not request.options.read_only else [],
        done=done,
        problem=problem,
        typed=typed or {},
        by=request.by,
    )


def shown_key(status: KeyStatus, bodies: bool) -> dict[str, Any]:
    """What the template shows of a key."""
    return {
        "status": status,
        "meaning": display.meaning_of(status),
        "timeline": timeline_of(status),
        "answer": display.answer_of_key(status, bodies),
        "steps": [(step, display.step_text(step, bodies)) for step in status.steps],
        "notes": display.note_lines(status.note),
    }


def actions_of(status: KeyStatus) -> list[str]:
    """What an operator can decide about a key that is as it is now."""
    if status.expired:
        return []
    if status.state == "unknown":
        return ["succeeded", "failed", "free"]
    return ["release"] if status.state == "failed" else []
