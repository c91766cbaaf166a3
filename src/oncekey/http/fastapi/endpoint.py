"""The door before an endpoint: FastAPI comes to it with every dependency solved and every value
validated, and is let in, or sent away with a response.

Owns the endpoint's extended signature. Who opens the door, and when, is in route_request.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol

from fastapi import Request
from fastapi.params import Depends
from starlette.concurrency import run_in_threadpool

from oncekey.core.errors import ConfigurationError
from oncekey.http.fastapi.dependencies import with_attempts
from oncekey.http.responder import Owner
from oncekey.http.rules import Rule

DOOR: Final = "oncekey.door"  # in the scope: whoever opens it; None lets everybody in
_REQUEST: Final = "oncekey_request"
_CALLER: Final = "oncekey_caller"
_SESSION: Final = "oncekey_session"
_MARK: Final = "__oncekey_guarding__"

Call = Callable[[], Awaitable[Any]]


class Guarding(NamedTuple):
    """How one endpoint is guarded. `session` gives the connection of its transaction, if any."""

    owner: Owner
    rule: Rule
    caller: Depends | Callable[[Request], Any]
    session: Depends | None = None


class Visit(NamedTuple):
    """Somebody at the door: who, and what to call once it opens."""

    request: Request
    caller: Any
    session: Any
    call: Call


class Opener(Protocol):
    async def enter(self, visit: Visit) -> Any: ...


def guarding_of(endpoint: object) -> Guarding | None:
    found: Guarding | None = getattr(endpoint, _MARK, None)
    return found


def behind_door(endpoint: Callable[..., Any], guarding: Guarding) -> Callable[..., Any]:
    """The endpoint as FastAPI is to see it."""
    if guarding_of(endpoint) is not None:
        raise ConfigurationError(f"{_name(endpoint)} is guarded twice")
    if not guarding.rule.guarded:
        setattr(endpoint, _MARK, guarding)
        return endpoint
    if inspect.isgeneratorfunction(endpoint) or inspect.isasyncgenfunction(endpoint):
        raise ConfigurationError(
            f"{_name(endpoint)} yields: its response begins before it runs, too late for a replay. "
            "Return a StreamingResponse, or guard(guarded=False)"
        )

    @functools.wraps(endpoint)
    async def guarded(**values: Any) -> Any:
        request: Request = values.pop(_REQUEST)
        caller, session = values.pop(_CALLER, None), values.pop(_SESSION, None)

        async def call() -> Any:
            given = with_attempts(values)
            if _is_async(endpoint):
                return await endpoint(**given)
            return await run_in_threadpool(endpoint, **given)

        try:
            opener: Opener | None = request.scope[DOOR]
        except KeyError:
            raise ConfigurationError(
                f"{_name(endpoint)} is guarded, but its route does not know: "
                "idempotency.attach(app) before the routes of an app, and "
                "APIRouter(route_class=idempotency.route_class) for those of a router"
            ) from None
        if opener is None:
            return await call()
        if not isinstance(guarding.caller, Depends):
            caller = guarding.caller(request)
            if inspect.isawaitable(caller):
                caller = await caller
        return await opener.enter(Visit(request, caller, session, call))

    guarded.__signature__ = _extended(endpoint, guarding)  # type: ignore[attr-defined]
    setattr(guarded, _MARK, guarding)
    return guarded


def _extended(endpoint: Callable[..., Any], guarding: Guarding) -> inspect.Signature:
    """What the endpoint asks for, and what we need to know. Ours comes last: what the app has
    to say about a request, it says first."""
    signature = inspect.signature(endpoint)
    keyword = inspect.Parameter.KEYWORD_ONLY
    # By a dependency of its own: of two plain Request parameters FastAPI fills in the last only.
    ours = [inspect.Parameter(_REQUEST, keyword, default=Depends(_the_request))]
    if isinstance(guarding.caller, Depends):
        ours.append(inspect.Parameter(_CALLER, keyword, default=guarding.caller))
    if guarding.session is not None:
        ours.append(inspect.Parameter(_SESSION, keyword, default=guarding.session))
    theirs = list(signature.parameters.values())
    is_open = bool(theirs) and theirs[-1].kind is inspect.Parameter.VAR_KEYWORD
    rest = [theirs.pop()] if is_open else []  # nothing may follow `**kwargs`
    return signature.replace(parameters=[*theirs, *ours, *rest])


def _the_request(request: Request) -> Request:
    return request


def _is_async(endpoint: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(endpoint) or inspect.iscoroutinefunction(
        getattr(endpoint, "__call__", None)  # noqa: B004, an object that is called like a function
    )


def _name(endpoint: Callable[..., Any]) -> str:
    return getattr(endpoint, "__name__", repr(endpoint))
