"""The origin of a request: its method and its route, which describe its record to operators.

The route is the template of the framework's own route where that is known, else the path of the
rule, else the path that was requested. Pure.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from oncekey.core.origin import NAME_MAX_CHARS, ROUTE_MAX_CHARS, Origin, shown
from oncekey.http.message import Request
from oncekey.http.rules import Rule

SURFACE: Final = "http"
_ORIGINS_REMEMBERED: Final = 1_024


def origin_of_request(rule: Rule, request: Request) -> Origin:
    """The origin of a guarded request."""
    template = request.template
    if not template:
        template = rule.path if "*" not in rule.path else ""
    return _origin(request.method, template or request.path, request.name)


@lru_cache(_ORIGINS_REMEMBERED)
def _origin(method: str, path: str | bytes, name: str) -> Origin:
    text = path.decode("ascii", "replace") if isinstance(path, bytes) else path
    return Origin(SURFACE, shown(f"{method} {text}", ROUTE_MAX_CHARS), shown(name, NAME_MAX_CHARS))


def route_names(route: Any) -> tuple[str, str]:
    """The template and the published name of a Starlette or FastAPI route."""
    template = getattr(route, "path_format", None) or getattr(route, "path", "")
    name = getattr(route, "operation_id", None) or getattr(route, "unique_id", None)
    name = name or getattr(route, "name", "")
    return (
        template if isinstance(template, str) else "",
        name if isinstance(name, str) else "",
    )
