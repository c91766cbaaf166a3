"""Describes the keys of guarded operations in an app's OpenAPI document.

Owns the header, the refusals and their schema. It only adds: what an app documents itself is kept.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

from fastapi import FastAPI
from fastapi.datastructures import DefaultPlaceholder
from fastapi.routing import APIRoute
from fastapi.utils import deep_dict_update

from oncekey.core.identity import KEY_MAX_CHARS
from oncekey.http import problem as problems
from oncekey.http.exchange import REPLAY_HEADER_DEFAULT
from oncekey.http.key_header import HEADER_NAME
from oncekey.http.rules import Rule, Rules

Json = dict[str, Any]

_REFUSALS: Final = (400, 409, 422, 503)
_PROBLEM: Final[Json] = {
    "type": "object",
    "title": "Problem",
    "description": "Problem details, RFC 9457",
    "required": ["type", "title", "status", "code", "retryable", "safe_new_key"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {
            "type": "string",
            "description": "Which problem it is; never changes",
            "enum": [problem.name for problem in problems.ALL_PROBLEMS],
        },
        "retryable": {
            "type": "boolean",
            "description": "Whether the same request with the same key is worth sending again",
        },
        "safe_new_key": {
            "type": "boolean",
            "description": "Whether nothing can have run under this key, so that a new one is safe",
        },
    },
}
_REPLAYED: Final[Json] = {
    "description": "`true`: this is the stored answer to an earlier request with this key",
    "schema": {"type": "string", "enum": ["true"]},
}
_MARKS: Final[Json] = {
    "X-Idempotency-Retention": {
        "description": "For how many seconds the key is still kept",
        "schema": {"type": "integer"},
    },
}
_UNPROTECTED: Final[Json] = {
    "X-Idempotency-Unprotected": {
        "description": "This was carried out without protection: the same key may run again",
        "schema": {"type": "string", "enum": ["store-down", "unguarded"]},
    },
}
_RETRY_AFTER: Final[Json] = {
    "Retry-After": {
        "description": "After how many seconds to send the same request again",
        "schema": {"type": "integer"},
    }
}


def extras(rule: Rule, successes: Iterable[str], replay_header: str) -> Json:
    """The additions to an operation with these success statuses."""
    marks = {replay_header: _REPLAYED, **_MARKS}
    if rule.store_down == "run":
        marks.update(_UNPROTECTED)
    responses = {str(status): _refusal(status) for status in _REFUSALS}
    for status in successes:
        responses[status] = {"headers": copy.deepcopy(marks)}
    return {"parameters": [_parameter(rule)], "responses": responses}


def extended(route: APIRoute, rule: Rule, replay_header: str = REPLAY_HEADER_DEFAULT) -> Json:
    """The route's own `openapi_extra` with our additions. Adding them twice changes nothing."""
    extra: Json = copy.deepcopy(route.openapi_extra or {})
    if not _has_key(extra):
        deep_dict_update(extra, extras(rule, [str(_status(route))], replay_header))
    return extra


def describe(
    app: FastAPI, rules: Iterable[Rule] = (), *, replay_header: str = REPLAY_HEADER_DEFAULT
) -> None:
    """Describe the operations that an `IdempotencyMiddleware` with these rules guards."""
    guarded = Rules(rules)
    original: Callable[[], Json] = app.openapi

    def openapi() -> Json:
        is_made = app.openapi_schema is not None
        document = original()
        if not is_made:
            for path, operations in document.get("paths", {}).items():
                for method, operation in operations.items():
                    rule = guarded.find(method.upper(), path)
                    if rule is not None and not _has_key(operation):
                        _add(operation, rule, replay_header)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _add(operation: Json, rule: Rule, replay_header: str) -> None:
    responses = operation.setdefault("responses", {})
    successes = [s for s in responses if s[:1] in "23"]
    deep_dict_update(operation, extras(rule, successes, replay_header))
    for status in _REFUSALS:
        responses[str(status)].setdefault("description", "")


def _has_key(operation: Json) -> bool:
    return any(p.get("name") == HEADER_NAME for p in operation.get("parameters", ()))


def _status(route: APIRoute) -> int:
    """The status of a successful response, found as FastAPI finds it."""
    kind = route.response_class
    made = kind.value if isinstance(kind, DefaultPlaceholder) else kind
    default = inspect.signature(made.__init__).parameters.get("status_code")
    if route.status_code is None and default is not None and isinstance(default.default, int):
        return default.default
    return route.status_code or 200


def _parameter(rule: Rule) -> Json:
    return {
        "name": HEADER_NAME,
        "in": "header",
        "required": rule.required,
        "description": "A new random key for each new request, the same key again for a retry."
        + _compared_headers(rule),
        "schema": {"type": "string", "minLength": 1, "maxLength": KEY_MAX_CHARS},
    }


def _compared_headers(rule: Rule) -> str:
    names = ", ".join(rule.request_headers)
    return f" A retry has the same {names}." if names else ""


def _refusal(status: int) -> Json:
    kinds = [problem for problem in problems.ALL_PROBLEMS if problem.status == status]
    made: Json = {
        "description": "; ".join(problem.title for problem in kinds),
        "content": {"application/problem+json": {"schema": copy.deepcopy(_PROBLEM)}},
    }
    if any(problem.retryable for problem in kinds):
        made["headers"] = copy.deepcopy(_RETRY_AFTER)
    return made
