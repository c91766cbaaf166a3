"""`step_result`: what a step stores of an HTTP response.

    attempt.step("payment:charge", lambda key: step_result(http.post("/charges", json=order)))

This module decides which parts of a response are its value, its status and its external id. It
takes responses of httpx and of requests, and imports neither library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from oncekey.core.step_format import StepResult


class Response(Protocol):
    """A response of httpx or requests whose body has been read."""

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
    """The response as the result of a step.

    1. From status 400 on there is no result: the response's own `raise_for_status` raises.
    2. A response without a body has the value None.
    3. A response with JSON has it as its value, unless it cannot be stored: NaN, Infinity, half a
       surrogate pair.
    4. Any other response has its text as its value.

    The status is stored beside the value, and so is the member `id` of a JSON object, the other
    side's name for what it did.
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
    # Without a content type it may be either. A text/plain "123" is text, as its type says.
    if kind and kind != "application/json" and not kind.endswith("+json"):
        return response.text
    try:
        value = response.json()
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return response.text
    return value
