"""The plain ASGI middleware around a whole FastAPI app.

It claims before the app looks at a request, so a body that fails validation has claimed its key;
unhandled_requests.py sees to it that FastAPI's refusal frees it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI

from oncekey.core.errors import ConfigurationError
from oncekey.engine.aio.once import AsyncOnce
from oncekey.http.asgi import Caller, IdempotencyMiddleware
from oncekey.http.exchange import REPLAY_HEADER_DEFAULT, check_caller
from oncekey.http.fastapi.openapi import describe
from oncekey.http.rules import Rule


def install(
    app: FastAPI, once: AsyncOnce, *, caller: Caller, rules: Iterable[Rule] = (), **options: Any
) -> None:
    """Add an `IdempotencyMiddleware` and describe its routes. `caller` is a function of the ASGI
    scope; the options are the middleware's. Before or after routes and exception handlers."""
    check_caller(caller)
    if app.middleware_stack is not None:
        raise ConfigurationError("install() before the app serves its first request")
    rules = tuple(rules)
    app.add_middleware(
        IdempotencyMiddleware,
        once=once,
        caller=caller,
        rules=rules,
        **options,
    )
    describe(app, rules, replay_header=options.get("replay_header", REPLAY_HEADER_DEFAULT))
