"""What a step keeps of an HTTP response.

    attempt.step("payment:charge", lambda key: step_result(http.post("/charges", json=order)))

Owns what of a response is its value, its status and its name on the other side. Takes the
responses of httpx and requests alike, and imports neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from oncekey.core.step_format import StepResult


class Response(Protocol):
    """What httpx and requests call a response; its body has been read."""

    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content(self) -> Any: ...
    @property
    def text(self) -> str: ...
    def json(self) -> Any: ...
    def raise_for_status(self) -> Any: ...


def step_result(response: Response, *, id: str = "id") -> StepResult[Any]:
    """The response as the result of a step: its JSON, or else its text; None where it has no body.
    Its text too where the JSON has what cannot be stored: NaN, Infinity, half a character.

    Its status is kept beside it, and so is the member `id` of a JSON object: what the other side
    calls what it did. From 400 on it is no result: the response's own `raise_for_status` raises.
    """
    if response.status_code >= 400:
        response.raise_for_status()
    value = _value(response)
    named = value.get(id) if isinstance(value, dict) else None
    is_name = isinstance(named, (str, int)) and not isinstance(named, bool)
    return StepResult(value, named if is_name else None, response.status_code)


def _value(response: Response) -> Any:
    if not response.content:
        return None
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Without a type it may be either; a text/plain "123" is text because it says so.
    if kind and kind != "application/json" and not kind.endswith("+json"):
        return response.text
    try:
        value = response.json()
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return response.text
    return value
